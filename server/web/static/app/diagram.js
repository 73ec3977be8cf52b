// Runs in diagram.html, a sandboxed frame without an origin: converts Mermaid source to SVG for the web UI.
const { mermaid } = /** @type {any} */ (globalThis);

/** @param {string} text an HTML fragment @returns {string} XML with the size in pixels, as an image needs it */
function asImage(text) {
  const svg = new DOMParser().parseFromString(text, "text/html").querySelector("svg");
  if (!svg) return "";
  const { width, height } = svg.viewBox.baseVal;
  svg.setAttribute("width", String(Math.ceil(width)));
  svg.setAttribute("height", String(Math.ceil(height)));
  svg.style.maxWidth = "";
  return new XMLSerializer().serializeToString(svg);
}

addEventListener("message", async ({ source, data: { id, text, dark } }) => {
  if (source !== parent) return;
  const labels = { htmlLabels: false };
  mermaid.initialize({
    ...{ startOnLoad: false, securityLevel: "strict", suppressErrorRendering: true, fontFamily: "sans-serif" },
    ...{ theme: dark ? "dark" : "default", ...labels, flowchart: labels, class: labels, state: labels },
  });
  const svg = await mermaid.render(`diagram-${id}`, text).then((/** @type {any} */ made) => asImage(made.svg), () => "");
  parent.postMessage({ id, svg }, "*");
});
parent.postMessage({ ready: true }, "*");
