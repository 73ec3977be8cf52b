// The engine: slots, queue, batches of the last steps, caches, adapters.
import { html, useState } from "../../lib/dom.js";
import { number, percent, seconds, short } from "../../lib/format.js";
import { state, steps, tiers, trouble, useLive } from "../../lib/live.js";
import { t } from "../../lib/texts.js";
import { Adapters } from "./adapters.js";
import { Slots } from "./slots.js";
import { Strip } from "./strip.js";
import { Tiers } from "./tiers.js";
import { leaves, Tree } from "./tree.js";
import { CancelButton, PartsLegend } from "./waterfall.js";

/** @typedef {import("../../lib/live.js").LiveModel} LiveModel */

export const EngineView = () => {
  useLive();
  const [name, setName] = useState("");
  const models = (state.value?.models ?? []).filter((model) => model.engine);
  const model = models.find((one) => one.id === name) ?? models[0];
  return html`
    <div class="page">
      <header class="page-head">
        <h1>${t("engine")}</h1>
        ${models.length > 1 &&
        html`<label class="picker"><span class="hidden">${t("model")}</span>
          <select onChange=${(/** @type {any} */ event) => setName(event.target.value)}>
            ${models.map((one) => html`<option key=${one.id} selected=${one === model}>${one.id}</option>`)}
          </select>
        </label>`}
        ${models.length === 1 && html`<span class="quiet">${model?.id}</span>`}
      </header>
      ${trouble.value && html`<p class="notice warn" role="status">${trouble.value}</p>`}
      ${model ? html`<${Shown} key=${model.id} model=${model} />` : html`<p class="quiet empty">${t(state.value ? "noEngine" : "looking")}</p>`}
    </div>
  `;
};

/** @param {{model: LiveModel}} props */
const Shown = ({ model }) => {
  const engine = /** @type {import("../../lib/live.js").Engine} */ (model.engine);
  const now = state.value?.at ?? 0;
  const recent = (steps.value.get(model.id) ?? []).filter(([, at]) => now - at < 5000);
  const span = recent.length > 1 ? (now - recent[0][1]) / 1000 : 0;
  const rate = (/** @type {number} */ i) => (span ? recent.reduce((sum, step) => sum + Number(step[i]), 0) / span : 0);
  const busy = engine.slots.filter((slot) => slot.choice).length;
  const [drafted, accepted] = engine.drafts;
  const kept = tiers.value[model.id] ?? {};
  return html`
    <dl class="figures">
      <${Figure} label=${t("slotsBusy")} value=${`${busy} / ${engine.slots.length}`} />
      <${Figure} label=${t("waiting")} value=${number(engine.n_waiting)} />
      <${Figure} label=${t("generatedRate")} value=${short(rate(3))} unit="/s" />
      <${Figure} label=${t("promptRate")} value=${short(rate(5))} unit="/s" />
      <${Figure} label=${t("hitRate")} value=${percent(engine.cached_tokens / (engine.cached_tokens + engine.prompt_tokens))} />
      ${drafted > 0 && html`<${Figure} label=${t("acceptanceRate")} value=${percent(accepted / drafted)} />`}
      ${engine.preempted > 0 && html`<${Figure} label=${t("preempted")} value=${number(engine.preempted)} />`}
    </dl>
    <section aria-labelledby="steps-title">
      <h2 id="steps-title">${t("steps")}</h2>
      <${Strip} steps=${steps.value.get(model.id) ?? []} />
    </section>
    <section aria-labelledby="slots-title">
      <h2 id="slots-title">${t("slots")}</h2>
      ${busy > 0 && html`<${PartsLegend} />`}
      <${Slots} model=${model} now=${now} />
    </section>
    ${engine.waiting.length > 0 && html`<section aria-labelledby="queue-title">
      <h2 id="queue-title">${t("queue")}</h2>
      <${Queue} waiting=${engine.waiting} n=${engine.n_waiting} now=${now} />
    </section>`}
    <div class="columns">
      <section aria-labelledby="tree-title">
        <h2 id="tree-title">${t("prefixes")}</h2>
        <${Tree} held=${leaves(engine.slots, kept)} shared=${engine.shared} />
      </section>
      <section aria-labelledby="tiers-title">
        <h2 id="tiers-title">${t("tiers")}</h2>
        <${Tiers} tiers=${kept} hits=${{ ram: engine.ram.hits, disk: engine.disk.hits }} now=${now} />
      </section>
    </div>
    ${engine.adapters.length > 0 && html`<section aria-labelledby="lora-title">
      <h2 id="lora-title">${t("adapters")}</h2>
      <${Adapters} model=${model.id} adapters=${engine.adapters} />
    </section>`}
  `;
};

/** @param {{label: string, value: string, unit?: string}} props */
export const Figure = ({ label, value, unit = "" }) => html`<div>
  <dt>${label}</dt><dd>${value}${unit && html`<span class="unit">${unit}</span>`}</dd>
</div>`;

/** @param {{waiting: import("../../lib/live.js").Choice[], n: number, now: number}} props */
const Queue = ({ waiting, n, now }) => html`
  <div class="table-box" tabindex="0"><table>
    <thead><tr>
      <th scope="col">${t("request")}</th><th scope="col">${t("standing")}</th><th scope="col" class="right">${t("priority")}</th>
      <th scope="col" class="right">${t("promptTokens")}</th><th scope="col" class="right">${t("waits")}</th><th></th>
    </tr></thead>
    <tbody>${waiting.map(
      (choice) => html`<tr key=${choice.request + choice.index}>
        <td class="code">${choice.request}</td><td>${choice.placed ? t("preemptedAfter", number(choice.predicted)) : t("phase_waiting")}</td>
        <td class="right">${choice.priority}</td><td class="right">${number(choice.prompt)}</td>
        <td class="right">${seconds((now - choice.submitted) / 1000)}</td><td class="right"><${CancelButton} id=${choice.request} /></td>
      </tr>`,
    )}</tbody>
  </table></div>
  ${n > waiting.length && html`<p class="quiet">${t("andMore", number(n - waiting.length))}</p>`}
`;

