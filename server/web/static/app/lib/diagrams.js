// Renders Mermaid diagrams in a sandboxed frame, which is loaded for the first one.

/** @type {Promise<Window | undefined> | undefined} */
let frame;
/** By the number of the request. @type {Map<number, (svg: string) => void>} */
const waiting = new Map();
let n = 0;

const LOAD_MS = 10_000; // without an answer diagrams stay text

/** @returns {Promise<Window | undefined>} */
const loadFrame = () =>
  (frame ??= new Promise((resolve) => {
    const made = document.createElement("iframe");
    made.sandbox.add("allow-scripts");
    made.src = new URL("../diagram.html", import.meta.url).href;
    made.title = "Mermaid";
    made.className = "diagram-frame";
    made.tabIndex = -1;
    made.setAttribute("aria-hidden", "true");
    addEventListener("message", ({ source, data }) => {
      if (!source || source !== made.contentWindow) return;
      if (data.ready) return resolve(/** @type {Window} */ (source));
      waiting.get(data.id)?.(String(data.svg));
      waiting.delete(data.id);
    });
    document.body.append(made);
    setTimeout(resolve, LOAD_MS);
  }));

/**
 * Return the diagram as the URL of an image, which runs no scripts and loads nothing; "" if the source is invalid.
 * @param {string} text @param {boolean} dark
 */
export async function diagram(text, dark) {
  const to = await loadFrame();
  if (!to) return "";
  const id = (n += 1);
  const svg = await new Promise((/** @type {(svg: string) => void} */ resolve) => {
    waiting.set(id, resolve);
    to.postMessage({ id, text, dark }, "*");
  });
  return svg && `data:image/svg+xml,${encodeURIComponent(svg)}`;
}
