// Benchmark: scenarios of `llamapool bench` against this server and, optionally, another URL.
import { ApiError, call, events } from "../../lib/api.js";
import { config } from "../../lib/config.js";
import { classes, html, signal, useState } from "../../lib/dom.js";
import { short } from "../../lib/format.js";
import { chosen } from "../../lib/models.js";
import { t } from "../../lib/texts.js";
import { ModelPicker } from "../model-picker.js";

/**
 * @typedef {"this" | "other"} Where
 * @typedef {{scenario: string, address: Where, figures?: Record<string, number>, failure?: string}} Result
 * @typedef {{running: string, address: Where, number: number, of: number}} Running
 */

const FIRST = ["prefix", "long"];
const WHERE = /** @type {const} */ (["this", "other"]);

/** The last run: other views may be looked at meanwhile. */
const results = signal(/** @type {Result[]} */ ([]));
const now = signal(/** @type {Running | null} */ (null));
const control = signal(/** @type {AbortController | null} */ (null));
const trouble = signal("");

/** @param {Record<string, any>} body */
async function run(body) {
  const { signal } = (control.value = new AbortController());
  results.value = [];
  trouble.value = "";
  try {
    for await (const { data } of events(await call("page/bench", { body, signal }))) {
      if (data.running) now.value = data;
      else results.value = [...results.value, data];
    }
  } catch (error) {
    if (!signal.aborted) trouble.value = error instanceof ApiError ? error.message : String(error);
  }
  now.value = control.value = null;
}

export const BenchView = () => {
  const [wanted, setWanted] = useState(new Set(FIRST));
  const [form, setForm] = useState({ parallel: "4", scale: "0.2", other: "", other_model: "", other_key: "" });
  const model = chosen.value?.id ?? "";
  /** @param {keyof typeof form} name */
  const input = (name) => (/** @type {any} */ event) => setForm({ ...form, [name]: event.target.value });
  const start = () => {
    const scenarios = config.value.scenarios.filter((name) => wanted.has(name));
    const { parallel, scale, ...other } = form;
    if (Number.isNaN(Number(parallel))) trouble.value = t("notANumber", t("clientsAtOnce"), parallel);
    else void run({ model, scenarios, parallel: Number(parallel), scale: Number(scale), ...(other.other ? other : {}) });
  };
  return html`<div class="page">
    <header class="page-head"><h1>${t("bench")}</h1><${ModelPicker} /><span class="stretch"></span>
      ${now.value && html`<span class="quiet" role="status">${
        t("runsNow", now.value.number + 1, now.value.of, t(`scene_${now.value.running}`), t(`address_${now.value.address}`))}</span>`}
      ${control.value
        ? html`<button type="button" onClick=${() => control.value?.abort()}>${t("stop")}</button>`
        : html`<button type="button" class="strong" disabled=${!model || !wanted.size} onClick=${start}>${t("measure")}</button>`}
    </header>
    <p class="quiet">${t("benchAbout")}</p>
    <fieldset><legend>${t("scenarios")}</legend><div class="scenes">${config.value.scenarios.map(
      (name) => html`<label class="check" key=${name}><input type="checkbox" checked=${wanted.has(name)} onChange=${() => {
        const next = new Set(wanted);
        if (!next.delete(name)) next.add(name);
        setWanted(next);
      }} /> ${t(`scene_${name}`)}</label>`,
    )}</div></fieldset>
    <div class="order">
      <label class="field">${t("clientsAtOnce")}<input inputmode="numeric" value=${form.parallel} onInput=${input("parallel")} /></label>
      <label class="field">${t("lengths")}<select onChange=${input("scale")}>
        <option value="0.2">${t("quick")}</option><option value="1">${t("whole")}</option></select></label>
      <label class="field">${t("otherAddress")}<input value=${form.other} placeholder=${`${location.protocol}//127.0.0.1:8081`} spellcheck="false" onInput=${input("other")} /></label>
      ${form.other && html`<label class="field">${t("otherModel")}<input value=${form.other_model} spellcheck="false" onInput=${input("other_model")} /></label>
        <label class="field">${t("otherKey")}<input type="password" autocomplete="off" value=${form.other_key} onInput=${input("other_key")} /></label>`}
    </div>
    ${trouble.value && html`<p class="failure" role="alert">${trouble.value}</p>`}
    ${[...new Set(results.value.map((one) => one.scenario))].map(
      (name) => html`<${Scene} key=${name} name=${name} results=${results.value.filter((one) => one.scenario === name)} />`,
    )}
  </div>`;
};

/** One scenario: its first figure as bars, all of them as a table. @param {{name: string, results: Result[]}} props */
const Scene = ({ name, results }) => {
  const figures = [...new Set(results.flatMap((one) => Object.keys(one.figures ?? {})))];
  const at = WHERE.flatMap((where) => results.filter((one) => one.address === where));
  const title = `scene-${name}`;
  return html`<section aria-labelledby=${title} class="scene">
    <h2 id=${title}>${t(`scene_${name}`)}</h2>
    ${at.map((one) => one.failure && html`<p class="failure" key=${one.address}>${t(`address_${one.address}`)}: ${one.failure}</p>`)}
    ${figures.length > 0 && html`<${Bars} figure=${figures[0]} results=${at} />
      <div class="table-box" tabindex="0"><table>
        <thead><tr><th scope="col">${t("figure")}</th>${at.map((one) => html`<th scope="col" class="right" key=${one.address}>${t(`address_${one.address}`)}</th>`)}</tr></thead>
        <tbody>${figures.map(
          (figure) => html`<tr key=${figure}><td>${figure}</td>${at.map((one) => html`<td class="right" key=${one.address}>${short(one.figures?.[figure] ?? Number.NaN)}</td>`)}</tr>`,
        )}</tbody>
      </table></div>`}
  </section>`;
};

/** @param {{figure: string, results: Result[]}} props */
const Bars = ({ figure, results }) => {
  const values = results.map((one) => one.figures?.[figure] ?? 0);
  const most = Math.max(...values) || 1;
  const label = results.map((one, i) => `${t(`address_${one.address}`)}: ${short(values[i])} ${figure}`).join(", ");
  return html`<svg class="compare" viewBox=${`0 0 500 ${results.length * 30}`} role="img" aria-label=${label}>
    ${results.map(
      (one, i) => html`<g key=${one.address}>
        <rect class=${classes(one.address)} y=${i * 30 + 3} width=${Math.max(1, (360 * values[i]) / most)} height="22" rx="4" />
        <text x=${(360 * values[i]) / most + 8} y=${i * 30 + 19}>${short(values[i])} ${figure}</text>
      </g>`,
    )}
  </svg>`;
};
