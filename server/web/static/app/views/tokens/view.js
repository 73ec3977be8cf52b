// The tokens of an answer: probability, alternatives, and regeneration from any token.
import { ApiError, call, events } from "../../lib/api.js";
import { classes, html, useEffect, useRef, useState } from "../../lib/dom.js";
import { number, percent } from "../../lib/format.js";
import { IconButton } from "../../lib/icons.js";
import { choose, chosen, models } from "../../lib/models.js";
import { link, place } from "../../lib/router.js";
import { t } from "../../lib/texts.js";
import { ModelPicker } from "../model-picker.js";
import { sentence } from "../chat/generate.js";
import { messages } from "../chat/store.js";
import { another, open, show } from "../chat/view.js";
import { scored } from "./scored.js";

/**
 * @typedef {{token: string, logprob: number, bytes: number[]}} Piece
 * @typedef {import("../chat/store.js").Message} Message
 * @typedef {Piece & {top_logprobs: Piece[], mask?: {n_allowed: number, forbidden: Piece[]}}} Token
 */

const ALTERNATIVES = 8;
const decoder = new TextDecoder();
/** @param {Token[]} tokens */
const written = (tokens) => decoder.decode(new Uint8Array(tokens.flatMap((one) => one.bytes)));
/** What the model would rather have said, and was not allowed to. @param {Token} token */
const better = (token) => (token.mask?.forbidden ?? []).filter((one) => one.logprob > token.logprob + 1e-6);

export const TokensView = () => {
  const [text, setText] = useState(t("ideaStory"));
  const [grammar, setGrammar] = useState("");
  const [greedy, setGreedy] = useState(true);
  const [tokens, setTokens] = useState(/** @type {Token[]} */ ([]));
  const [kept, setKept] = useState(0); // tokens of the given prefix, not generated
  const [at, setAt] = useState(-1);
  const [trouble, setTrouble] = useState("");
  const running = useRef(/** @type {AbortController | null} */ (null));
  const [busy, setBusy] = useState(false);
  const [answer, setAnswer] = useState(/** @type {{message: Message, prompt: (begun: string) => unknown} | null} */ (null)); // of a chat
  const model = chosen.value?.id ?? "";
  const [chat, id] = place.value.rest;
  const asked = useRef(""); // the answer that is shown
  useEffect(() => {
    if (!id || !model) return setAnswer(null);
    let here = true;
    const load = async () => {
      await show(chat);
      const message = messages.value.get(id);
      if (!message) throw new Error(t("noAnswer"));
      const by = message.model ?? "";
      if (asked.current !== id && by !== model && models.value?.some((one) => one.id === by)) choose(by); // it is asked first
      asked.current = id;
      if (chosen.value?.id !== model) return;
      const found = await scored(model, message, ALTERNATIVES);
      if (!here) return;
      setAnswer({ message, prompt: found.prompt });
      setTokens(found.tokens);
      setKept(0);
      setAt(-1);
    };
    setTrouble("");
    setTokens([]);
    setAnswer(null);
    setBusy(true);
    load().catch((error) => here && setTrouble(sentence(error))).finally(() => here && setBusy(false));
    return () => {
      here = false;
    };
  }, [chat, id, model]);

  /** @param {Token[]} begun what the answer begins with */
  const ask = async (begun) => {
    running.current?.abort();
    const stop = (running.current = new AbortController());
    setTokens(begun);
    setKept(begun.length);
    setAt(-1);
    setTrouble("");
    setBusy(true);
    const prefix = written(begun);
    /** @type {Record<string, any>} */
    const body = { model, stream: true, max_tokens: 160 };
    if (answer) Object.assign(body, { prompt: answer.prompt(prefix), logprobs: ALTERNATIVES });
    else {
      const messages = [{ role: "user", content: text }, ...(prefix ? [{ role: "assistant", content: prefix }] : [])];
      Object.assign(body, { messages, logprobs: true, top_logprobs: ALTERNATIVES });
    }
    if (greedy) body.temperature = 0;
    if (grammar.trim() && !prefix) Object.assign(body, { grammar, n_forbidden: ALTERNATIVES });
    try {
      let all = begun;
      for await (const { data } of events(await call(answer ? "v1/completions" : "v1/chat/completions", { body, signal: stop.signal }))) {
        if (data.error) throw new ApiError(data.error.code, data.error.message, data.error.type);
        const fresh = data.choices?.[0]?.logprobs?.content;
        if (fresh?.length) setTokens((all = [...all, ...fresh]));
      }
    } catch (error) {
      if (!stop.signal.aborted) setTrouble(sentence(error));
    }
    setBusy(false);
  };
  const token = tokens[at];
  return html`<div class="page">
    <header class="page-head"><h1>${t("tokens")}</h1><${ModelPicker} /></header>
    ${id
      ? html`<p class="quiet">${t("tokensOfChat", open.value.title)} <a href=${link("chat", chat)}>${t("toChat")}</a> · <a href=${link("tokens")}>${t("askAnother")}</a></p>
        ${busy && html`<p class="quiet" role="status">${t("looking")}</p>`}`
      : html`<form class="ask" onSubmit=${(/** @type {Event} */ event) => {
      event.preventDefault();
      void ask([]);
    }}>
      <label class="field">${t("message")}<textarea rows="2" value=${text} onInput=${(/** @type {any} */ event) => setText(event.target.value)}></textarea></label>
      <label class="field">${t("grammar")}<textarea rows="2" class="code" value=${grammar} placeholder=${'root ::= "yes" | "no"'}
        onInput=${(/** @type {any} */ event) => setGrammar(event.target.value)}></textarea></label>
      <div class="row">
        <label class="check"><input type="checkbox" checked=${greedy} onChange=${() => setGreedy(!greedy)} /> ${t("greedy")}</label>
        <span class="stretch"></span>
        ${busy
          ? html`<${IconButton} icon="stop" label=${t("stop")} tone="strong" onClick=${() => running.current?.abort()} />`
          : html`<button type="submit" class="strong" disabled=${!model || !text.trim()}>${t("answerMe")}</button>`}
      </div>
    </form>`}
    ${trouble && html`<p class="failure" role="alert">${trouble}</p>`}
    ${kept > 0 && !id && grammar.trim() && html`<p class="quiet">${t("branchIsFree")}</p>`}
    ${tokens.length > 0 && html`
      <p class="legend small quiet"><span>${t("sure")}</span><span class="scale" aria-hidden="true"></span><span>${t("unsure")}</span>
        <span class="stretch"></span>${summary(tokens)}</p>
      <div class="token-answer" role="group" aria-label=${t("tokens")}>${tokens.map(
        (one, i) => html`<button type="button" key=${i} class=${classes("chip", `p${Math.min(5, Math.floor(-one.logprob * 1.2))}`,
          i < kept && "given", better(one).length > 0 && "forced", i === at && "chosen")} aria-pressed=${i === at}
          title=${title(one)} onClick=${() => setAt(i === at ? -1 : i)}>${shown(one.token)}</button>`,
      )}</div>
      <${Masks} tokens=${tokens} />`}
    ${token && html`<${Alternatives} token=${token} onBranch=${(/** @type {Token} */ other) => ask([...tokens.slice(0, at), other])} />`}
    ${tokens.length > 0 && !token && html`<p class="quiet">${t("tokensAbout")}</p>`}
    ${answer && kept > 0 && !answer.message.reasoning && html`<div class="row"><button type="button" class="strong" disabled=${busy}
      onClick=${() => another(answer.message, written(tokens))}>${t("keepVersion")}</button></div>`}
  </div>`;
};

/** @param {Token[]} tokens */
function summary(tokens) {
  const mean = tokens.reduce((sum, one) => sum + one.logprob, 0) / tokens.length;
  return html`<span>${t("nTokens", number(tokens.length))}</span><span>${t("perplexity", number(Math.exp(-mean), 2))}</span>`;
}

/** @param {string} text */
const shown = (text) => text.replaceAll("\n", "↵").replace(/^ /, "\u00b7") || "∅";

/** @param {Token} token */
function title(token) {
  const sure = percent(Math.exp(token.logprob));
  return token.mask ? `${sure} · ${t("maskSize", number(token.mask.n_allowed))}` : sure;
}

/** How much the grammar left at each step, a bar each, by its logarithm. @param {{tokens: Token[]}} props */
const Masks = ({ tokens }) => {
  const sizes = tokens.flatMap((one) => (one.mask ? [one.mask.n_allowed] : []));
  if (!sizes.length) return null;
  const most = Math.max(1, ...sizes.map((n) => Math.log2(1 + n)));
  return html`<figure class="masks">
    <svg viewBox=${`0 0 ${Math.max(40, sizes.length) * 6} 40`} preserveAspectRatio="none" role="img"
      aria-label=${t("maskSizes", number(Math.min(...sizes)), number(Math.max(...sizes)))}>
      ${sizes.map((n, i) => {
        const height = Math.max(1, (38 * Math.log2(1 + n)) / most);
        return html`<rect key=${i} x=${i * 6} y=${40 - height} width="5" height=${height}><title>${`${shown(tokens[i]?.token ?? "")}: ${number(n)}`}</title></rect>`;
      })}
    </svg>
    <figcaption class="small quiet">${t("maskSizes", number(Math.min(...sizes)), number(Math.max(...sizes)))}</figcaption>
  </figure>`;
};

/** @param {{p: number}} props */
const Probability = ({ p }) => html`
  <svg viewBox="0 0 100 6" preserveAspectRatio="none" aria-hidden="true"><rect width=${Math.max(0.5, p * 100)} height="6" rx="1" /></svg>
  <span class="right">${p < 0.0005 ? "< 0.1 %" : `${number(p * 100, 1)} %`}</span>`;

/** @param {{token: Token, onBranch: (token: Token) => void}} props */
const Alternatives = ({ token, onBranch }) => {
  const all = token.top_logprobs.some((one) => one.token === token.token) ? token.top_logprobs : [...token.top_logprobs, token];
  const forbidden = token.mask?.forbidden ?? [];
  return html`<section class="alternatives" aria-labelledby="alternatives-title">
    <h2 id="alternatives-title">${t("instead")}</h2>
    <ul>${all.map((one) => {
      const p = Math.exp(one.logprob);
      const own = one.token === token.token;
      const barred = forbidden.some((other) => other.token === one.token);
      return html`<li key=${one.token}>
        <button type="button" class=${classes("alternative", own && "own", barred && "barred")} disabled=${own}
          onClick=${() => onBranch({ ...one, top_logprobs: all })}>
          <span class="code">${shown(one.token)}</span>
          <${Probability} p=${p} />
        </button></li>`;
    })}</ul>
    ${token.mask && html`<h3>${t("forbidden")}</h3>
      <p class="quiet">${t("maskSize", number(token.mask.n_allowed))} ${forbidden.length > 0 && t("forbade", better(token).length)}</p>
      <ul class="forbidden">${forbidden.map((one) => html`<li key=${one.token} class="alternative barred">
        <span class="code">${shown(one.token)}</span><${Probability} p=${Math.exp(one.logprob)} /></li>`)}</ul>`}
  </section>`;
};
