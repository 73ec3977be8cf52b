// The rendered prompt of a chat: roles, tokens, cached tokens; and the raw answer next to the parsed one.
import { json } from "../../lib/api.js";
import { html, useEffect, useState } from "../../lib/dom.js";
import { number } from "../../lib/format.js";
import { requests, useLive } from "../../lib/live.js";
import { chosen } from "../../lib/models.js";
import { t } from "../../lib/texts.js";
import { requestBody, sentence } from "../chat/generate.js";
import { messages, pathTo } from "../chat/store.js";
import { open } from "../chat/view.js";
import { ModelPicker } from "../model-picker.js";
import { spans } from "./spans.js";

const SHOWN = 6000;
/** The placeholder of an image or audio in a rendered prompt. */
const MEDIUM = /(<__media_[0-9a-f]+__>)/;
/** @typedef {import("./spans.js").Read} Read */
/** @typedef {{cached: number, prompt: number, source: [string, number], recompute: string, raw: string, parsed: any}} Answer */

/**
 * The open chat up to its newest user message, or a chat that is entered here.
 * @param {string} text @returns {import("../chat/store.js").Message[]}
 */
function asked(text) {
  const path = pathTo(messages.value, open.value.leaf);
  const end = path.findLastIndex((message) => message.role !== "assistant");
  const said = path.slice(0, end + 1);
  if (said.length) return said;
  return [{ id: "", chat: "", parent: null, role: "user", content: text, created: 0 }];
}

export const PromptView = () => {
  useLive();
  const [text, setText] = useState(t("ideaSky"));
  const [prompt, setPrompt] = useState(/** @type {{text: string, tokens: Read[]} | null} */ (null));
  const [answer, setAnswer] = useState(/** @type {Answer | null} */ (null));
  const [trouble, setTrouble] = useState("");
  const [busy, setBusy] = useState(false);
  const model = chosen.value?.id ?? "";
  const said = asked(text);
  const own = !open.value.leaf;
  const key = JSON.stringify(said.map((one) => [one.role, one.content]));
  useEffect(() => {
    if (!model) return undefined;
    const later = setTimeout(() => {
      rendered(model, said).then(
        (made) => {
          setPrompt(made);
          setTrouble("");
        },
        (error) => setTrouble(sentence(error)),
      );
    }, 250);
    setAnswer(null);
    return () => clearTimeout(later);
  }, [model, key]);
  const ask = async () => {
    setBusy(true);
    try {
      setAnswer(await answered(model, said));
      setTrouble("");
    } catch (error) {
      setTrouble(sentence(error));
    }
    setBusy(false);
  };
  return html`<div class="page">
    <header class="page-head"><h1>${t("prompt")}</h1><${ModelPicker} /></header>
    ${own
      ? html`<label class="field">${t("promptOwn")}
          <textarea rows="2" value=${text} onInput=${(/** @type {any} */ event) => setText(event.target.value)}></textarea></label>`
      : html`<p class="quiet">${t("promptOfChat", open.value.title)}</p>`}
    ${trouble && html`<p class="failure" role="alert">${trouble}</p>`}
    ${prompt && html`<${Rendered} prompt=${prompt} said=${said} answer=${answer} />`}
    <div class="row"><button type="button" class="strong" disabled=${busy || !model} onClick=${ask}>${t("askOnce")}</button>
      ${answer && html`<span class="quiet" role="status">${t("fromWhere", number(answer.cached), number(answer.prompt), t(`from_${answer.source[0]}`, answer.source[1]))}${
        answer.recompute && `. ${t("recomputedBecause", number(answer.prompt - answer.cached), t(`recomputed_${answer.recompute}`))}.`}</span>`}
    </div>
    ${answer && html`<div class="columns">
      <section aria-labelledby="raw-title"><h2 id="raw-title">${t("raw")}</h2><pre class="raw" tabindex="0">${answer.raw}</pre></section>
      <section aria-labelledby="parsed-title"><h2 id="parsed-title">${t("parsed")}</h2>
        <dl class="parsed">
          ${answer.parsed.reasoning_content && html`<dt>${t("reasoning")}</dt><dd>${answer.parsed.reasoning_content}</dd>`}
          <dt>${t("message")}</dt><dd>${answer.parsed.content || "–"}</dd>
          ${answer.parsed.tool_calls?.map((/** @type {any} */ call) => html`<dt>${t("calls", call.function.name)}</dt><dd class="code">${call.function.arguments}</dd>`)}
        </dl>
      </section>
    </div>`}
  </div>`;
};

/** @param {string} model @param {import("../chat/store.js").Message[]} said */
async function rendered(model, said) {
  const body = requestBody(model, open.value.settings, said, false);
  const { prompt } = await json("apply-template", { body });
  const parts = prompt.split(MEDIUM);
  const media = said.flatMap((one) => (one.attached ?? []).filter((file) => file.kind !== "file"));
  if (parts.length !== 2 * media.length + 1) return { text: prompt, tokens: await tokenized(model, prompt, true) };
  const { input_tokens: total } = media.length ? await json("v1/chat/completions/input_tokens", { body }) : { input_tokens: 0 };
  const texts = await Promise.all(parts.flatMap((/** @type {string} */ part, /** @type {number} */ i) => (i % 2 ? [] : [tokenized(model, part, i === 0)])));
  const rest = total - texts.flat().length; // the tokens of all media together
  const tokens = texts.flatMap((some, i) => {
    if (!i) return some;
    const n = Math.floor((rest * i) / media.length) - Math.floor((rest * (i - 1)) / media.length);
    return [{ id: -1, piece: parts[2 * i - 1], medium: media[i - 1].kind, n }, ...some];
  });
  return { text: prompt, tokens };
}

/** @param {string} model @param {string} content @param {boolean} begins @returns {Promise<Read[]>} */
async function tokenized(model, content, begins) {
  if (!content) return [];
  const body = { model, content, with_pieces: true, add_special: begins, parse_special: true };
  return (await json("tokenize", { body })).tokens;
}

/** @param {string} model @param {import("../chat/store.js").Message[]} said @returns {Promise<Answer>} */
async function answered(model, said) {
  const body = requestBody(model, open.value.settings, said, false);
  body.verbose = true;
  body.max_tokens ??= 128;
  const reply = await json("v1/chat/completions", { body });
  const { timings, choices } = reply;
  const { source, recompute } = await ended(reply.id);
  return {
    ...{ cached: timings.cache_n, prompt: timings.cache_n + timings.prompt_n, source, recompute },
    ...{ raw: reply.__verbose?.content ?? "", parsed: choices[0].message },
  };
}

/**
 * Return the record of an ended request, which arrives up to half a second later or not at all.
 * @param {string} id @returns {Promise<{source: [string, number], recompute: string}>}
 */
function ended(id) {
  return new Promise((resolve) => {
    let stop = () => {};
    const late = setTimeout(() => {
      stop();
      resolve({ source: ["none", -1], recompute: "" });
    }, 4000);
    stop = requests.subscribe((all) => {
      const found = all.find((one) => one.request === id);
      if (!found) return;
      clearTimeout(late);
      queueMicrotask(() => stop());
      resolve(found);
    });
  });
}

/** @param {{prompt: {text: string, tokens: Read[]}, said: import("../chat/store.js").Message[], answer: Answer | null}} props */
const Rendered = ({ prompt, said, answer }) => {
  const cached = answer ? answer.cached : -1;
  const found = spans(prompt.text, prompt.tokens, said, open.value.settings.system);
  const total = found.reduce((sum, one) => sum + one.n, 0);
  let before = 0;
  let passed = cached <= 0;
  return html`<figure class="rendered">
    <figcaption>
      ${["system", "user", "assistant", "tool", "template"].map(
        (role) => found.some((one) => one.role === role) && html`<span key=${role} class="small"><i class=${`key role-${role}`}></i>${t(`role_${role}`)}</span>`,
      )}
      <span class="stretch"></span><span class="quiet small">${t("nTokens", number(total))}</span>
    </figcaption>
    <div class="token-text" tabindex="0">${found.slice(0, SHOWN).map((one) => {
      const at = before;
      before += one.n;
      const recompute = !passed && at >= cached;
      passed ||= recompute;
      return html`${recompute && html`<span class="boundary" title=${answer?.recompute ? t(`recomputed_${answer.recompute}`) : ""}>${t("recomputedFrom")}</span>`}<span
          class=${`tok role-${one.role}${at < cached ? " cached" : ""}`} title=${one.medium ? "" : `${one.id}`}>${one.medium ? t(`medium_${one.medium}`, number(one.n)) : shown(one.text)}</span>`;
    })}</div>
    ${found.length > SHOWN && html`<p class="quiet">${t("andMore", number(found.length - SHOWN))}</p>`}
  </figure>`;
};

/** Line breaks as a sign and a break. @param {string} text */
const shown = (text) => text.replaceAll("\n", "↵\n");
