// What a chat asks the model with.
import { config } from "../../lib/config.js";
import { html } from "../../lib/dom.js";
import { IconButton } from "../../lib/icons.js";
import { t } from "../../lib/texts.js";
import { serverTools } from "./tools.js";

/** @typedef {import("./store.js").Settings} Settings */

/** @type {[keyof Settings, string][]} */
const NUMBERS = [
  ["temperature", "temperature"],
  ["top_p", "topP"],
  ["top_k", "topK"],
  ["min_p", "minP"],
  ["max_tokens", "maxTokens"],
  ["seed", "seed"],
];

/** @param {{settings: Settings, onChange: (settings: Settings) => void, onClose: () => void}} props */
export const SettingsPanel = ({ settings, onChange, onClose }) => {
  /** @param {keyof Settings} name */
  const input = (name) => (/** @type {any} */ event) => onChange({ ...settings, [name]: event.target.value });
  /** @param {keyof Settings} name @param {string} label @param {number} rows @param {boolean} code */
  const area = (name, label, rows, code) => html`<label class="field">${t(label)}
    <textarea rows=${rows} class=${code ? "code" : ""} value=${settings[name]} onInput=${input(name)} spellcheck=${!code}></textarea>
  </label>`;
  const addTools = async () => {
    const found = (await serverTools()).map((one) => one.definition);
    onChange({ ...settings, tools: JSON.stringify(found, null, 1) });
  };
  return html`
    <header class="bar"><h2>${t("settings")}</h2><span class="stretch"></span>
      <${IconButton} icon="close" label=${t("close")} onClick=${onClose} />
    </header>
    <div class="settings-body">
      ${area("system", "system", 4, false)}
      <fieldset><legend>${t("sampling")}</legend>
        <div class="numbers">
          ${NUMBERS.map(
            ([name, label]) => html`<label class="field" key=${name}>${t(label)}
              <input inputmode="decimal" value=${settings[name]} placeholder=${t("asServer")} onInput=${input(name)} />
            </label>`,
          )}
        </div>
      </fieldset>
      <label class="field">${t("thinkingMode")}
        <select value=${settings.thinking} onChange=${input("thinking")}>
          ${["auto", "on", "off"].map((mode) => html`<option value=${mode} selected=${mode === settings.thinking}>${t(mode)}</option>`)}
        </select>
      </label>
      <fieldset><legend>${t("shape")}</legend>
        ${area("schema", "schema", 4, true)}
        ${!settings.schema.trim() && area("grammar", "grammar", 3, true)}
      </fieldset>
      ${area("tools", "tools", 4, true)}
      ${config.value.tools && html`<button type="button" onClick=${addTools}>${t("serverTools")}</button>`}
    </div>
  `;
};
