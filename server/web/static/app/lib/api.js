// HTTP requests to the server: URLs relative to the page, the API key, errors with their status, event streams.
import { signal } from "./dom.js";
import { keep, kept, onKept } from "./storage.js";
import { t } from "./texts.js";

const KEY = "llamapool.key";
const ROOT = new URL(".", document.baseURI);

/** Whether the server has rejected the key or requires one. */
export const keyWanted = signal(false);
/** "ok" if the last request reached the server, otherwise "lost". */
export const connection = signal("ok");
/** The API key, stored in this browser; "" = none. */
export const apiKey = signal(kept(KEY));
/** Whether the server rejected a request without a valid key, and has accepted no key since. */
export const keyMissing = signal(false);
let refused = "";
let declined = false;

/** @param {string} key */
export function useKey(key) {
  apiKey.value = key;
  keep(KEY, key);
  keyWanted.value = keyMissing.value = declined = false;
}

/** Another tab was given a key: it holds here, too. @param {() => void} heard */
export function onKeyElsewhere(heard) {
  onKept(KEY, (key) => {
    useKey(key);
    heard();
  });
}

/** The user closed the key dialog: do not open it again automatically. */
export function declineKey() {
  keyWanted.value = false;
  declined = true;
}

/** Whether a header can carry this key: browsers send no other letters. @param {string} key */
export const sendable = (key) => /^[\x21-\x7e]*$/.test(key);

/** An error reply of the server. `status` 0: the server cannot be reached, or the connection broke. */
export class ApiError extends Error {
  /** @param {number} status @param {string} message @param {string} [type] @param {number} [retryAfter] seconds */
  constructor(status, message, type = "", retryAfter = 0) {
    super(message);
    this.status = status;
    this.type = type;
    this.retryAfter = retryAfter;
  }
}

/** @param {string} path */
export const address = (path) => new URL(path.replace(/^\//, ""), ROOT);

/**
 * Send a request and return its reply. Throws `ApiError` unless the status is a success.
 * @param {string} path
 * @param {{method?: string, body?: unknown, signal?: AbortSignal, headers?: Record<string, string>}} [options]
 * @returns {Promise<Response>}
 */
export async function call(path, { method, body, signal, headers = {} } = {}) {
  /** @type {Record<string, string>} */
  const sent = { ...headers };
  if (apiKey.value && sendable(apiKey.value)) sent.Authorization = `Bearer ${apiKey.value}`;
  const form = body instanceof FormData;
  if (body !== undefined && !form) sent["Content-Type"] = "application/json";
  let reply;
  try {
    reply = await fetch(address(path), {
      method: method ?? (body === undefined ? "GET" : "POST"),
      headers: sent,
      body: form ? body : body === undefined ? undefined : JSON.stringify(body),
      signal,
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    connection.value = "lost";
    throw new ApiError(0, t("errorLost"));
  }
  connection.value = "ok";
  if (reply.ok) {
    if (path === refused) keyMissing.value = false;
    return reply;
  }
  if (reply.status === 401) {
    keyMissing.value = true;
    refused = path;
    if (!declined) keyWanted.value = true;
  }
  throw await errorOf(reply);
}

/** @param {Response} reply */
async function errorOf(reply) {
  const retry = Number(reply.headers.get("Retry-After") ?? 0);
  const text = await reply.text();
  try {
    const { error } = JSON.parse(text);
    return new ApiError(reply.status, error.message ?? String(error), error.type ?? "", retry);
  } catch {
    return new ApiError(reply.status, text.slice(0, 300) || reply.statusText, "", retry);
  }
}

/**
 * @param {string} path
 * @param {Parameters<typeof call>[1]} [options]
 * @returns {Promise<any>}
 */
export async function json(path, options) {
  return (await call(path, options)).json();
}

/**
 * Yield the events of a stream as they arrive.
 * @param {Response} reply
 * @returns {AsyncGenerator<{event: string, data: any}>}
 */
export async function* events(reply) {
  if (!reply.body) return;
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    while (true) {
      const { done, value } = await reader.read();
      if (done) return;
      rest += value;
      const parts = rest.split(/\r?\n\r?\n/);
      rest = parts.pop() ?? "";
      for (const part of parts) {
        let event = "message";
        let data = "";
        for (const line of part.split(/\r?\n/)) {
          if (line.startsWith("event:")) event = line.slice(6).trim();
          else if (line.startsWith("data:")) data += line.slice(5).trim();
        }
        if (data && data !== "[DONE]") yield { event, data: JSON.parse(data) };
      }
    }
  } catch (error) {
    throw error instanceof TypeError ? new ApiError(0, t("errorLost")) : error; // the connection broke
  } finally {
    await reader.cancel().catch(() => {});
  }
}
