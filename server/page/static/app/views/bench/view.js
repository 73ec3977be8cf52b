// How fast: streams side by side, against this server or another address, with a plot of each round.
import { address, apiKey, events } from "../../lib/api.js";
import { html, useRef, useState } from "../../lib/dom.js";
import { number, seconds, short } from "../../lib/format.js";
import { chosen } from "../../lib/models.js";
import { t } from "../../lib/texts.js";
import { ModelPicker } from "../model-picker.js";

/** @typedef {{streams: number, rate: number, first: number, gap: number}} Round */

const ROUNDS = [1, 2, 4, 8, 16];
const TOKENS = 64;
const WORDS = "harbour boat rope lantern book wind stone river cloud bread window train garden letter winter coin".split(" ");

/** A prompt that no cache holds. @param {number} n */
const fresh = (n) => Array.from({ length: n }, () => WORDS[Math.floor(Math.random() * WORDS.length)]).join(" ");

/** @param {number[]} values */
const median = (values) => [...values].sort((a, b) => a - b)[Math.floor(values.length / 2)] ?? Number.NaN;

/** One stream: the times at which tokens came. @param {string} model @param {AbortSignal} signal */
async function stream(model, signal) {
  /** @type {Record<string, string>} */
  const headers = { "Content-Type": "application/json" };
  if (apiKey.value) headers.Authorization = `Bearer ${apiKey.value}`;
  const messages = [{ role: "user", content: `Write a story with these words: ${fresh(40)}` }];
  const body = { model, messages, stream: true, max_tokens: TOKENS, ignore_eos: true, temperature: 0.8 };
  const asked = performance.now();
  const reply = await fetch(address("v1/chat/completions"), { method: "POST", headers, body: JSON.stringify(body), signal });
  if (!reply.ok) throw new Error(`${reply.status}: ${(await reply.text()).slice(0, 200)}`);
  const came = [];
  for await (const { data } of events(reply)) {
    if (data.error) throw new Error(data.error.message);
    const delta = data.choices?.[0]?.delta;
    if (delta?.content || delta?.reasoning_content) came.push(performance.now() - asked);
  }
  return came;
}

/** @param {string} model @param {number} n @param {AbortSignal} signal @returns {Promise<Round>} */
async function round(model, n, signal) {
  const began = performance.now();
  const all = await Promise.all(Array.from({ length: n }, () => stream(model, signal)));
  const took = (performance.now() - began) / 1000;
  const gaps = all.flatMap((came) => came.slice(1).map((at, i) => at - came[i]));
  return {
    streams: n,
    rate: (n * TOKENS) / took,
    first: median(all.map((came) => came[0])) / 1000,
    gap: median(gaps) / 1000,
  };
}

export const BenchView = () => {
  const [rounds, setRounds] = useState(/** @type {Round[]} */ ([]));
  const [busy, setBusy] = useState(0);
  const [trouble, setTrouble] = useState("");
  const stop = useRef(/** @type {AbortController | null} */ (null));
  const model = chosen.value?.id ?? "";
  const run = async () => {
    const control = (stop.current = new AbortController());
    setRounds([]);
    setTrouble("");
    try {
      setBusy(ROUNDS[0]);
      await stream(model, control.signal); // the model may have to be loaded
      const done = [];
      for (const n of ROUNDS) {
        setBusy(n);
        done.push(await round(model, n, control.signal));
        setRounds([...done]);
      }
    } catch (error) {
      if (!control.signal.aborted) setTrouble(error instanceof Error ? error.message : String(error));
    }
    setBusy(0);
  };
  return html`<div class="page">
    <header class="page-head"><h1>${t("bench")}</h1><${ModelPicker} /><span class="stretch"></span>
      ${busy
        ? html`<span class="quiet" role="status">${t("streamsNow", busy)}</span><button type="button" onClick=${() => stop.current?.abort()}>${t("stop")}</button>`
        : html`<button type="button" class="strong" disabled=${!model} onClick=${run}>${t("measure")}</button>`}
    </header>
    <p class="quiet">${t("benchAbout", TOKENS)}</p>
    ${trouble && html`<p class="failure" role="alert">${trouble}</p>`}
    ${rounds.length > 0 && html`<${Bars} rounds=${rounds} /><div class="table-box" tabindex="0"><table>
      <thead><tr><th scope="col" class="right">${t("streams")}</th><th scope="col" class="right">${t("generatedRate")}</th>
        <th scope="col" class="right">${t("firstTokens")}</th><th scope="col" class="right">${t("gaps")}</th></tr></thead>
      <tbody>${rounds.map(
        (one) => html`<tr key=${one.streams}><td class="right">${number(one.streams)}</td><td class="right">${short(one.rate)}/s</td>
          <td class="right">${seconds(one.first)}</td><td class="right">${seconds(one.gap)}</td></tr>`,
      )}</tbody></table></div>`}
  </div>`;
};

/** @param {{rounds: Round[]}} props */
const Bars = ({ rounds }) => {
  const most = Math.max(...rounds.map((one) => one.rate));
  const label = rounds.map((one) => `${t("streamsNow", one.streams)}: ${short(one.rate)}/s`).join(", ");
  return html`<svg class="bars" viewBox="0 0 500 190" role="img" aria-label=${label}>
    ${rounds.map((one, i) => {
      const height = (140 * one.rate) / most;
      const x = 20 + i * 95;
      return html`<g key=${one.streams}>
        <rect x=${x} y=${160 - height} width="62" height=${height} rx="4" />
        <text x=${x + 31} y=${152 - height} text-anchor="middle">${short(one.rate)}</text>
        <text x=${x + 31} y="180" text-anchor="middle" class="quiet">${one.streams}</text>
      </g>`;
    })}
  </svg>`;
};
