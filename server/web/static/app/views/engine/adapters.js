// The default scale of each LoRA adapter, for requests that set none.
import { ApiError, call } from "../../lib/api.js";
import { html, useEffect, useState } from "../../lib/dom.js";
import { number } from "../../lib/format.js";
import { t } from "../../lib/texts.js";

/** @param {{model: string, adapters: {id: number, path: string, scale: number}[]}} props */
export const Adapters = ({ model, adapters }) => {
  const [scales, setScales] = useState(adapters.map((one) => one.scale));
  const [said, setSaid] = useState("");
  const known = adapters.map((one) => one.scale).join();
  useEffect(() => setScales(adapters.map((one) => one.scale)), [known]);
  /** @param {number} i @param {number} scale */
  const set = async (i, scale) => {
    const next = scales.map((old, j) => (j === i ? scale : old));
    setScales(next);
    try {
      await call(`lora-adapters?model=${encodeURIComponent(model)}`, { body: adapters.map(({ id }, j) => ({ id, scale: next[j] })) });
      setSaid("");
    } catch (error) {
      setSaid(error instanceof ApiError ? error.message : String(error));
    }
  };
  return html`<div class="adapters">
    ${adapters.map(
      (one, i) => html`<label key=${one.id}><span class="clip">${one.path || one.id}</span>
        <input type="range" min="0" max="2" step="0.05" value=${scales[i]}
          onChange=${(/** @type {any} */ event) => set(i, Number(event.target.value))} />
        <output>${number(scales[i], 2)}</output>
      </label>`,
    )}
    <p class="quiet small">${t("adaptersAbout")}</p>
    ${said && html`<p class="wrong" role="alert">${said}</p>`}
  </div>`;
};
