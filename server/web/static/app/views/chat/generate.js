// Generates an answer: the request, its stream, and resuming the stream after a reload.
import { ApiError, call, connection, events, json } from "../../lib/api.js";
import { signal } from "../../lib/dom.js";
import { LONGEST_PAUSE, pause } from "../../lib/seen.js";
import { language, t } from "../../lib/texts.js";
import { toolDefinitions } from "./mcp.js";
import { messageOf, messages, moreSampling, SAMPLING, saveMessage, tellOtherTabs } from "./store.js";

/**
 * @typedef {import("./store.js").Message} Message
 * @typedef {import("./store.js").Settings} Settings
 */

/** The running generations by message id: how to stop each, and its prefill progress. */
export const running = signal(/** @type {Map<string, {stop: () => void, progress: number, chat: string}>} */ (new Map()));

/** @param {string} id @param {{stop: () => void, progress: number, chat: string} | null} state */
function notify(id, state) {
  const next = new Map(running.value);
  if (state) next.set(id, state);
  else next.delete(id);
  running.value = next;
}

/** @param {string} name @param {string} text */
function numeric(name, text) {
  if (text.trim() === "") return undefined;
  const value = Number(text.replace(",", "."));
  const thousands = language.value !== "de" && /^[1-9]\d{0,2}(,\d{3})+$/.test(text.trim()); // not a decimal comma
  if (thousands || !Number.isFinite(value)) throw new Error(t("notANumber", name, text));
  return value;
}

/**
 * Return the body of a chat request. Throws an error with a message for the user if a setting is invalid.
 * @param {string} model @param {Settings} settings @param {Message[]} path @param {boolean} stream
 */
export function requestBody(model, settings, path, stream) {
  /** @type {Record<string, any>} */
  const body = { model, messages: conversation(settings.system, path) };
  for (const name of [...SAMPLING, ...moreSampling()]) {
    const value = numeric(name, settings[name] ?? "");
    if (value !== undefined) body[name] = value;
  }
  const samplers = (settings.samplers ?? "").split(/[;,\s]+/).filter(Boolean);
  if (samplers.length) body.samplers = samplers;
  if (settings.thinking !== "auto") body.chat_template_kwargs = { enable_thinking: settings.thinking === "on" };
  if (settings.schema.trim()) {
    const schema = parsed(settings.schema, t("schema"));
    body.response_format = { type: "json_schema", json_schema: { name: "answer", schema } };
  } else if (settings.grammar.trim()) {
    body.grammar = settings.grammar;
  }
  const tools = settings.tools.trim() ? parsed(settings.tools, t("tools")) : [];
  if (!Array.isArray(tools)) throw new Error(t("notAList", t("tools")));
  tools.push(...toolDefinitions(settings));
  if (tools.length) body.tools = tools;
  if (stream) Object.assign(body, { stream: true, timings_per_token: true, return_progress: true });
  return body;
}

/** @param {string} text @param {string} what */
function parsed(text, what) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`${what}: ${/** @type {Error} */ (error).message}`);
  }
}

/** @param {string} system @param {Message[]} path */
export function conversation(system, path) {
  const sent = path.map((one) => {
    const content = one.attached?.length ? [...one.attached.map(part), ...(one.content ? [{ type: "text", text: one.content }] : [])] : one.content;
    if (one.role === "tool") return { role: "tool", tool_call_id: one.callId, content };
    if (one.role === "user") return { role: "user", content };
    /** @type {Record<string, any>} */
    const message = { role: one.role, content: one.content };
    if (one.reasoning) message.reasoning_content = one.reasoning;
    if (one.calls?.length) {
      message.tool_calls = one.calls.map(({ id, name, arguments: text }) => ({
        ...{ id, type: "function" },
        function: { name, arguments: text },
      }));
    }
    return message;
  });
  return system.trim() ? [{ role: "system", content: system }, ...sent] : sent;
}

/** Return a file as a content part of OpenAI's API. @param {import("./store.js").Attached} file */
function part({ kind, url, name }) {
  if (kind === "image") return { type: "image_url", image_url: { url } };
  if (kind === "file") return { type: "file", file: { filename: name, file_data: url } };
  const format = /^data:audio\/(?:x-)?(?:mpeg|mp3)/.test(url) ? "mp3" : "wav";
  return { type: "input_audio", input_audio: { data: url.slice(url.indexOf(",") + 1), format } };
}

/** Appends deltas to a message and renders it at most once per frame. */
class Writer {
  /** @param {Message} message @param {number} sentAt time of the request, in ms @param {boolean} theirs another tab stores it */
  constructor(message, sentAt, theirs) {
    this.message = message;
    this.sentAt = sentAt;
    this.theirs = theirs;
    this.notified = theirs;
    this.drawing = 0;
    this.savedAt = 0;
  }

  /** @param {any} chunk */
  take(chunk) {
    if (chunk.error) throw new ApiError(500, chunk.error.message, chunk.error.type);
    if (!this.notified) tellOtherTabs(this.message.chat); // the server knows the stream now, so other tabs can follow it
    this.notified = true;
    if (chunk.prompt_progress) {
      const { total, processed } = chunk.prompt_progress;
      const state = running.value.get(this.message.id);
      if (state) notify(this.message.id, { ...state, progress: total ? processed / total : 0 });
    }
    const choice = chunk.choices?.[0];
    const delta = choice?.delta ?? {};
    const text = delta.content ?? "";
    const reasoning = delta.reasoning_content ?? "";
    if ((text || reasoning || delta.tool_calls) && this.message.timings?.first_ms === undefined && this.sentAt) {
      this.first = performance.now() - this.sentAt;
    }
    this.message.content += text;
    if (reasoning) this.message.reasoning = (this.message.reasoning ?? "") + reasoning;
    for (const part of delta.tool_calls ?? []) this.call(part);
    if (chunk.timings) this.message.timings = { ...chunk.timings, first_ms: this.first ?? this.message.timings?.first_ms };
    if (choice?.finish_reason) this.message.finish = choice.finish_reason;
    this.show();
  }

  /** @param {any} part */
  call(part) {
    const calls = [...(this.message.calls ?? [])];
    const known = calls[part.index] ?? { id: "", name: "", arguments: "" };
    calls[part.index] = {
      id: part.id ?? known.id,
      name: known.name + (part.function?.name ?? ""),
      arguments: known.arguments + (part.function?.arguments ?? ""),
    };
    this.message.calls = calls;
  }

  show() {
    if (this.drawing) return;
    this.drawing = requestAnimationFrame(() => {
      this.drawing = 0;
      this.put();
      if (!this.theirs && performance.now() - this.savedAt > 1000) {
        this.savedAt = performance.now();
        void saveMessage(this.message);
      }
    });
  }

  put() {
    this.message = { ...this.message };
    if (messages.value.get(this.message.id)) messages.value = new Map(messages.value).set(this.message.id, this.message);
  }

  /** @param {boolean} resumable after a reload */
  async end(resumable) {
    cancelAnimationFrame(this.drawing);
    const { id, stream } = this.message;
    if (!resumable) delete this.message.stream;
    this.put();
    if (this.theirs) {
      await new Promise((done) => setTimeout(done, 2000));
      const kept = await messageOf(id);
      if (!kept || kept.stream !== stream) {
        if (kept) this.message = kept;
        return this.put();
      } // the other tab was closed: store it here
    }
    await saveMessage(this.message);
    tellOtherTabs(this.message.chat);
  }
}

/**
 * Generate an answer into `message`. Its content, if any, is continued.
 * @param {Message} message @param {() => Record<string, any> | Promise<Record<string, any>>} prepare makes the body; it may wait for MCP servers
 */
export async function generate(message, prepare) {
  const stopped = new Promise((resolve) => notify(message.id, { stop: () => resolve(undefined), progress: 0, chat: message.chat }));
  const body = await Promise.race([stopped, Promise.resolve().then(prepare)]).catch((error) => {
    notify(message.id, null);
    throw error;
  });
  if (!body) {
    notify(message.id, null);
    return new Writer({ ...message, finish: "stopped" }, 0, false).end(false);
  }
  Object.assign(message, { resumeFrom: message.content, resumeReasoning: message.reasoning });
  const stream = (message.stream = `${message.id}-${Date.now().toString(36)}`);
  await saveMessage(message);
  const reply = () => call("v1/chat/completions", { body, headers: { "X-Conversation-Id": stream } });
  await follow(message, stream, reply, performance.now());
}

/**
 * Resume an answer that was being generated when the page was closed, or follow one that another tab generates.
 * @param {Message} message @param {boolean} [theirs] another tab announced the stream and will announce its end
 */
export async function resume(message, theirs = false) {
  const stream = message.stream;
  if (!stream || running.value.has(message.id) || (theirs && document.hidden)) return;
  const stopped = new AbortController();
  const stop = () => {
    stopped.abort();
    stopStream(stream);
  };
  notify(message.id, { stop, progress: 0, chat: message.chat }); // before the lookup: it is not finished
  /** @param {Partial<Message>} outcome */
  const ended = async (outcome) => {
    notify(message.id, null);
    if (theirs) return;
    const { stream: _, ...left } = message;
    const next = { ...left, ...outcome };
    if (messages.value.has(next.id)) messages.value = new Map(messages.value).set(next.id, next);
    await saveMessage(next);
  };
  for (let wait = 500; !stopped.signal.aborted; wait = Math.min(wait * 2, LONGEST_PAUSE)) {
    try {
      const found = await json("v1/streams/lookup", { body: { conversation_ids: [stream] } });
      if (stopped.signal.aborted) break;
      if (!found.length) return ended({ finish: "lost" });
      const lost = () => Promise.reject(new ApiError(404, t("lostAnswer")));
      return follow(message, stream, () => again(stream, lost), 0, theirs);
    } catch (error) {
      if (!(error instanceof ApiError) || ![0, 401, 429, 503].includes(error.status)) return ended({ error: sentence(error) });
      await pause(wait, stopped.signal); // the server may be reached, or accept the key, later
    }
  }
  await ended({ finish: "stopped" });
}

/** @param {string} stream */
const stopStream = (stream) => void call(`v1/stream?conv_id=${encodeURIComponent(stream)}`, { method: "DELETE" }).catch(() => {});

/** Read a stream from its start; call `open` if the server does not know it. @param {string} stream @param {() => Promise<Response>} open */
async function again(stream, open) {
  for (;;) {
    try {
      return await call(`v1/stream?conv_id=${encodeURIComponent(stream)}&from=0`);
    } catch (error) {
      if (error instanceof ApiError && error.status === 404) return open();
      if (!(error instanceof ApiError) || error.status !== 503) throw error;
      await new Promise((done) => setTimeout(done, 1000 * (error.retryAfter || 1)));
    }
  }
}

/** Wait until the server can be reached, or until `stop`. @param {number} wait before the first attempt, in ms @param {AbortSignal} stop */
async function reached(wait, stop) {
  do {
    await pause(wait, stop);
    await call("health").catch(() => {});
    wait = Math.min(wait * 2, LONGEST_PAUSE);
  } while (connection.value === "lost" && !stop.aborted);
}

/**
 * @param {Message} message @param {string} stream @param {() => Promise<Response>} open @param {number} sentAt
 * @param {boolean} [theirs] another tab stores it
 */
async function follow(message, stream, open, sentAt, theirs = false) {
  const writer = new Writer({ ...message, error: undefined }, sentAt, theirs);
  const stopped = new AbortController();
  const stop = () => {
    stopped.abort();
    stopStream(stream);
  };
  notify(message.id, { stop, progress: 0, chat: message.chat });
  let broken = false;
  try {
    for (let n = 0; ; n += 1) {
      try {
        const reply = await (n ? again(stream, open) : open());
        const { resumeFrom = "", resumeReasoning } = message;
        Object.assign(writer.message, { content: resumeFrom, reasoning: resumeReasoning, calls: undefined });
        for await (const { data } of events(reply)) writer.take(data);
        break;
      } catch (error) {
        // The connection broke. The server keeps the stream, so it is read again from its start.
        broken = error instanceof ApiError && error.status === 0;
        if (stopped.signal.aborted || !broken || n >= 5) throw error;
        await reached(500 * 2 ** n, stopped.signal);
        if (stopped.signal.aborted) throw error;
      }
    }
    if (!writer.message.finish) writer.message.finish = "stopped";
  } catch (error) {
    if (stopped.signal.aborted) writer.message.finish = "stopped";
    else writer.message.error = sentence(error);
  } finally {
    notify(message.id, null);
    await writer.end(broken && !stopped.signal.aborted);
  }
}

/** Describe an error for the user: what went wrong and what to do. @param {unknown} error */
export function sentence(error) {
  if (!(error instanceof ApiError)) return String(error instanceof Error ? error.message : error);
  if (error.status === 0) return t("errorLost");
  if (error.status === 401) return t("errorKey");
  if (error.status === 429 && error.type === "unavailable_error") return t("errorFull", error.retryAfter || 1);
  if (error.message.includes("cancelled by the operator")) return t("errorCancelled");
  if (error.type === "unavailable_error") return `${t("errorModel")} ${error.message}`;
  return error.message;
}
