// The model picker, with load progress.
import { classes, html } from "../lib/dom.js";
import { percent } from "../lib/format.js";
import { choose, chosen, models } from "../lib/models.js";
import { t } from "../lib/texts.js";

export const ModelPicker = () => {
  const all = (models.value ?? []).filter((model) => model.capabilities.includes("completion"));
  const model = chosen.value;
  if (models.value && !all.length) return html`<span class="quiet">${t("noModels")}</span>`;
  if (!model) return html`<span class="model-picker"></span>`;
  const { status } = model;
  return html`<label class="model-picker">
    <span class=${classes("dot", status.failed ? "failed" : status.value)} aria-hidden="true"></span>
    <span class="hidden">${t("model")}</span>
    <select value=${model.id} onChange=${(/** @type {any} */ event) => choose(event.target.value)}>
      ${all.map((one) => html`<option key=${one.id} value=${one.id} selected=${one.id === model.id}>${one.id}</option>`)}
    </select>
    <span class="quiet picker-status" role="status">${status.value !== "loaded" && statusText(model)}</span>
  </label>`;
};

/** @param {import("../lib/models.js").Model} model */
export function statusText({ status, progress }) {
  if (status.failed) return t("failed");
  if (status.value === "loading" && status.progress) return `${t("loading")} ${percent(status.progress.value)}`;
  if (status.value === "downloading" && progress) {
    const files = Object.values(progress);
    const total = files.reduce((sum, file) => sum + file.total, 0);
    const done = files.reduce((sum, file) => sum + file.done, 0);
    return `${t("downloading")} ${total ? percent(done / total) : ""}`;
  }
  return t(status.value);
}
