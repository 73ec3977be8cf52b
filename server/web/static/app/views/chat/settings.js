// The settings of a chat.
import { config } from "../../lib/config.js";
import { json } from "../../lib/api.js";
import { html, useEffect, useState } from "../../lib/dom.js";
import { IconButton } from "../../lib/icons.js";
import { chosen } from "../../lib/models.js";
import { t } from "../../lib/texts.js";
import { McpSettings } from "./servers.js";
import { moreSampling, SAMPLING } from "./store.js";
import { serverTools } from "./tools.js";

/**
 * @typedef {import("./store.js").Settings} Settings
 * @typedef {import("./store.js").Chat} Chat
 */

/** Labels of the numbers that are always shown; others have their API names. @type {Record<string, string>} */
const WORDS = { temperature: "temperature", top_p: "topP", top_k: "topK", min_p: "minP", max_tokens: "maxTokens", seed: "seed" };

/** What the chosen model's requests have where they say nothing, as far as it is loaded. @returns {Record<string, any>} */
function useServersOwn() {
  const [own, setOwn] = useState(/** @type {Record<string, any>} */ ({}));
  const { id, status } = chosen.value ?? { id: "", status: { value: "" } };
  useEffect(() => {
    setOwn({});
    if (status.value !== "loaded") return;
    const read = json(`props?model=${encodeURIComponent(id)}`);
    read.then((props) => setOwn(props.default_generation_settings?.params ?? {}), () => {});
  }, [id, status.value]);
  return own;
}

/** @param {{chat: Chat, onChange: (change: Partial<Chat>) => void, onTitle: () => Promise<void>, onClose: () => void}} props */
export const SettingsPanel = ({ chat, onChange, onTitle, onClose }) => {
  const { settings } = chat;
  const [trouble, setTrouble] = useState("");
  /** @param {Settings} changed */
  const set = (changed) => onChange({ settings: changed });
  const own = useServersOwn();
  const shown = (/** @type {string} */ name) => {
    const value = own[name];
    if (name === "seed" || value === undefined || (name === "max_tokens" && value < 0)) return t("asServer");
    return Array.isArray(value) ? value.join("; ") : String(Math.round(value * 1e4) / 1e4); // the server sends 32-bit floats
  };
  /** @param {string} name */
  const number = (name) => html`<label class="field" key=${name}>${WORDS[name] ? t(WORDS[name]) : name}
    <input inputmode="decimal" value=${settings[name] ?? ""} placeholder=${shown(name)} onInput=${input(name)} />
  </label>`;
  const used = [...moreSampling(), "samplers"].filter((name) => settings[name]?.trim()).length;
  /** @param {keyof Settings} name */
  const input = (name) => (/** @type {any} */ event) => set({ ...settings, [name]: event.target.value });
  /** @param {keyof Settings} name @param {string} label @param {number} rows @param {boolean} code */
  const area = (name, label, rows, code) => html`<label class="field">${t(label)}
    <textarea rows=${rows} dir=${code ? "ltr" : "auto"} class=${code ? "code" : ""} value=${settings[name]} onInput=${input(name)} spellcheck=${!code}></textarea>
  </label>`;
  const addTools = async () => {
    const found = (await serverTools()).map((one) => one.definition);
    set({ ...settings, tools: JSON.stringify(found, null, 1) });
  };
  return html`
    <header class="bar"><h2>${t("settings")}</h2><span class="stretch"></span>
      <${IconButton} icon="close" label=${t("close")} onClick=${onClose} />
    </header>
    <div class="settings-body">
      ${area("system", "system", 4, false)}
      ${chat.leaf && html`<label class="field">${t("title")}
        <input value=${chat.title} dir="auto" onInput=${(/** @type {any} */ event) => onChange({ title: event.target.value })} /></label>
        <button type="button" onClick=${() => onTitle().then(() => setTrouble(""), (error) => setTrouble(String(error.message ?? error)))}>${t("titleByModel")}</button>
        ${trouble && html`<p class="wrong" role="alert">${trouble}</p>`}`}
      <fieldset><legend>${t("sampling")}</legend>
        <div class="numbers">${SAMPLING.map(number)}</div>
        <details class="more"><summary>${used ? t("moreUsed", used) : t("more")}</summary>
          <div class="numbers">${moreSampling().map(number)}</div>
          <label class="field">samplers
            <input value=${settings.samplers ?? ""} placeholder=${shown("samplers")} spellcheck="false" onInput=${input("samplers")} />
          </label>
        </details>
      </fieldset>
      <label class="field">${t("reasoningMode")}
        <select value=${settings.thinking} onChange=${input("thinking")}>
          ${["auto", "on", "off"].map((mode) => html`<option value=${mode} selected=${mode === settings.thinking}>${t(mode)}</option>`)}
        </select>
      </label>
      <fieldset><legend>${t("responseFormat")}</legend>
        ${area("schema", "schema", 4, true)}
        ${!settings.schema.trim() && area("grammar", "grammar", 3, true)}
      </fieldset>
      ${area("tools", "tools", 4, true)}
      ${config.value.tools && html`<button type="button" onClick=${addTools}>${t("serverTools")}</button>`}
      <${McpSettings} />
    </div>
  `;
};
