// Markdown as people read it: parsed by marked, cleaned by DOMPurify, code and maths dressed up once they are complete.
import createPurifier from "../../vendor/dompurify.js";
import { Marked } from "../../vendor/marked.js";
import { copyText } from "./clipboard.js";
import { html, useEffect, useLayoutEffect, useMemo, useRef } from "./dom.js";
import { t } from "./texts.js";

const MATHS = [
  { open: "$$", close: "$$", display: true },
  { open: "\\[", close: "\\]", display: true },
  { open: "\\(", close: "\\)", display: false },
  { open: "$", close: "$", display: false },
];

/** @param {string} text */
const escaped = (text) => text.replace(/[&<>"]/g, (c) => `&#${c.charCodeAt(0)};`);

/** Maths at the beginning of `text`. A lone dollar is money: what it opens must not begin or end with a space. */
function mathsAt(/** @type {string} */ text) {
  for (const { open, close, display } of MATHS) {
    if (!text.startsWith(open)) continue;
    const end = text.indexOf(close, open.length);
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

const marked = new Marked({ gfm: true, breaks: true });
marked.use(/** @type {any} */ ({ extensions: [mathsRule("block"), mathsRule("inline")] }));

const purify = createPurifier(window);
purify.addHook("afterSanitizeAttributes", (/** @type {Element} */ node) => {
  if (node.tagName === "A") {
    node.setAttribute("target", "_blank");
    node.setAttribute("rel", "noopener noreferrer");
  }
});
const RULES = {
  FORBID_TAGS: ["style", "form", "input", "button", "iframe", "object", "embed", "svg", "math", "video", "audio"],
  FORBID_ATTR: ["style", "id", "name"],
  ALLOW_DATA_ATTR: true,
};

/** The blocks of a text, each with its HTML; what did not change since the last time is not parsed again. */
function blocksOf(/** @type {string} */ text, /** @type {Map<string, string>} */ known) {
  const tokens = marked.lexer(text);
  const links = tokens.links;
  const blocks = [];
  for (const token of tokens) {
    if (token.type === "space") continue;
    let made = known.get(token.raw);
    if (made === undefined) {
      const one = /** @type {any} */ ([token]);
      one.links = links;
      made = /** @type {string} */ (purify.sanitize(marked.parser(one), RULES));
      known.set(token.raw, made);
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

/** KaTeX writes elements, not text with style attributes, which the page's policy would not let pass. */
async function dressMaths(/** @type {Element} */ root) {
  const found = root.querySelectorAll(".maths:not([data-done])");
  if (!found.length) return;
  const katex = await loadMaths();
  for (const node of found) {
    if (!(node instanceof HTMLElement) || node.dataset.done) continue;
    node.dataset.done = "1";
    const tex = node.textContent ?? "";
    try {
      katex.render(tex, node, { displayMode: node.dataset.display === "true", throwOnError: false, strict: "ignore" });
    } catch {
      node.textContent = tex;
    }
  }
}

async function dressCode(/** @type {Element} */ root) {
  const found = root.querySelectorAll("pre > code:not([data-done])");
  if (!found.length) return;
  for (const node of found) {
    if (node instanceof HTMLElement) frame(node);
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

/** A bar above a piece of code: its language, and a button that copies it. */
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
  return html`<div ref=${place}></div>`;
};

/** @param {{text: string, growing?: boolean}} props */
export const Markdown = ({ text, growing = false }) => {
  const known = useMemo(() => new Map(), []);
  const blocks = useMemo(() => blocksOf(text, known), [text]);
  return html`<div class="prose">
    ${blocks.map((source, i) => html`<${Block} key=${i} source=${source} last=${growing && i === blocks.length - 1} />`)}
  </div>`;
};
