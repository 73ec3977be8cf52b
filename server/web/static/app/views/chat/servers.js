// MCP servers in the settings, and the dialog that inserts their prompts and resources.
import { config } from "../../lib/config.js";
import { html, useEffect, useLayoutEffect, useModal, useState } from "../../lib/dom.js";
import { IconButton } from "../../lib/icons.js";
import { t } from "../../lib/texts.js";
import { addServer, changeServer, connections, connectAll, insertions, mcpServers, mcpUrl, reconnect, removeServer } from "./mcp.js";

/** @typedef {import("./mcp.js").McpServer} McpServer */

export const McpSettings = () => html`<fieldset class="mcp"><legend>${t("mcpServers")}</legend>
  ${mcpServers.value.map((server) => html`<${Server} key=${server.id} server=${server} />`)}
  <${Add} />
</fieldset>`;

/** @param {{server: McpServer}} props */
const Server = ({ server }) => {
  const connection = connections.value.get(server.id);
  const title = connection?.title ?? new URL(server.url).host;
  useEffect(() => void connectAll(), [server.on]);
  const used = connection?.tools.filter(({ name }) => !server.without.includes(name)).length ?? 0;
  /** @param {string} name @param {boolean} on */
  const use = (name, on) => changeServer(server, { without: on ? server.without.filter((one) => one !== name) : [...server.without, name] });
  return html`<div class="mcp-server" role="group" aria-label=${title}>
    <div class="row">
      <label class="check"><input type="checkbox" checked=${server.on} onChange=${(/** @type {any} */ event) => changeServer(server, { on: event.target.checked })} /> ${title}</label>
      <span class="stretch"></span>
      ${server.on && html`<${IconButton} icon="again" label=${`${t("mcpRetry")}: ${title}`} onClick=${() => reconnect(server)} />`}
      <${IconButton} icon="trash" label=${`${t("mcpRemove")}: ${title}`} onClick=${() => removeServer(server)} />
    </div>
    <p class="small quiet clip" title=${server.url}>${server.url}</p>
    ${server.on && connection?.error && html`<p class="wrong small" role="alert">${connection.error}</p>`}
    ${server.on && connection && !connection.client && !connection.error && html`<p class="small quiet" role="status">${t("mcpConnecting")}</p>`}
    ${server.on && connection && connection.tools.length > 0 && html`<details><summary class="small">${t("mcpTools", used, connection.tools.length)}</summary>
      ${connection.tools.map(({ name, title: shown, description }) => html`<label class="check small" key=${name} title=${description}>
        <input type="checkbox" checked=${!server.without.includes(name)} onChange=${(/** @type {any} */ event) => use(name, event.target.checked)} /> ${shown ?? name}</label>`)}
    </details>`}
  </div>`;
};

const Add = () => {
  const [url, setUrl] = useState("");
  const [header, setHeader] = useState("");
  const [proxied, setProxied] = useState(false);
  const [wrong, setWrong] = useState("");
  /** @param {Event} event */
  const add = (event) => {
    event.preventDefault();
    const at = url.trim();
    if (!mcpUrl(at)) return setWrong(t("mcpNoUrl"));
    if (header.trim() && !/^[\w-]+:\s*[\x20-\x7e]+$/.test(header.trim())) return setWrong(t("mcpNoHeader"));
    setWrong("");
    setUrl("");
    setHeader("");
    void addServer({ id: at, url: at, header: header.trim(), proxied, on: true, without: [] });
  };
  return html`<form class="mcp-add" onSubmit=${add}>
    <label class="field">${t("mcpUrl")}
      <input value=${url} placeholder="http://localhost:3000/mcp" spellcheck="false" inputmode="url" onInput=${(/** @type {any} */ event) => setUrl(event.target.value)} /></label>
    <label class="field">${t("mcpHeader")}
      <input type="password" value=${header} autocomplete="off" onInput=${(/** @type {any} */ event) => setHeader(event.target.value)} /></label>
    ${config.value.proxy && html`<label class="check small"><input type="checkbox" checked=${proxied} onChange=${(/** @type {any} */ event) => setProxied(event.target.checked)} /> ${t("mcpProxy")}</label>`}
    ${wrong && html`<p class="wrong small" role="alert">${wrong}</p>`}
    <button type="submit" disabled=${!url.trim()}>${t("mcpAdd")}</button>
  </form>`;
};

/**
 * Choose a prompt or a resource, and give its arguments.
 * @param {{onInsert: (content: import("./mcp.js").Content) => void, onClose: () => void}} props
 */
export const InsertDialog = ({ onInsert, onClose }) => {
  const modal = useModal(onClose);
  const [chosen, choose] = useState(/** @type {import("./mcp.js").Insertion | null} */ (null));
  const [values, setValues] = useState(/** @type {Record<string, string>} */ ({}));
  const [wrong, setWrong] = useState("");
  useLayoutEffect(() => {
    const field = modal.ref.current?.querySelector("form input");
    if (field instanceof HTMLElement) field.focus();
  }, [chosen]);
  /** @param {import("./mcp.js").Insertion} entry @param {Record<string, string>} given */
  const insert = async (entry, given) => {
    setWrong("");
    try {
      onInsert(await entry.read(given));
      onClose();
    } catch (error) {
      setWrong(/** @type {Error} */ (error).message);
    }
  };
  /** @param {import("./mcp.js").Insertion} entry */
  const open = (entry) => (entry.fields.length ? choose(entry) : void insert(entry, {}));
  return html`<dialog ...${modal} class="insert" aria-labelledby="insert-title">
    <header class="row"><h2 id="insert-title">${chosen?.title ?? t("insertMcp")}</h2><span class="stretch"></span>
      <${IconButton} icon="close" label=${t("close")} onClick=${onClose} /></header>
    ${wrong && html`<p class="wrong" role="alert">${wrong}</p>`}
    ${!chosen && insertions().map(({ title, entries }) => html`<section key=${title} aria-label=${title}><h3>${title}</h3>
      ${entries.map((entry) => html`<button type="button" key=${entry.id} onClick=${() => open(entry)}>${entry.title}
        <span class="small quiet">${entry.about}</span></button>`)}
    </section>`)}
    ${chosen && html`<form onSubmit=${(/** @type {Event} */ event) => {
      event.preventDefault();
      void insert(chosen, Object.fromEntries(Object.entries(values).filter(([, value]) => value)));
    }}>
      <p class="quiet">${chosen.about}</p>
      ${chosen.fields.map(({ name, about, required }) => html`<label class="field" key=${name}>${about ? `${name}: ${about}` : name}
        <input required=${required} value=${values[name] ?? ""} onInput=${(/** @type {any} */ event) => setValues({ ...values, [name]: event.target.value })} /></label>`)}
      <div class="row end"><button type="button" onClick=${() => choose(null)}>${t("cancel")}</button>
        <button type="submit" class="strong">${t("insert")}</button></div>
    </form>`}
  </dialog>`;
};
