// The models of the server, and the chosen one.
import { ApiError, call, connection, events, json } from "./api.js";
import { computed, signal } from "./dom.js";
import { LONGEST_PAUSE, pause, whileSeen } from "./seen.js";
import { keep, kept } from "./storage.js";
import { together } from "./together.js";

/**
 * @typedef {{value: string, progress?: {value: number, current: string}, failed?: boolean, reason?: string}} Status
 * @typedef {{id: string, aliases: string[], status: Status, meta?: any, capabilities: string[], source?: string,
 *   can_remove?: boolean, pinned?: boolean, architecture?: {input_modalities: string[]}, progress?: Record<string, {done: number, total: number}>}} Model
 */

/** @type {import("../../vendor/signals.js").Signal<Model[] | null>} */
export const models = signal(/** @type {Model[] | null} */ (null));
const CHOSEN = "llamapool.model";
const asked = signal(kept(CHOSEN));

/** The chosen model, or the first that generates. */
export const chosen = computed(() => {
  const all = (models.value ?? []).filter((model) => model.capabilities.includes("completion"));
  return all.find((model) => model.id === asked.value) ?? all.find((model) => model.status.value === "loaded") ?? all[0];
});

/** @param {string} id */
export function choose(id) {
  asked.value = id;
  keep(CHOSEN, id);
}

export async function refresh() {
  const found = await json("models");
  const can = new Map(found.models.map((/** @type {any} */ m) => [m.name, m.capabilities]));
  models.value = found.data.map((/** @type {any} */ m) => ({ ...m, capabilities: can.get(m.id) ?? [] }));
}

/** Follow status changes until `stop`, while the page is seen. @param {AbortSignal} stop */
export async function follow(stop) {
  while (!stop.aborted) {
    const signal = await whileSeen(stop);
    await refresh().catch(() => {});
    const heard = (/** @type {any} */ event) => void changed(event).catch(() => {});
    await together("models", signal, (say) => followed(signal, say), heard, () => [{ event: "models_reload" }]); // a tab that joins later missed earlier events
  }
}

/**
 * Read events until `signal`, and reconnect after an interruption.
 * @param {AbortSignal} signal @param {(event: any) => void} say
 */
async function followed(signal, say) {
  for (let wait = 500; !signal.aborted; wait = Math.min(wait * 2, LONGEST_PAUSE)) {
    try {
      const reply = await call("models/sse", { signal });
      say({ event: "models_reload" }); // events before this connection were missed
      wait = 500;
      for await (const { data } of events(reply)) say(data);
    } catch (error) {
      if (signal.aborted) break;
      if (error instanceof ApiError && error.status === 401) wait = LONGEST_PAUSE; // the same key may become valid later
      if (error instanceof ApiError && !error.status) say({ event: "lost" });
    }
    await pause(wait, signal);
  }
}

/** @param {{model: string, event: string, data?: any}} event */
async function changed({ model, event, data }) {
  if (event === "lost") {
    connection.value = "lost";
    return;
  }
  const known = models.value?.find((one) => one.id === model);
  if (known && event === "model_status" && data.status === "loading" && known.status.value === "loading") {
    const status = { value: "loading", progress: data.progress };
    models.value = (models.value ?? []).map((one) => (one === known ? { ...one, status } : one));
  } else if (known && event === "download_progress") {
    models.value = (models.value ?? []).map((one) => (one === known ? { ...one, progress: data.progress } : one));
  } else {
    await refresh();
  }
}
