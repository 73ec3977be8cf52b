// Chats, stored in IndexedDB: one record per message, so that a new token does not rewrite a long chat.
import { call, json } from "../../lib/api.js";
import { config } from "../../lib/config.js";
import { signal } from "../../lib/dom.js";
import { t } from "../../lib/texts.js";

/**
 * @typedef {{id: string, name: string, arguments: string}} ToolCall
 * @typedef {{kind: "image" | "audio" | "file", url: string, name: string}} Attached `url`: a data: URL; "file": a PDF or a text
 * @typedef {{cache_n: number, prompt_n: number, prompt_ms: number, prompt_per_second: number, predicted_n: number,
 *   predicted_ms: number, predicted_per_second: number, first_ms?: number}} Timings
 * @typedef {{id: string, chat: string, parent: string | null, role: "user" | "assistant" | "tool", content: string,
 *   reasoning?: string, calls?: ToolCall[], callId?: string, created: number, model?: string, timings?: Timings,
 *   finish?: string, error?: string, stream?: string, resumeFrom?: string, resumeReasoning?: string, attached?: Attached[]}} Message
 * @typedef {{system: string, schema: string, grammar: string, tools: string, thinking: string} & Record<string, string>} Settings
 *   `thinking`: "auto", "on" or "off"; the rest by their names in the API (`SAMPLING`)
 * @typedef {{id: string, title: string, created: number, updated: number, leaf: string | null, settings: Settings,
 *   versions?: number[]}} Chat `versions`: the values of `updated` with which it was exported or imported
 */

/** Numeric sampling parameters by the API's names: first those always shown, then those in a collapsed section. */
export const SAMPLING = ["temperature", "top_p", "top_k", "min_p", "max_tokens", "seed"];
export const moreSampling = () => config.value.sampling.filter((name) => !SAMPLING.includes(name));

/** @type {Settings} */
export const DEFAULTS = {
  ...Object.fromEntries(SAMPLING.map((name) => [name, ""])),
  ...{ system: "", thinking: "auto", schema: "", grammar: "", tools: "", samplers: "" },
};

/** Newest first. */
export const chats = signal(/** @type {Chat[]} */ ([]));
/** The open chat's messages, by id. */
export const messages = signal(/** @type {Map<string, Message>} */ (new Map()));
/** False if the browser cannot store chats: some private windows, or full storage. */
export const keeps = signal(true);
/** Chats that are no more: what is still being written for them is not kept. @type {Set<string>} */
const removed = new Set();
/** What could not be stored, by id: it lasts until the page is closed. */
const unsaved = { chats: /** @type {Map<string, Chat>} */ (new Map()), messages: /** @type {Map<string, Message>} */ (new Map()) };

/** @type {Promise<IDBDatabase | null> | undefined} */
let opening;

/** @returns {Promise<IDBDatabase | null>} */
function database() {
  opening ??= new Promise((resolve) => {
    const refused = () => {
      keeps.value = false;
      resolve(null);
    };
    let asked;
    try {
      asked = indexedDB.open("llamapool", 1);
    } catch {
      return refused();
    }
    asked.onupgradeneeded = () => {
      asked.result.createObjectStore("chats", { keyPath: "id" });
      asked.result.createObjectStore("messages", { keyPath: "id" }).createIndex("chat", "chat");
    };
    asked.onsuccess = () => resolve(asked.result);
    asked.onerror = refused;
  });
  return opening;
}

const others = typeof BroadcastChannel === "undefined" ? null : new BroadcastChannel("llamapool.chats");
/** Hear of chats that another tab has written to or removed. @param {(id: string) => void} heard */
export function onOtherTab(heard) {
  others?.addEventListener("message", ({ data }) => heard(String(data)));
}
/** @param {string} id */
export const tellOtherTabs = (id) => keeps.value && others?.postMessage(id);

/** @template T @param {IDBRequest<T>} request @returns {Promise<T>} */
const done = (request) =>
  new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });

/** @param {"chats" | "messages"} name */
async function table(name) {
  return (await database())?.transaction(name).objectStore(name);
}

/** Change both tables or neither; return whether it succeeded. If the storage is full, the chat continues, and the page shows
 *  that it is not stored.
 *  @param {(chats: IDBObjectStore, messages: IDBObjectStore) => void} work */
async function changed(work) {
  const base = await database();
  if (!base) return false;
  try {
    const transaction = base.transaction(["chats", "messages"], "readwrite");
    work(transaction.objectStore("chats"), transaction.objectStore("messages"));
    await new Promise((resolve, reject) => {
      transaction.oncomplete = resolve;
      transaction.onabort = () => reject(transaction.error);
    });
    return true;
  } catch {
    keeps.value = false;
    return false;
  }
}

export const newId = () => crypto.getRandomValues(new Uint32Array(3)).reduce((text, n) => text + n.toString(36), "");

export async function loadChats() {
  const store = await table("chats");
  const all = /** @type {Chat[]} */ (store ? await done(store.getAll()) : []);
  const kept = merged(all, unsaved.chats.values()).filter(({ id }) => !removed.has(id));
  chats.value = kept.sort((a, b) => b.updated - a.updated);
}

/** @param {string} chat @returns {Promise<Message[]>} */
export async function messagesOf(chat) {
  const store = await table("messages");
  const all = store ? await done(store.index("chat").getAll(chat)) : [];
  return merged(all, [...unsaved.messages.values()].filter((message) => message.chat === chat));
}

/** Records of both; the later ones replace others with their id. @template {{id: string}} T @param {Iterable<T>[]} lists */
const merged = (...lists) => [...new Map(lists.flatMap((list) => [...list]).map((one) => [one.id, one])).values()];

/** @param {string} id @returns {Promise<Message | undefined>} as it is kept */
export async function messageOf(id) {
  const store = await table("messages");
  return store ? done(store.get(id)) : undefined;
}

/** @param {Chat} chat */
export async function saveChat(chat) {
  if (removed.has(chat.id)) return;
  const { versions } = chats.value.find(({ id }) => id === chat.id) ?? chat;
  chat = { ...chat, versions };
  chats.value = [chat, ...chats.value.filter((one) => one.id !== chat.id)].sort((a, b) => b.updated - a.updated);
  if (await changed((table) => table.put(chat))) unsaved.chats.delete(chat.id);
  else unsaved.chats.set(chat.id, chat);
  tellOtherTabs(chat.id);
}

/** @param {Message} message */
export async function saveMessage(message) {
  if (removed.has(message.chat)) return;
  if (await changed((_, table) => table.put(message))) unsaved.messages.delete(message.id);
  else unsaved.messages.set(message.id, message);
}

/** @param {string} id */
export async function removeChat(id) {
  removed.add(id);
  chats.value = chats.value.filter((chat) => chat.id !== id);
  const all = await messagesOf(id);
  unsaved.chats.delete(id);
  for (const message of all) unsaved.messages.delete(message.id);
  await changed((heads, table) => {
    heads.delete(id);
    for (const message of all) table.delete(message.id);
  });
  tellOtherTabs(id);
}

/** What a first chat begins with: what the server says, by llama-server's names. @returns {Settings} */
export function defaults() {
  const given = config.value.settings;
  const text = (/** @type {string} */ name) => (given[name] === undefined || given[name] === null ? "" : String(given[name]));
  const numbers = Object.fromEntries([...SAMPLING, ...moreSampling(), "samplers"].map((name) => [name, text(name)]));
  return { ...DEFAULTS, ...numbers, typical_p: numbers.typical_p || text("typ_p"), system: text("systemMessage") };
}

/** @param {Settings} [settings] @returns {Chat} */
export function newChat(settings = defaults()) {
  const now = Date.now();
  return { id: newId(), title: "", created: now, updated: now, leaf: null, settings: { ...settings } };
}

/**
 * The messages from the first to `leaf`.
 * @param {Map<string, Message>} all @param {string | null} leaf
 */
export function pathTo(all, leaf) {
  const path = [];
  for (let at = leaf ? all.get(leaf) : undefined; at; at = at.parent ? all.get(at.parent) : undefined) path.push(at);
  return path.reverse();
}

/** The children of each message, in the order in which they were made; "" for those that begin. @param {Map<string, Message>} all */
export function childrenOf(all) {
  /** @type {Map<string, Message[]>} */
  const children = new Map();
  for (const message of all.values()) {
    const key = message.parent ?? "";
    const list = children.get(key);
    if (list) list.push(message);
    else children.set(key, [message]);
  }
  for (const list of children.values()) list.sort((a, b) => a.created - b.created);
  return children;
}

/** The newest end below a message. @param {Map<string, Message[]>} children @param {Message} from */
export function endBelow(children, from) {
  let at = from;
  for (let below = children.get(at.id); below?.length; below = children.get(at.id)) at = below[below.length - 1];
  return at;
}

/** The versions of a chat with the present one. @param {Pick<Chat, "versions" | "updated">} chat */
const versionsOf = ({ versions = [], updated }) => [...versions.filter((one) => one !== updated), updated].slice(-100);

export async function exported() {
  const fresh = chats.value.filter(({ versions, updated }) => !versions?.includes(updated)).map((chat) => ({ ...chat, versions: versionsOf(chat) }));
  chats.value = merged(chats.value, fresh);
  if (fresh.length && (await changed((heads) => fresh.forEach((chat) => void heads.put(chat))))) tellOtherTabs("");
  const found = [];
  for (const chat of chats.value) {
    found.push({ chat, messages: await messagesOf(chat.id) });
  }
  return JSON.stringify({ format: "llamapool-chats", version: 1, chats: found }, null, 1);
}

/**
 * Import chats that `exported` returned: all or none. A later version of a chat replaces it; one that was also changed here
 * becomes a separate chat. Throws an error with a message for the user if nothing was imported.
 * @param {string} text @returns {Promise<string[]>} the ids of the chats that were replaced
 */
export async function imported(text) {
  const read = parsed(text);
  if (read?.format !== "llamapool-chats" || !Array.isArray(read.chats)) throw new Error(t("importNoChats"));
  /** @type {{chat: Chat, messages: Message[]}[]} */
  const all = read.chats.map((/** @type {unknown} */ one, /** @type {number} */ i) => {
    try {
      return readChat(one);
    } catch {
      throw new Error(t("importNoChat", i + 1));
    }
  });
  /** @type {Map<string, Chat[]>} */
  const families = new Map();
  const enter = (/** @type {Chat} */ chat) => families.set(rootOf(chat.id), merged(families.get(rootOf(chat.id)) ?? [], [chat]));
  chats.value.forEach(enter);
  /** @type {typeof all} */
  const fresh = [];
  /** @type {string[]} */
  const replaced = [];
  /** @type {Message[]} */
  const before = [];
  for (const { chat, messages } of all) {
    const same = families.get(rootOf(chat.id)) ?? [];
    if (same.some((one) => versionsOf(one).includes(chat.updated))) continue; // this version, or a later one
    const older = same.find(({ updated }) => chat.versions?.includes(updated));
    const stored = older ? await messagesOf(older.id) : [];
    if (older && stored.length <= messages.length) {
      chat.id = older.id;
      replaced.push(older.id);
      before.push(...stored);
    } else if (same.some(({ id }) => id === chat.id)) {
      chat.id = `${rootOf(chat.id)}~${newId()}`;
    }
    for (const message of messages) message.chat = chat.id;
    enter(chat);
    fresh.push({ chat, messages });
  }
  const kept = await changed((heads, table) => {
    for (const { id } of before) table.delete(id);
    for (const { chat, messages } of fresh) {
      heads.put(chat);
      for (const message of messages) table.put(message);
    }
  });
  if (!kept) throw new Error(t("importNoRoom"));
  for (const { id } of before) unsaved.messages.delete(id);
  for (const { chat } of fresh) {
    unsaved.chats.delete(chat.id);
    removed.delete(chat.id);
    tellOtherTabs(chat.id);
  }
  chats.value = merged(chats.value, fresh.map(({ chat }) => chat)).sort((a, b) => b.updated - a.updated);
  return replaced;
}

/** The id of the chat of which another one is a separate version. @param {string} id */
const rootOf = (id) => id.split("~")[0];

const SERVER_FILE = "llamapool-chats.json";

/** @returns {Promise<{id: string}[]>} the stored exports of this key, the newest first */
async function onServer() {
  const { data } = await json("v1/files?purpose=user_data&order=desc");
  return data.filter((/** @type {any} */ file) => file.filename === SERVER_FILE);
}

/** Store all chats on the server, replacing those that this key stored before. */
export async function saveToServer() {
  const form = new FormData();
  form.append("purpose", "user_data");
  form.append("file", new Blob([await exported()], { type: "application/json" }), SERVER_FILE);
  const before = await onServer();
  await call("v1/files", { body: form });
  for (const { id } of before) await call(`v1/files/${id}`, { method: "DELETE" });
}

/** Import the chats that are stored on the server, as `imported` does. Throws an error with a message for the user. */
export async function loadFromServer() {
  const [newest] = await onServer();
  if (!newest) throw new Error(t("serverNoChats"));
  return imported(await (await call(`v1/files/${newest.id}/content`)).text());
}

/** @param {string} text */
function parsed(text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(t("importNoJson", /** @type {Error} */ (error).message));
  }
}

/** @param {unknown} value */
const word = (value) => (typeof value === "string" ? value : "");
/** @param {unknown} value */
const time = (value) => (Number.isFinite(value) ? Number(value) : 0);

/** One chat of a file, which anybody may have written: with what a chat needs, and ids of its own for its messages.
 * @param {any} given @returns {{chat: Chat, messages: Message[]}} */
function readChat(given) {
  const { chat, messages: all } = given;
  if (!word(chat.id) || /\p{Surrogate}/u.test(chat.id) || !Array.isArray(all)) throw new Error("format"); // half a pair has no URL
  const ids = new Map(all.map((message) => [message.id, newId()]));
  const settings = { ...DEFAULTS, ...Object.fromEntries(Object.entries(chat.settings ?? {}).filter(([, value]) => word(value))) };
  const parents = parentsOf(all);
  const messages = all.map((message) => {
    if (!["user", "assistant", "tool"].includes(message.role)) throw new Error("format");
    const parent = ids.get(parents.get(message.id) ?? "") ?? null;
    return readMessage(message, { id: ids.get(message.id) ?? newId(), chat: chat.id, parent });
  });
  const leaf = ids.get(chat.leaf) ?? messages.at(-1)?.id ?? null;
  const head = { id: chat.id, title: word(chat.title) || word(messages[0]?.content).slice(0, 80) };
  const updated = time(chat.updated);
  const versions = versionsOf({ versions: Array.isArray(chat.versions) ? chat.versions.filter(Number.isFinite) : [], updated });
  return { chat: { ...head, created: time(chat.created), updated, leaf, settings, versions }, messages };
}

/** The parent of each message; a way up that leads into itself ends there. @param {any[]} all @returns {Map<string, string | null>} */
function parentsOf(all) {
  const parents = new Map(all.map((message) => [message.id, message.parent ?? null]));
  const fine = new Set();
  for (const { id } of all) {
    const way = new Set();
    let at = id;
    for (; parents.has(at) && !fine.has(at) && !way.has(at); at = parents.get(at)) way.add(at);
    if (way.has(at)) parents.set(at, null);
    for (const one of way) fine.add(one);
  }
  return parents;
}

/** @param {string} type a media type @returns {Attached["kind"] | undefined} */
export const kindOf = (type) =>
  type.startsWith("image/") ? "image" : type.startsWith("audio/") ? "audio" : /^(application\/pdf|text\/plain)\b/.test(type) ? "file" : undefined;

/** @param {File} file @returns {Promise<Attached>} */
export async function asAttached(file) {
  const kind = kindOf(file.type) ?? "file";
  const data = kind === "file" && file.type !== "application/pdf" ? new Blob([file], { type: "text/plain" }) : file;
  const url = await new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(String(reader.result));
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(data);
  });
  return { kind, url, name: file.name };
}

/** @param {any} given @param {{id: string, chat: string, parent: string | null}} place @returns {Message} */
function readMessage(given, place) {
  /** @type {Message} */
  const message = { ...place, role: given.role, content: word(given.content), created: time(given.created) };
  for (const name of /** @type {const} */ (["reasoning", "callId", "model", "finish", "error"])) {
    if (word(given[name])) message[name] = given[name];
  }
  if (Array.isArray(given.calls)) {
    message.calls = given.calls.map((/** @type {any} */ one) => ({ id: word(one.id), name: word(one.name), arguments: word(one.arguments) }));
  }
  if (Array.isArray(given.attached)) {
    const own = given.attached.filter((/** @type {any} */ one) => kindOf(word(one.url).slice(5)));
    message.attached = own.map((/** @type {any} */ one) => ({ kind: kindOf(one.url.slice(5)), url: one.url, name: word(one.name) }));
  }
  const timings = Object.entries(given.timings ?? {}).filter(([, value]) => Number.isFinite(value));
  if (timings.length) message.timings = /** @type {any} */ ({ cache_n: 0, prompt_n: 0, predicted_n: 0, predicted_per_second: 0, ...Object.fromEntries(timings) });
  return message;
}

/** Chats in whose title or messages all words stand. @param {string} words @returns {Promise<Set<string>>} */
export async function search(words) {
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
  /** @param {string} text */
  const fits = (text) => wanted.every((word) => text.toLowerCase().includes(word));
  const found = new Set(chats.value.filter((chat) => fits(chat.title)).map((chat) => chat.id));
  for (const message of unsaved.messages.values()) if (fits(message.content)) found.add(message.chat);
  const store = await table("messages");
  if (!store) return found;
  await new Promise((resolve) => {
    const walk = store.openCursor();
    walk.onsuccess = () => {
      const at = walk.result;
      if (!at) return resolve(undefined);
      if (fits(at.value.content ?? "")) found.add(at.value.chat);
      at.continue();
    };
    walk.onerror = () => resolve(undefined);
  });
  return found;
}
