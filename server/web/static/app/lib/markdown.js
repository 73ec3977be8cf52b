// Renders Markdown: marked parses it, DOMPurify sanitizes it. Complete code is highlighted, maths typeset, diagrams drawn.
import createPurifier from "../../vendor/dompurify.js";
import { Marked } from "../../vendor/marked.js";
import { copyText } from "./clipboard.js";
import { diagram } from "./diagrams.js";
import { html, useEffect, useLayoutEffect, useMemo, useRef } from "./dom.js";
import { t } from "./texts.js";

/** Longer formulas are shown as source: KaTeX needs time and elements for each letter. */
const LONGEST_MATHS = 4000;
/** Formulas with more nested elements are shown as source: from about 1000 on, a browser's layout crashes. */
const DEEPEST_MATHS = 300;
const MATHS = [
  { open: "$$", close: "$$", display: true },
  { open: "\\[", close: "\\]", display: true },
  { open: "\\(", close: "\\)", display: false },
  { open: "$", close: "$", display: false },
];

/** @param {string} text */
const escaped = (text) => text.replace(/[&<>"]/g, (c) => `&#${c.charCodeAt(0)};`);

/** Match maths at the start of `text`. A single dollar sign may be money: its formula must not begin or end with a space. */
function mathsAt(/** @type {string} */ text) {
  for (const { open, close, display } of MATHS) {
    if (!text.startsWith(open)) continue;
    const end = text.slice(0, LONGEST_MATHS).indexOf(close, open.length);
    if (end < 0) continue;
    const tex = text.slice(open.length, end);
    if (!tex.trim()) continue;
    if (open === "$" && (/^\s|\s$|\n/.test(tex) || /^\d/.test(text.slice(end + 1)))) continue;
    return { raw: text.slice(0, end + close.length), tex, display };
  }
  return undefined;
}

/** @param {"block" | "inline"} level */
const mathsRule = (level) => ({
  name: `maths-${level}`,
  level,
  start: (/** @type {string} */ text) => {
    const at = text.search(level === "block" ? /\n(\$\$|\\\[)/ : /\$|\\\(|\\\[/);
    return at < 0 ? undefined : at;
  },
  tokenizer(/** @type {string} */ text) {
    const found = mathsAt(text);
    if (!found || (level === "block" && !found.display)) return undefined;
    return { type: `maths-${level}`, ...found };
  },
  renderer: (/** @type {any} */ token) =>
    `<${token.display ? "div" : "span"} class="maths" data-display="${token.display}">${escaped(token.tex)}</${
      token.display ? "div" : "span"
    }>`,
});

/** HTML tags that are rendered, without attributes. Any other tag is shown as text. */
const NO_TAG = /<(?!\/?(?:b|i|u|s|em|strong|mark|small|sub|sup|kbd|br|hr|details|summary)\s*\/?>)/gi;
/** Images inside the text only. Others would make the browser send a request that the user did not start. */
const PICTURE = /^data:image\/(png|jpeg|gif|webp);base64,/i;

const marked = new Marked({ gfm: true, breaks: true });
marked.use(
  /** @type {any} */ ({
    extensions: [mathsRule("block"), mathsRule("inline")],
    renderer: {
      checkbox: (/** @type {{checked: boolean}} */ { checked }) => (checked ? "☑ " : "☐ "),
      html: (/** @type {{text: string}} */ { text }) => text.replace(NO_TAG, "&lt;"),
      image: (/** @type {{href: string, text: string}} */ { href, text }) =>
        PICTURE.test(href)
          ? `<img src="${escaped(href)}" alt="${escaped(text)}">`
          : `<a href="${escaped(href)}">${escaped(text || href)}</a>`,
    },
  }),
);

const purify = createPurifier(window);
purify.addHook("afterSanitizeAttributes", (/** @type {Element} */ node) => {
  if (node.tagName === "A") {
    node.setAttribute("target", "_blank");
    node.setAttribute("rel", "noopener noreferrer");
  }
});
const RULES = {
  FORBID_TAGS: ["style", "form", "input", "button", "dialog", "select", "textarea", "iframe", "object", "embed", "svg", "math", "video", "audio"],
  FORBID_ATTR: ["style", "id", "name"],
  ALLOW_DATA_ATTR: true,
};

/** @template T @param {() => T} read @returns {T | null} null: nested deeper than the browser's stack is */
function deep(read) {
  try {
    return read();
  } catch (error) {
    if (error instanceof RangeError) return null;
    throw error;
  }
}
/** @param {string} text */
const lexed = (text) => deep(() => marked.lexer(text));
/** @param {any} tokens @returns {string | null} */
const parsed = (tokens) => deep(() => marked.parser(tokens));

/**
 * The rendered state of a growing text: each block's HTML by its source, and the blocks that more text cannot change.
 * @typedef {{made: Map<string, string>, settled: any[], length: number, links: Record<string, any>}} Known
 */

/** The blocks of a text, each with its HTML; what did not change since the last time is not read again. @param {string} text
 *  @param {Known} known @param {boolean} growing by what follows it */
function blocksOf(text, known, growing) {
  const fresh = lexed(text.slice(known.length));
  if (!fresh) return [`<p class="unread">${escaped(text)}</p>`];
  const links = Object.assign(known.links, fresh.links);
  const tokens = [...known.settled, ...fresh];
  if (growing && fresh.length > 3) {
    const settled = fresh.slice(0, -3); // a list may continue after an empty line
    known.settled.push(...settled);
    known.length += settled.reduce((sum, { raw }) => sum + raw.length, 0);
  }
  const blocks = [];
  for (const token of tokens) {
    if (token.type === "space") continue;
    let made = known.made.get(token.raw);
    if (made === undefined) {
      const one = /** @type {any} */ ([token]);
      one.links = links;
      made = /** @type {string} */ (purify.sanitize(parsed(one) ?? `<p class="unread">${escaped(token.raw)}</p>`, RULES));
      known.made.set(token.raw, made);
    }
    blocks.push(made);
  }
  return blocks;
}

let maths = /** @type {Promise<any> | undefined} */ (undefined);
let code = /** @type {Promise<any> | undefined} */ (undefined);

function loadMaths() {
  maths ??= import("../../vendor/katex.js").then((module) => {
    const sheet = document.createElement("link");
    sheet.rel = "stylesheet";
    sheet.href = new URL("../../vendor/katex.css", import.meta.url).href;
    document.head.append(sheet);
    return module.default;
  });
  return maths;
}

function loadCode() {
  code ??= import("../../vendor/highlight.js").then((module) => module.default);
  return code;
}

/** The number of nested elements. @param {Element} node @returns {number} */
const depthOf = (node) => 1 + Math.max(0, ...[...node.children].map(depthOf));

/** KaTeX creates elements: the page's Content-Security-Policy forbids text with style attributes. */
async function dressMaths(/** @type {Element} */ root) {
  const found = root.querySelectorAll(".maths:not([data-done])");
  if (!found.length) return;
  const katex = await loadMaths();
  let began = performance.now();
  for (const node of found) {
    if (!(node instanceof HTMLElement) || node.dataset.done || !node.isConnected) continue;
    if (performance.now() - began > 12) {
      await new Promise(requestAnimationFrame); // at most one formula per frame
      began = performance.now();
    }
    node.dataset.done = "1";
    const tex = node.textContent ?? "";
    try {
      const displayMode = node.dataset.display === "true";
      const made = document.createElement("span");
      katex.render(tex, made, { displayMode, throwOnError: false, strict: "ignore", maxSize: 20, maxExpand: 200 });
      if (depthOf(made) < DEEPEST_MATHS) node.replaceChildren(...made.childNodes);
    } catch {
      // nested deeper than the browser's stack: its source stays
    }
  }
}

async function dressCode(/** @type {Element} */ root) {
  const found = root.querySelectorAll("pre > code:not([data-done])");
  if (!found.length) return;
  for (const node of found) {
    if (node instanceof HTMLElement) frame(node);
    if (node instanceof HTMLElement && node.classList.contains("language-mermaid")) void dressDiagram(node);
  }
  const hljs = await loadCode();
  for (const node of found) {
    if (!(node instanceof HTMLElement)) continue;
    const name = [...node.classList].find((one) => one.startsWith("language-"))?.slice(9) ?? "";
    if (name && hljs.getLanguage(name) && (node.textContent ?? "").length < 60000) {
      node.innerHTML = hljs.highlight(node.textContent ?? "", { language: name, ignoreIllegals: true }).value;
    }
  }
}

/** Show the diagram of a Mermaid block, and its source on demand. Invalid source stays as it is. @param {HTMLElement} code */
async function dressDiagram(code) {
  const theme = document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  const source = code.textContent ?? "";
  const url = await diagram(source, theme === "dark");
  const pre = code.parentElement;
  if (!url || !pre) return;
  const image = document.createElement("img");
  image.src = url;
  image.alt = source;
  image.className = `diagram ${theme}`;
  const details = document.createElement("details");
  const summary = document.createElement("summary");
  summary.textContent = t("diagramSource");
  pre.replaceWith(image, details);
  details.append(summary, pre);
}

/** Add a bar above a code block: its language and a copy button. */
function frame(/** @type {HTMLElement} */ node) {
  const pre = node.parentElement;
  if (!pre || node.dataset.done) return;
  node.dataset.done = "1";
  const bar = document.createElement("div");
  bar.className = "code-bar";
  const name = document.createElement("span");
  name.textContent = [...node.classList].find((one) => one.startsWith("language-"))?.slice(9) ?? "";
  const copy = document.createElement("button");
  copy.type = "button";
  copy.textContent = t("copy");
  copy.addEventListener("click", () => {
    void copyText(node.textContent ?? "").then((done) => done && (copy.textContent = t("copied")));
  });
  bar.append(name, copy);
  const box = document.createElement("div");
  box.className = "code-box";
  pre.tabIndex = 0;
  pre.replaceWith(box);
  box.append(bar, pre);
}

/** @param {{source: string, last: boolean}} props `last`: it may still grow */
const Block = ({ source, last }) => {
  const place = useRef(/** @type {HTMLDivElement | null} */ (null));
  useLayoutEffect(() => {
    if (place.current) place.current.innerHTML = source;
  }, [source]);
  useEffect(() => {
    if (last || !place.current) return;
    void dressMaths(place.current);
    void dressCode(place.current);
  }, [source, last]);
  return html`<div dir="auto" ref=${place}></div>`;
};

/** @param {{text: string, growing?: boolean}} props */
export const Markdown = ({ text, growing = false }) => {
  const known = useMemo(() => /** @type {Known} */ ({ made: new Map(), settled: [], length: 0, links: {} }), []);
  const before = useRef("");
  const blocks = useMemo(() => {
    const grown = growing && text.startsWith(before.current);
    if (!grown) Object.assign(known, { settled: [], length: 0, links: {} });
    before.current = text;
    return blocksOf(text.replace(/\r\n?/g, "\n"), known, growing);
  }, [text, growing]);
  return html`<div class="prose">
    ${blocks.map((source, i) => html`<${Block} key=${i} source=${source} last=${growing && i === blocks.length - 1} />`)}
  </div>`;
};
