// Chats, kept in this browser: IndexedDB, a record for each message, so that a long chat is not written anew for a word.
import { config } from "../../lib/config.js";
import { signal } from "../../lib/dom.js";

/**
 * @typedef {{id: string, name: string, arguments: string}} ToolCall
 * @typedef {{kind: "image" | "audio", url: string, name: string}} Attached a file as a data: address
 * @typedef {{cache_n: number, prompt_n: number, prompt_ms: number, prompt_per_second: number, predicted_n: number,
 *   predicted_ms: number, predicted_per_second: number, first_ms?: number}} Timings
 * @typedef {{id: string, chat: string, parent: string | null, role: "user" | "assistant" | "tool", content: string,
 *   reasoning?: string, calls?: ToolCall[], callId?: string, created: number, model?: string, timings?: Timings,
 *   finish?: string, error?: string, stream?: string, resumeFrom?: string, attached?: Attached[]}} Message
 * @typedef {{system: string, schema: string, grammar: string, tools: string, thinking: string} & Record<string, string>} Settings
 *   `thinking`: "auto", "on" or "off"; the rest by their names in the API (`SAMPLING`)
 * @typedef {{id: string, title: string, created: number, updated: number, leaf: string | null, settings: Settings}} Chat
 */

/** Numbers that a request may have, by the API's names: those that are always shown, then those that are folded. */
export const SAMPLING = ["temperature", "top_p", "top_k", "min_p", "max_tokens", "seed"];
export const MORE_SAMPLING = [
  ...["repeat_penalty", "repeat_last_n", "presence_penalty", "frequency_penalty"],
  ...["dry_multiplier", "dry_base", "dry_allowed_length", "dry_penalty_last_n"],
  ...["xtc_probability", "xtc_threshold", "typical_p", "top_n_sigma"],
  ...["dynatemp_range", "dynatemp_exponent", "adaptive_target", "adaptive_decay"],
  ...["mirostat", "mirostat_tau", "mirostat_eta", "min_keep"],
];

/** @type {Settings} */
export const DEFAULTS = {
  ...Object.fromEntries([...SAMPLING, ...MORE_SAMPLING].map((name) => [name, ""])),
  ...{ system: "", thinking: "auto", schema: "", grammar: "", tools: "", samplers: "" },
};

/** Newest first. */
export const chats = signal(/** @type {Chat[]} */ ([]));
/** The open chat's messages, by id. */
export const messages = signal(/** @type {Map<string, Message>} */ (new Map()));
/** False where the browser keeps nothing, as in some private windows. */
export const keeps = signal(true);

/** @type {Promise<IDBDatabase | null> | undefined} */
let opening;

/** @returns {Promise<IDBDatabase | null>} */
function database() {
  opening ??= new Promise((resolve) => {
    const asked = indexedDB.open("llamapool", 1);
    asked.onupgradeneeded = () => {
      asked.result.createObjectStore("chats", { keyPath: "id" });
      asked.result.createObjectStore("messages", { keyPath: "id" }).createIndex("chat", "chat");
    };
    asked.onsuccess = () => resolve(asked.result);
    asked.onerror = () => {
      keeps.value = false;
      resolve(null);
    };
  });
  return opening;
}

/** @template T @param {IDBRequest<T>} request @returns {Promise<T>} */
const done = (request) =>
  new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });

/** @param {"chats" | "messages"} name @param {IDBTransactionMode} [mode] */
async function table(name, mode = "readonly") {
  return (await database())?.transaction(name, mode).objectStore(name);
}

export const newId = () => crypto.getRandomValues(new Uint32Array(3)).reduce((text, n) => text + n.toString(36), "");

export async function loadChats() {
  const store = await table("chats");
  const all = store ? await done(store.getAll()) : [];
  chats.value = all.sort((a, b) => b.updated - a.updated);
}

/** @param {string} chat @returns {Promise<Message[]>} */
export async function messagesOf(chat) {
  const store = await table("messages");
  return store ? done(store.index("chat").getAll(chat)) : [];
}

/** @param {Chat} chat */
export async function saveChat(chat) {
  chats.value = [chat, ...chats.value.filter((one) => one.id !== chat.id)].sort((a, b) => b.updated - a.updated);
  (await table("chats", "readwrite"))?.put(chat);
}

/** @param {Message} message */
export async function saveMessage(message) {
  (await table("messages", "readwrite"))?.put(message);
}

/** @param {string} id */
export async function removeChat(id) {
  chats.value = chats.value.filter((chat) => chat.id !== id);
  (await table("chats", "readwrite"))?.delete(id);
  const all = await messagesOf(id);
  const store = await table("messages", "readwrite");
  for (const message of all) store?.delete(message.id);
}

/** What a first chat begins with: what the server says, by llama-server's names. @returns {Settings} */
export function defaults() {
  const given = config.value.settings;
  const text = (/** @type {string} */ name) => (given[name] === undefined || given[name] === null ? "" : String(given[name]));
  const numbers = Object.fromEntries([...SAMPLING, ...MORE_SAMPLING, "samplers"].map((name) => [name, text(name)]));
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

export async function exported() {
  const found = [];
  for (const chat of chats.value) found.push({ chat, messages: await messagesOf(chat.id) });
  return JSON.stringify({ format: "llamapool-chats", version: 1, chats: found }, null, 1);
}

/** @param {string} text what `exported` gave @returns {Promise<number>} chats that were read */
export async function imported(text) {
  const read = JSON.parse(text);
  if (read.format !== "llamapool-chats" || !Array.isArray(read.chats)) throw new Error("format");
  for (const { chat, messages: all } of read.chats) {
    await saveChat({ ...chat, settings: { ...DEFAULTS, ...chat.settings } });
    for (const message of all) await saveMessage(message);
  }
  return read.chats.length;
}

/** Chats in whose title or messages all words stand. @param {string} words @returns {Promise<Set<string>>} */
export async function search(words) {
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
  /** @param {string} text */
  const fits = (text) => wanted.every((word) => text.toLowerCase().includes(word));
  const found = new Set(chats.value.filter((chat) => fits(chat.title)).map((chat) => chat.id));
  const store = await table("messages");
  if (!store) return found;
  await new Promise((resolve) => {
    const walk = store.openCursor();
    walk.onsuccess = () => {
      const at = walk.result;
      if (!at) return resolve(undefined);
      if (fits(at.value.content)) found.add(at.value.chat);
      at.continue();
    };
    walk.onerror = () => resolve(undefined);
  });
  return found;
}
