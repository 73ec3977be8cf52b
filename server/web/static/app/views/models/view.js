// The pool: configured models, their states and sizes; load, unload, download, remove.
import { ApiError, call } from "../../lib/api.js";
import { classes, html, signal, useState } from "../../lib/dom.js";
import { bytes, number, short } from "../../lib/format.js";
import { Icon } from "../../lib/icons.js";
import { models, refresh } from "../../lib/models.js";
import { t } from "../../lib/texts.js";
import { ServerLog } from "./log.js";
import { statusText } from "../model-picker.js";

/** @typedef {import("../../lib/models.js").Model} Model */

const log = signal(/** @type {string[]} */ ([]));

/** @param {string} what @param {() => Promise<unknown>} work */
async function act(what, work) {
  const note = (/** @type {string} */ text) =>
    (log.value = [`${new Date().toLocaleTimeString()}  ${what}: ${text}`, ...log.value].slice(0, 50));
  try {
    await work();
    note(t("asked"));
    await refresh();
  } catch (error) {
    note(error instanceof ApiError ? error.message : String(error));
  }
}

export const ModelsView = () => html`<div class="page">
  <header class="page-head"><h1>${t("models")}</h1></header>
  <ul class="cards">${(models.value ?? []).map((model) => html`<${Card} key=${model.id} model=${model} />`)}</ul>
  ${models.value && !models.value.length && html`<p class="quiet empty">${t("noModels")}</p>`}
  <${Pull} />
  ${log.value.length > 0 && html`<section aria-labelledby="done-title"><h2 id="done-title">${t("done")}</h2>
    <pre class="log" tabindex="0" role="log">${log.value.join("\n")}</pre></section>`}
  <${ServerLog} />
</div>`;

/** @param {{model: Model}} props */
const Card = ({ model }) => {
  const { status, meta } = model;
  const body = { model: model.id };
  const at = status.value;
  const idle = at === "unloaded" || at === "sleeping";
  const progress = at === "loading" ? status.progress?.value : undefined;
  return html`<li class="card">
    <div class="card-head">
      <span class=${classes("dot", status.failed ? "failed" : at)} aria-hidden="true"></span>
      <h2>${model.id}</h2><span class="stretch"></span><span class="quiet" role="status">${statusText(model)}</span>
    </div>
    ${progress !== undefined && html`<progress max="1" value=${progress} aria-label=${t("loading")}></progress>`}
    ${status.failed && html`<p class="failure">${status.reason}</p>`}
    ${meta && html`<dl class="facts">
      <dt>${t("parameters")}</dt><dd>${short(meta.n_params / 1e6)} M · ${meta.ftype}</dd>
      <dt>${t("context")}</dt><dd>${t("contextFacts", number(meta.n_ctx), number(meta.n_ctx_train))}</dd>
      <dt>${t("file")}</dt><dd>${bytes(meta.size)}</dd>
    </dl>`}
    ${meta?.memory && html`<${Memory} memory=${meta.memory} />`}
    <div class="row">
      ${idle && html`<button type="button" class="strong" onClick=${() => act(`${t("load")} ${model.id}`, () => call("models/load", { body }))}>${t("load")}</button>`}
      ${!idle && html`<button type="button" onClick=${() => act(`${t("unload")} ${model.id}`, () => call("models/unload", { body }))}>
        ${at === "loading" || at === "downloading" ? t("cancel") : t("unload")}</button>`}
      ${model.can_remove && html`<button type="button" onClick=${() => confirm(t("removeModelSure", model.id)) &&
        act(`${t("removeModel")} ${model.id}`, () => call(`models?model=${encodeURIComponent(model.id)}`, { method: "DELETE" }))}>${t("removeModel")}</button>`}
      <label class="check small" title=${t("pinAbout")}><input type="checkbox" checked=${model.pinned ?? false} onChange=${(/** @type {any} */ event) =>
        act(`${t("pin")} ${model.id}`, () => call("models/pin", { body: { ...body, pinned: event.target.checked } }))} /> ${t("pin")}</label>
      <span class="stretch"></span>
      <span class="quiet small">${model.capabilities.map((one) => t(`can_${one}`)).join(", ")}</span>
    </div>
  </li>`;
};

/** @param {{memory: {devices: Record<string, {weights: number, context: number, compute: number}>, notes: string[]}}} props */
const Memory = ({ memory }) => {
  const devices = Object.entries(memory.devices);
  const most = Math.max(1, ...devices.map(([, one]) => one.weights + one.context + one.compute));
  return html`<div class="memory">
    ${devices.map(([name, one]) => {
      let x = 0;
      const label = ["weights", "context", "compute"].map((part) => `${t(`mem_${part}`)} ${bytes(/** @type {any} */ (one)[part])}`).join(", ");
      return html`<div key=${name}><span class="small quiet">${name}</span>
        <svg viewBox="0 0 100 5" preserveAspectRatio="none" role="img" aria-label=${`${name}: ${label}`}>
          ${["weights", "context", "compute"].map((part) => {
            const width = (100 * /** @type {any} */ (one)[part]) / most;
            x += width;
            return html`<rect key=${part} class=${part} x=${x - width} width=${width} height="5"><title>${label}</title></rect>`;
          })}
        </svg><span class="small">${bytes(one.weights + one.context + one.compute)}</span></div>`;
    })}
    <p class="legend small quiet">
      <span><i class="key weights"></i>${t("mem_weights")}</span><span><i class="key context"></i>${t("mem_context")}</span>
      <span><i class="key compute"></i>${t("mem_compute")}</span>
    </p>
    ${memory.notes.map((note) => html`<p class="small quiet" key=${note}>${note}</p>`)}
  </div>`;
};

const Pull = () => {
  const [name, setName] = useState("");
  return html`<form class="pull" onSubmit=${(/** @type {Event} */ event) => {
    event.preventDefault();
    if (name.trim()) void act(`${t("pull")} ${name.trim()}`, () => call("models", { body: { model: name.trim() } }));
  }}>
    <label class="field">${t("pullLabel")}
      <input value=${name} placeholder="owner/name:Q4_K_M" spellcheck="false" onInput=${(/** @type {any} */ event) => setName(event.target.value)} />
    </label>
    <button type="submit" disabled=${!name.trim()}><${Icon} name="out" /> ${t("pull")}</button>
  </form>`;
};
