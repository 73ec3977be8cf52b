// The chat: messages, input, settings, and the list of chats.
import { json } from "../../lib/api.js";
import { config } from "../../lib/config.js";
import { batch, classes, computed, html, signal, useEffect, useLayoutEffect, useRef, useState } from "../../lib/dom.js";
import { number } from "../../lib/format.js";
import { IconButton } from "../../lib/icons.js";
import { chosen } from "../../lib/models.js";
import { canRecord, record } from "../../lib/recorder.js";
import { go, place } from "../../lib/router.js";
import { t } from "../../lib/texts.js";
import { ModelPicker } from "../model-picker.js";
import { generate, requestBody, resume, running, sentence } from "./generate.js";
import { ChatList } from "./list.js";
import { connectAll, connections, insertions, mcpServers, reconnect } from "./mcp.js";
import { AttachedFiles, MessageView } from "./message.js";
import { InsertDialog } from "./servers.js";
import { SettingsPanel } from "./settings.js";
import {
  asAttached, chats, childrenOf, defaults, endBelow, keeps, loadChats, messages, messagesOf, newChat, newId, onOtherTab, pathTo, saveChat,
  saveMessage,
} from "./store.js";
import { allow, isAllowed, outcomeOf, run, runnerOf, serverTools } from "./tools.js";

/**
 * @typedef {import("./store.js").Chat} Chat
 * @typedef {import("./store.js").Message} Message
 * @typedef {import("./store.js").Attached} Attached
 */

/** The open chat. A chat without messages is not stored. */
export const open = signal(/** @type {Chat} */ (newChat()));
const ready = signal(false);
/** Until the user changes them, the settings of the open chat are the server's defaults. */
config.subscribe(() => {
  const { leaf, settings } = open.peek();
  if (!leaf && Object.values(settings).every((value) => value === "" || value === "auto")) {
    open.value = { ...open.peek(), settings: defaults() };
  }
});
const panel = signal(/** @type {"" | "chats" | "settings"} */ (""));
const path = computed(() => pathTo(messages.value, open.value.leaf));
const children = computed(() => childrenOf(messages.value));
const SHOWN_AT_ONCE = 60;

/** @param {string | undefined} id */
async function openChat(id) {
  const all = id && chats.value.some((chat) => chat.id === id) ? await messagesOf(id) : [];
  if (place.value.rest[0] !== id) return; // another chat was opened meanwhile
  batch(() => {
    open.value = chats.value.find((chat) => chat.id === id) ?? newChat(open.value.settings);
    messages.value = new Map(all.map((message) => [message.id, message]));
  });
  for (const message of all) {
    if (message.stream && !running.value.has(message.id)) void resume(message).then(() => change({}, message.chat));
  }
}

onOtherTab(async (id) => {
  if (!keeps.value) return; // nothing is stored: this tab has the only copy
  await loadChats();
  if (id !== open.value.id || path.value.some((message) => running.value.has(message.id))) return;
  const found = chats.value.find((chat) => chat.id === id);
  if (!found) return go("chat"); // another tab removed it
  const all = await messagesOf(id);
  batch(() => {
    open.value = found;
    messages.value = new Map(all.map((message) => [message.id, message]));
  });
  for (const message of all) if (message.stream) void resume(message, true);
});

/** Change a chat, by default the open one. Another one may be open by now. @param {Partial<Chat>} change @param {string} [id] */
export async function change(change, id = open.value.id) {
  const before = id === open.value.id ? open.value : chats.value.find((chat) => chat.id === id);
  if (!before) return; // it was deleted
  const chat = { ...before, updated: Date.now(), ...change };
  if (id === open.value.id) open.value = chat;
  if (chat.leaf) await saveChat(chat);
}

/**
 * Add a message to the open chat. The storage keeps the order of its writes.
 * @param {Omit<Message, "id" | "chat" | "created">} given @returns {Message}
 */
function add(given) {
  const message = { ...given, id: newId(), chat: open.value.id, created: Date.now() };
  messages.value = new Map(messages.value).set(message.id, message);
  void saveMessage(message);
  void change({ leaf: message.id, title: open.value.title || title(message) });
  return message;
}

/** @param {Message} message */
const title = (message) => message.content.trim().split("\n")[0].slice(0, 80) || t("newChat");

/** Have the newest message answered. @param {string | null} parent */
async function answer(parent) {
  const model = chosen.value;
  if (!model) return;
  const said = pathTo(messages.value, parent);
  const message = add({ role: "assistant", parent, content: "", model: model.id });
  const { settings } = open.value;
  await written(message, async () => {
    await Promise.all([connectAll(), serverTools()]);
    return requestBody(model.id, settings, said, true);
  });
  await proceed(message.id);
}

/** Answers whose calls all have results, which were sent. @type {Set<string>} */
const answered = new Set();

/**
 * Run the allowed calls of the newest answer. When all have results, let the model continue.
 * @param {string} id @returns {Promise<void>}
 */
async function proceed(id) {
  const message = path.value.at(-1);
  if (message?.id !== id || !message.calls?.length || running.value.has(id)) return;
  const { calls } = message;
  const asked = path.value.findLastIndex(({ role }) => role === "user");
  const rounds = path.value.slice(asked).filter((one) => one.calls?.length).length;
  for (const [i, call] of calls.entries()) {
    const runner = outcomeOf(message, i) || message.finish !== "tool_calls" ? undefined : runnerOf(call.name, open.value.settings);
    if (runner && isAllowed(message, runner, rounds)) void run(message, i, runner).then(() => proceed(id));
  }
  const found = calls.map((_, i) => outcomeOf(message, i));
  if (answered.has(id) || found.some((one) => one?.content === undefined)) return;
  answered.add(id);
  /** @type {string[]} */
  const takes = chosen.value?.architecture?.input_modalities ?? [];
  let parent = id;
  for (const [i, call] of calls.entries()) {
    const { content = "", attached = [] } = found[i] ?? {};
    const fits = attached.filter(({ kind }) => kind === "file" || takes.includes(kind));
    const omitted = attached.filter((one) => !fits.includes(one)).map(({ kind }) => `[${kind}]`);
    const said = { content: [content, ...omitted].join("\n").trim(), callId: call.id, ...(fits.length && { attached: fits }) };
    parent = add({ role: "tool", parent, ...said }).id;
  }
  await answer(parent);
}

/** @param {Message} message @param {Parameters<typeof generate>[1]} body */
async function written(message, body) {
  try {
    await generate(message, body);
  } catch (error) {
    const failed = { ...message, error: sentence(error) };
    if (messages.value.has(message.id)) messages.value = new Map(messages.value).set(message.id, failed);
    await saveMessage(failed);
  }
  await change({}, message.chat); // another version than at its beginning
}

/** @param {string} text @param {Attached[]} attached */
export async function say(text, attached) {
  const first = !open.value.leaf;
  const more = attached.length ? { attached } : {};
  const said = add({ role: "user", parent: open.value.leaf, content: text, ...more });
  if (first) go("chat", open.value.id);
  await answer(said.id);
}

/**
 * Continue with a summary: a new branch whose first messages are the request for it and the model's summary. The chat
 * before it remains as the other version of its first message.
 */
async function compact() {
  const model = chosen.value;
  const said = path.value;
  if (!model || !said.length) return;
  const settings = open.value.settings;
  const asked = add({ role: "user", parent: null, content: t("compactAsk") });
  const message = add({ role: "assistant", parent: asked.id, content: "", model: model.id });
  await written(message, () => requestBody(model.id, settings, [...said, asked], true));
}

/** Let the model write the open chat's title, without reasoning and tools. */
async function titled() {
  const model = chosen.value;
  const { id } = open.value;
  if (!model) return;
  const asked = { id: "", chat: "", parent: null, role: /** @type {const} */ ("user"), content: t("titleAsk"), created: 0 };
  const settings = { ...open.value.settings, schema: "", grammar: "", thinking: "off", max_tokens: "24" };
  const body = { ...requestBody(model.id, settings, [...path.value, asked], false), tools: undefined };
  const reply = await json("v1/chat/completions", { body });
  const found = (reply.choices[0].message.content ?? "").trim().split("\n")[0].replace(/^["“„'*#\s]+|["”“'*.\s]+$/g, "");
  if (found) await change({ title: found.slice(0, 80) }, id);
}

/** The actions of a message. */
const actions = {
  /** @param {Message} message @param {string} text @param {Attached[]} attached */
  async branch(message, text, attached) {
    const said = add({ role: "user", parent: message.parent, content: text, ...(attached.length && { attached }) });
    await answer(said.id);
  },
  /** @param {Message} message @param {string} text */
  async correct(message, text) {
    const corrected = { ...message, content: text };
    messages.value = new Map(messages.value).set(message.id, corrected);
    await saveMessage(corrected);
    await change({}, message.chat);
  },
  /** @param {Message} message */
  async again(message) {
    await answer(message.parent);
  },
  /** @param {Message} message */
  async goOn(message) {
    const model = chosen.value;
    if (!model) return;
    const begun = { ...message, finish: undefined, error: undefined };
    await written(begun, () => requestBody(model.id, open.value.settings, pathTo(messages.value, message.id), true));
  },
  /** @param {Message} message */
  async show(message) {
    await change({ leaf: endBelow(children.value, message).id, updated: open.value.updated }); // nothing new
  },
  /** @param {Message} message */
  proceed: (message) => proceed(message.id),
  /** @param {Message} message @param {number} i @param {import("./tools.js").Runner} runner @param {boolean} always in this chat */
  async run(message, i, runner, always) {
    if (always) allow(message, runner);
    await run(message, i, runner);
    await proceed(message.id);
  },
  /** @param {Message} message */
  tokens: (message) => go("tokens", message.chat, message.id),
  prompt: () => go("prompt"),
};

/** Open a chat that another view is about. @param {string} id */
export async function show(id) {
  await loadChats();
  if (open.value.id !== id || !messages.value.size) await openChat(id);
}

/** Another version of an answer of the open chat. @param {Message} message @param {string} content */
export function another(message, content) {
  add({ role: "assistant", parent: message.parent, content, model: message.model });
  go("chat", message.chat);
}

export const ChatView = () => {
  const id = place.value.rest[0];
  useEffect(() => {
    void loadChats().then(() => (ready.value = true));
    void connectAll();
  }, []);
  useEffect(() => {
    if (ready.value && id !== (open.value.leaf ? open.value.id : undefined)) void openChat(id);
    if (panel.value === "chats") panel.value = "";
  }, [id, ready.value]);
  const shown = panel.value;
  const frame = useRef(/** @type {HTMLDivElement | null} */ (null));
  const opener = useRef(/** @type {Element | null} */ (null));
  useLayoutEffect(() => {
    if (shown) {
      opener.current = document.activeElement;
      const first = frame.current?.querySelector(shown === "settings" ? ".settings textarea" : ".chat-list input");
      if (first instanceof HTMLElement) first.focus();
    } else if (opener.current instanceof HTMLElement && document.activeElement === document.body) {
      opener.current.focus(); // the focused element was removed
    }
  }, [shown]);
  /** @param {KeyboardEvent} event */
  const left = (event) => {
    if (event.key !== "Escape" || !shown || !(event.target instanceof Element) || !event.target.closest("aside")) return;
    panel.value = "";
    if (opener.current instanceof HTMLElement) opener.current.focus();
  };
  return html`
    <div ref=${frame} class=${classes("chat", shown === "settings" && "with-settings")} onKeyDown=${left}>
      <aside class=${classes("chat-list", panel.value === "chats" && "shown")} aria-label=${t("chats")}>
        <${ChatList} current=${open.value.id} onClose=${() => (panel.value = "")}
          onReplaced=${(/** @type {string[]} */ ids) => ids.includes(open.value.id) && openChat(open.value.id)} />
      </aside>
      <section class="talk" aria-label=${open.value.title || t("newChat")}>
        <header class="bar">
          <${IconButton} icon="menu" label=${t("chats")} tone="phone" onClick=${() => toggle("chats")} />
          <${ModelPicker} />
          <span class="stretch"></span>
          <${Gauge} />
          <${IconButton} icon="plus" label=${t("newChat")} onClick=${() => go("chat")} />
          <${IconButton} icon="tune" label=${t("settings")} pressed=${panel.value === "settings"} onClick=${() => toggle("settings")} />
        </header>
        <${Talk} key=${open.value.id} />
      </section>
      ${panel.value === "settings" &&
      html`<aside class="settings" aria-label=${t("settings")}>
        <${SettingsPanel} chat=${open.value} onClose=${() => (panel.value = "")} onTitle=${titled} onChange=${change} />
      </aside>`}
    </div>
  `;
};

/** @param {"chats" | "settings"} name */
function toggle(name) {
  panel.value = panel.value === name ? "" : name;
}

/** The context usage of the newest answer. */
const Gauge = () => {
  const last = path.value.findLast((message) => message.timings);
  const n_ctx = chosen.value?.meta?.n_ctx;
  if (!n_ctx) return null;
  const { cache_n = 0, prompt_n = 0, predicted_n = 0 } = last?.timings ?? /** @type {any} */ ({});
  const used = cache_n + prompt_n + predicted_n;
  const label = t("contextOf", number(used), number(n_ctx));
  const busy = path.value.some((message) => running.value.has(message.id));
  return html`<span class="gauge" title=${`${t("context")}: ${label}`}>
    <meter min="0" max=${n_ctx} value=${used} aria-label=${`${t("context")}: ${label}`}></meter>
    <span class="wide">${label}</span>
    ${path.value.length > 3 && !busy && html`<${IconButton} icon="compact" label=${t("compact")} onClick=${compact} />`}
  </span>`;
};

const Talk = () => {
  const all = path.value;
  const box = useRef(/** @type {HTMLDivElement | null} */ (null));
  const [n, setN] = useState(SHOWN_AT_ONCE);
  const [atEnd, setAtEnd] = useState(true);
  const shown = all.slice(-n);
  const last = all.at(-1);
  const content = useRef(/** @type {HTMLDivElement | null} */ (null));
  const stays = useRef(atEnd);
  stays.current = atEnd;
  useLayoutEffect(() => {
    const follow = () => {
      if (stays.current && box.current) box.current.scrollTop = box.current.scrollHeight;
    };
    const grown = new ResizeObserver(follow); // also after code and maths were rendered
    if (content.current) grown.observe(content.current);
    return () => grown.disconnect();
  }, []);
  const before = useRef(0);
  const scrolled = () => {
    const at = box.current;
    if (!at) return;
    if (at.scrollHeight - at.scrollTop - at.clientHeight < 40) setAtEnd(true);
    else if (at.scrollTop < before.current) setAtEnd(false); // the user scrolled up; otherwise the text grew
    before.current = at.scrollTop;
  };
  const more = () => {
    const at = box.current;
    const below = at ? at.scrollHeight - at.scrollTop : 0;
    setN(n + SHOWN_AT_ONCE);
    requestAnimationFrame(() => {
      if (at) at.scrollTop = at.scrollHeight - below;
    });
  };
  return html`
    <div class="scroll" ref=${box} onScroll=${scrolled} tabindex="0" role="log" aria-label=${t("chat")} aria-live="off">
      ${!all.length ? html`<${Greeting} />` : !keeps.value && html`<p class="notice warn" role="status">${t("notKept")}</p>`}
      <div class="messages" ref=${content}>
        ${shown.length < all.length && html`<button type="button" class="earlier" onClick=${more}>${t("earlier")}</button>`}
        ${shown.map(
          (message) => html`<${MessageView} key=${message.id} message=${message} state=${running.value.get(message.id)} settings=${open.value.settings}
            siblings=${children.value.get(message.parent ?? "") ?? []} last=${message === last} actions=${actions} />`,
        )}
      </div>
    </div>
    ${!atEnd &&
    html`<div class="to-newest"><${IconButton} icon="down" label=${t("toNewest")} onClick=${() => {
      setAtEnd(true);
      if (box.current) box.current.scrollTop = box.current.scrollHeight;
    }} /></div>`}
    ${mcpServers.value.map((server) => {
      const { title, error } = connections.value.get(server.id) ?? {};
      return server.on && error && html`<p class="notice warn" role="status" key=${server.id}>${t("mcpFailed", title ?? "", error)}
        <button type="button" onClick=${() => reconnect(server)}>${t("mcpRetry")}</button></p>`;
    })}
    <${Composer} />
  `;
};

const Greeting = () => html`<div class="greeting">
  <img src="favicon.svg" alt="" width="56" height="56" />
  <h1>${t("greeting")}</h1>
  <p>${keeps.value ? t("greetingAbout") : t("notKept")}</p>
  ${chosen.value && html`<ul class="ideas" aria-label=${t("ideas")}>
    ${["ideaSky", "ideaCode", "ideaStory"].map((name) => html`<li key=${name}>
      <button type="button" onClick=${() => say(t(name), [])}>${t(name)}</button></li>`)}
  </ul>`}
</div>`;

/** What was begun and not sent, by chat: other views may be looked at meanwhile. @type {Map<string, {text: string, attached: Attached[]}>} */
const drafts = new Map();
const NO_DRAFT = { text: "", attached: /** @type {Attached[]} */ ([]) };

/** Call `work` once; later calls return the first result. @template T @param {() => Promise<T>} work */
function once(work) {
  /** @type {Promise<T> | undefined} */
  let result;
  return () => (result ??= work());
}

const Composer = () => {
  const chat = open.value.leaf ? open.value.id : ""; // the draft of a new chat is kept for the next new chat
  const [, redraw] = useState({});
  const { text, attached } = drafts.get(chat) ?? NO_DRAFT;
  /** @param {Partial<typeof NO_DRAFT>} change */
  const draft = (change) => {
    drafts.set(chat, { ...(drafts.get(chat) ?? NO_DRAFT), ...change });
    redraw({});
  };
  /** @param {Attached[]} more */
  const addFiles = (more) => draft({ attached: [...(drafts.get(chat)?.attached ?? []), ...more] });
  const picker = useRef(/** @type {HTMLInputElement | null} */ (null));
  /** @type {string[]} */
  const takes = chosen.value?.architecture?.input_modalities ?? [];
  /** @param {FileList | null | undefined} files */
  const attach = async (files) => {
    if (!files?.length) return;
    const fit = [...files].filter(({ size, type }) => {
      const [kind] = type.split("/");
      return size > 0 && (kind === "image" || kind === "audio" ? takes.includes(kind) : kind !== "video");
    });
    refused([...files].filter((file) => !fit.includes(file)).map(({ name }) => name));
    addFiles(await Promise.all(fit.map(asAttached)));
  };
  /** @param {string[]} names */
  const refused = (names) => setWrong(names.length ? t("notAttached", names.join(", ")) : "");
  const [inserting, setInserting] = useState(false);
  const [stopRecording, setStopRecording] = useState(/** @type {{end: () => Promise<File>} | null} */ (null));
  const [wrong, setWrong] = useState("");
  useEffect(() => () => void stopRecording?.end().catch(() => {}), [stopRecording]); // also when another chat opens
  const microphone = async () => {
    setWrong("");
    try {
      if (!stopRecording) return setStopRecording({ end: once(await record()) });
      addFiles([await asAttached(await stopRecording.end())]);
    } catch (error) {
      setWrong(t("micFailed", String(/** @type {Error} */ (error).message)));
    }
    setStopRecording(null);
  };
  const field = useRef(/** @type {HTMLTextAreaElement | null} */ (null));
  const busy = path.value.map((message) => running.value.get(message.id)).find(Boolean);
  const last = path.value.at(-1);
  const wrote = useRef(false); // announces the end to screen readers
  useEffect(() => {
    if (busy) wrote.current = true;
  }, [Boolean(busy)]);
  const pending = path.value.at(-1)?.role === "assistant" && Boolean(path.value.at(-1)?.calls?.length);
  useLayoutEffect(() => {
    const area = field.current;
    if (!area) return;
    area.style.height = "auto";
    area.style.height = `${Math.min(area.scrollHeight, 260)}px`;
  }, [text]);
  useEffect(() => field.current?.focus(), [open.value.id]);
  const sendable = text.trim() || attached.length > 0;
  const send = () => {
    if (busy || !sendable || !chosen.value) return;
    draft(NO_DRAFT);
    setWrong("");
    void say(text.trim(), attached);
  };
  /** @param {import("./mcp.js").Content} content */
  const insert = ({ text: more, attached: files }) => {
    if (more) draft({ text: text ? `${text}\n\n${more}` : more });
    const fit = files.filter(({ kind }) => kind === "file" || takes.includes(kind));
    refused(files.filter((file) => !fit.includes(file)).map(({ name }) => name));
    addFiles(fit);
  };
  /** @param {KeyboardEvent} event */
  const typed = (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      send();
    }
  };
  return html`<p class="hidden" role="status">${!busy && wrote.current && last?.role === "assistant" && !last.error && t("answerDone")}</p>
  ${wrong && html`<p class="notice warn" role="alert">${wrong}</p>`}
  <form class="composer" onSubmit=${(/** @type {Event} */ event) => {
    event.preventDefault();
    send();
  }}>
    <input ref=${picker} type="file" multiple hidden aria-label=${t("attach")} onChange=${(/** @type {any} */ event) => {
      void attach(event.target.files);
      event.target.value = "";
    }} />
    <${IconButton} icon="file" label=${t("attach")} onClick=${() => picker.current?.click()} />
    ${takes.includes("audio") && canRecord() && html`<${IconButton} icon=${stopRecording ? "stop" : "mic"} onClick=${microphone}
      label=${t(stopRecording ? "micStop" : "mic")} pressed=${Boolean(stopRecording)} />`}
    ${insertions().length > 0 && html`<${IconButton} icon="plug" label=${t("insertMcp")} onClick=${() => setInserting(true)} />`}
    <${AttachedFiles} files=${attached} onChange=${(/** @type {Attached[]} */ files) => draft({ attached: files })} />
    <textarea ref=${field} dir="auto" rows="1" value=${text} placeholder=${t("writeMessage")} aria-label=${t("message")} disabled=${pending && !busy}
      onInput=${(/** @type {any} */ event) => draft({ text: event.target.value })} onKeyDown=${typed}
      onPaste=${(/** @type {ClipboardEvent} */ event) => attach(event.clipboardData?.files)}></textarea>
    ${busy
      ? html`<${IconButton} icon="stop" label=${t("stop")} tone="strong" onClick=${busy.stop} />`
      : html`<${IconButton} icon="send" label=${t("send")} tone="strong" type="submit" disabled=${!sendable || !chosen.value} />`}
  </form>
  ${inserting && html`<${InsertDialog} onClose=${() => setInserting(false)} onInsert=${insert} />`}`;
};

