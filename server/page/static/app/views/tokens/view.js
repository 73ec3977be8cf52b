// An answer as tokens: how sure the model was of each, what it would have said instead, and from where to try that.
import { ApiError, call, events } from "../../lib/api.js";
import { classes, html, useRef, useState } from "../../lib/dom.js";
import { number, percent } from "../../lib/format.js";
import { IconButton } from "../../lib/icons.js";
import { chosen } from "../../lib/models.js";
import { t } from "../../lib/texts.js";
import { ModelPicker } from "../model-picker.js";
import { sentence } from "../chat/generate.js";

/** @typedef {{token: string, logprob: number, bytes: number[], top_logprobs: {token: string, logprob: number, bytes: number[]}[]}} Token */

const ALTERNATIVES = 8;
const decoder = new TextDecoder();
/** Those above the chosen one, if the most probable one is always taken: something forbade them. @param {Token} token */
const better = (token) => token.top_logprobs.filter((one) => one.logprob > token.logprob + 1e-6);

export const TokensView = () => {
  const [text, setText] = useState("Tell me a short story.");
  const [grammar, setGrammar] = useState("");
  const [greedy, setGreedy] = useState(true);
  const [tokens, setTokens] = useState(/** @type {Token[]} */ ([]));
  const [kept, setKept] = useState(0); // tokens that were given, not generated
  const [at, setAt] = useState(-1);
  const [trouble, setTrouble] = useState("");
  const running = useRef(/** @type {AbortController | null} */ (null));
  const [busy, setBusy] = useState(false);
  const model = chosen.value?.id ?? "";

  /** @param {Token[]} begun what the answer begins with */
  const ask = async (begun) => {
    running.current?.abort();
    const stop = (running.current = new AbortController());
    setTokens(begun);
    setKept(begun.length);
    setAt(-1);
    setTrouble("");
    setBusy(true);
    const prefix = decoder.decode(new Uint8Array(begun.flatMap((one) => one.bytes)));
    /** @type {Record<string, any>} */
    const body = {
      ...{ model, stream: true, logprobs: true, top_logprobs: ALTERNATIVES, max_tokens: 160 },
      messages: [{ role: "user", content: text }, ...(prefix ? [{ role: "assistant", content: prefix }] : [])],
    };
    if (greedy) body.temperature = 0;
    if (grammar.trim() && !prefix) body.grammar = grammar;
    try {
      let all = begun;
      for await (const { data } of events(await call("v1/chat/completions", { body, signal: stop.signal }))) {
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
    <form class="ask" onSubmit=${(/** @type {Event} */ event) => {
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
    </form>
    ${trouble && html`<p class="failure" role="alert">${trouble}</p>`}
    ${tokens.length > 0 && html`
      <p class="legend small quiet"><span>${t("sure")}</span><span class="scale" aria-hidden="true"></span><span>${t("unsure")}</span>
        <span class="stretch"></span>${summary(tokens)}</p>
      <div class="token-answer" role="group" aria-label=${t("tokens")}>${tokens.map(
        (one, i) => html`<button type="button" key=${i} class=${classes("chip", `p${Math.min(5, Math.floor(-one.logprob * 1.2))}`,
          i < kept && "given", greedy && better(one).length > 0 && "forced", i === at && "chosen")} aria-pressed=${i === at}
          title=${percent(Math.exp(one.logprob))} onClick=${() => setAt(i === at ? -1 : i)}>${shown(one.token)}</button>`,
      )}</div>`}
    ${token && html`<${Alternatives} token=${token} greedy=${greedy} onBranch=${(/** @type {Token} */ other) => ask([...tokens.slice(0, at), other])} />`}
    ${tokens.length > 0 && !token && html`<p class="quiet">${t("tokensAbout")}</p>`}
  </div>`;
};

/** @param {Token[]} tokens */
function summary(tokens) {
  const mean = tokens.reduce((sum, one) => sum + one.logprob, 0) / tokens.length;
  return html`<span>${t("nTokens", number(tokens.length))}</span><span>${t("perplexity", number(Math.exp(-mean), 2))}</span>`;
}

/** @param {string} text */
const shown = (text) => text.replaceAll("\n", "↵").replace(/^ /, "\u00b7") || "∅";

/** @param {{token: Token, greedy: boolean, onBranch: (token: Token) => void}} props */
const Alternatives = ({ token, greedy, onBranch }) => {
  const all = token.top_logprobs.some((one) => one.token === token.token) ? token.top_logprobs : [...token.top_logprobs, token];
  const forbidden = greedy ? better(token) : [];
  return html`<section class="alternatives" aria-labelledby="alternatives-title">
    <h2 id="alternatives-title">${t("instead")}</h2>
    ${forbidden.length > 0 && html`<p class="quiet">${t("forbade", forbidden.length)}</p>`}
    <ul>${all.map((one) => {
      const p = Math.exp(one.logprob);
      const own = one.token === token.token;
      const barred = forbidden.some((other) => other.token === one.token);
      return html`<li key=${one.token}>
        <button type="button" class=${classes("alternative", own && "own", barred && "barred")} disabled=${own}
          onClick=${() => onBranch({ ...one, top_logprobs: all })}>
          <span class="code">${shown(one.token)}</span>
          <svg viewBox="0 0 100 6" preserveAspectRatio="none" aria-hidden="true"><rect width=${Math.max(0.5, p * 100)} height="6" rx="1" /></svg>
          <span class="right">${p < 0.0005 ? "< 0.1 %" : `${number(p * 100, 1)} %`}</span>
        </button></li>`;
    })}</ul>
  </section>`;
};
