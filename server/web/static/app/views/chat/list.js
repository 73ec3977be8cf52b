// The chats stored in this browser: search, export, import, delete.
import { html, signal, useEffect, useRef, useState } from "../../lib/dom.js";
import { day, number } from "../../lib/format.js";
import { IconButton } from "../../lib/icons.js";
import { go, link } from "../../lib/router.js";
import { t } from "../../lib/texts.js";
import { running } from "./generate.js";
import { chats, exported, imported, loadFromServer, removeChat, saveToServer, search } from "./store.js";

const SHOWN = 200;
const found = signal(/** @type {Set<string> | null} */ (null));

/** @param {{current: string, onReplaced: (ids: string[]) => void, onClose: () => void}} props `onReplaced`: by an import */
export const ChatList = ({ current, onReplaced, onClose }) => {
  const [query, setQuery] = useState("");
  const [wrong, setWrong] = useState("");
  const [said, setSaid] = useState("");
  const field = useRef(/** @type {HTMLInputElement | null} */ (null));
  const picker = useRef(/** @type {HTMLInputElement | null} */ (null));
  useEffect(() => {
    const later = setTimeout(async () => (found.value = query.trim() ? await search(query) : null), 150);
    return () => clearTimeout(later);
  }, [query]);
  const fitting = chats.value.filter((chat) => !found.value || found.value.has(chat.id));
  const [n, setN] = useState(SHOWN);
  const shown = fitting.slice(0, n);
  /** @param {any} event */
  const read = async (event) => {
    const file = event.target.files?.[0];
    event.target.value = "";
    if (file) await tried("importFailed", async () => onReplaced(await imported(await file.text())));
  };
  /** @param {string} failed a text @param {() => Promise<unknown>} work @param {string} [done] a text */
  const tried = async (failed, work, done) => {
    setSaid("");
    setWrong("");
    try {
      await work();
      if (done) setSaid(t(done));
    } catch (error) {
      setWrong(t(failed, /** @type {Error} */ (error).message));
    }
  };
  const save = () => confirm(t("serverSaveSure")) && tried("serverFailed", saveToServer, "serverSaved");
  /** @param {import("./store.js").Chat} chat */
  const remove = async (chat) => {
    if (!confirm(t("removeChatSure", chat.title))) return;
    for (const one of running.value.values()) if (one.chat === chat.id) one.stop();
    await removeChat(chat.id);
    if (chat.id === current) go("chat");
    else field.current?.focus();
  };
  return html`
    <div class="list-head">
      <label class="search"><span class="hidden">${t("searchChats")}</span>
        <input type="search" ref=${field} placeholder=${t("searchChats")} value=${query}
          onInput=${(/** @type {any} */ event) => setQuery(event.target.value)} />
      </label>
      <${IconButton} icon="plus" label=${t("newChat")} onClick=${() => go("chat")} />
      <${IconButton} icon="close" label=${t("close")} tone="phone" onClick=${onClose} />
    </div>
    ${wrong && html`<p class="wrong" role="alert">${wrong}</p>`}
    ${said && html`<p class="quiet" role="status">${said}</p>`}
    <ul class="list">
      ${shown.map(
        (chat) => html`<li key=${chat.id} class=${chat.id === current ? "current" : ""}>
          <a href=${link("chat", chat.id)} aria-current=${chat.id === current ? "true" : undefined}>
            <span class="title" dir="auto">${chat.title}</span><span class="quiet">${day(chat.updated)}</span>
          </a>
          <${IconButton} icon="trash" label=${`${t("removeChat")}: ${chat.title}`} onClick=${() => remove(chat)} />
        </li>`,
      )}
      ${fitting.length > n && html`<li class="none">
        <button type="button" onClick=${() => setN(n + SHOWN)}>${t("andMore", number(fitting.length - n))}</button></li>`}
      ${found.value && !shown.length && html`<li class="quiet none">${t("nothingFound")}</li>`}
    </ul>
    <div class="list-foot">
      <${IconButton} icon="out" label=${t("exportChats")} onClick=${download} disabled=${!chats.value.length} />
      <${IconButton} icon="in" label=${t("importChats")} onClick=${() => picker.current?.click()} />
      <${IconButton} icon="save" label=${t("serverSave")} onClick=${save} disabled=${!chats.value.length} />
      <${IconButton} icon="restore" label=${t("serverLoad")} onClick=${() => tried("serverFailed", async () => onReplaced(await loadFromServer()))} />
      <input ref=${picker} type="file" accept="application/json,.json" hidden onChange=${read} aria-label=${t("importChats")} />
    </div>
  `;
};

async function download() {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([await exported()], { type: "application/json" }));
  link.download = "llamapool-chats.json";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000); // after the browser has read it
}
