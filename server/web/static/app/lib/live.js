// Live data: one stream for all views and tabs, open only while a visible view shows live data.
import { ApiError, apiKey, call, connection, events } from "./api.js";
import { signal, useEffect } from "./dom.js";
import { LONGEST_PAUSE, pause } from "./seen.js";
import { together } from "./together.js";

/**
 * @typedef {{request: string, log: string, index: number, priority: number, prompt: number, cached: number, predicted: number, max: number,
 *   source: [where: string, slot: number], recompute: string, submitted: number, placed: number, begun: number, prompt_done: number,
 *   outcome: string}} Choice
 * @typedef {Choice & {model: string, slot: number, ended: number}} Ended
 * @typedef {{id: number, instance: number, phase: string, tokens: number, adapters: [number, number][],
 *   used: number, choice: Choice | null}} Slot
 * @typedef {[number: number, at: number, seconds: number, decode: number, drafts: number, prompt: number]} Step
 * @typedef {[id: number, tokens: number, bytes: number, used: number, uses: number, value: number]} Kept a state without a slot;
 *   its id is negative
 * @typedef {{n: number, bytes: number, states: Kept[]}} Tier
 * @typedef {{slots: Slot[], shared: [number, number, number][], waiting: Choice[], n_waiting: number, steps: Step[][], adapters: {id: number, path: string, scale: number}[],
 *   ram: {bytes: number, hits: number}, disk: {bytes: number, hits: number}, prompt_tokens: number,
 *   cached_tokens: number, preempted: number, drafts: [number, number]}} Engine
 * @typedef {{id: string, status: string, progress: number, failure: string, leases: number, waiting: number, n_ctx?: number,
 *   n_slots?: number, engine?: Engine}} LiveModel
 * @typedef {{at: number, first_token: [number, number] | null, gap: [number, number] | null, generated_per_s: number,
 *   prompt_per_s: number, hit_rate: number | null, running: number, waiting: number, memory: number, ram_cache: number,
 *   disk_cache: number}} Sample
 */

export const state = signal(/** @type {{at: number, models: LiveModel[]} | null} */ (null));
export const requests = signal(/** @type {Ended[]} */ ([]));
export const hour = signal(/** @type {Sample[]} */ ([]));
/** The cached KV states of each model, by tier. */
export const tiers = signal(/** @type {Record<string, Record<string, Tier>>} */ ({}));
/** The last steps of each model, all instances together. */
export const steps = signal(/** @type {Map<string, Step[]>} */ (new Map()));
/** Why no data arrives; "" = data arrives. */
export const trouble = signal("");

const KEPT_STEPS = 400;
let users = 0;
let open = /** @type {AbortController | null} */ (null);

/** Receive live data while a component is mounted. */
export function useLive() {
  useEffect(() => {
    users += 1;
    start();
    document.addEventListener("visibilitychange", start);
    return () => {
      users -= 1;
      document.removeEventListener("visibilitychange", start);
      start();
    };
  }, []);
}

apiKey.subscribe(() => {
  if (!open) return;
  open.abort();
  open = null;
  start();
});

/** Follow only while this tab is visible. */
function start() {
  const wanted = users > 0 && !document.hidden;
  if (wanted === Boolean(open)) return;
  if (open) {
    open.abort();
    open = null;
    return;
  }
  open = new AbortController();
  const { signal } = open;
  void together("live", signal, (say) => look(signal, say), ([event, data]) => take(event, data), known);
}

/** Return the events that bring a newly visible tab up to date: the server does not repeat them. */
const known = () => [["history", hour.value], ["requests", requests.value], ["tiers", tiers.value], ["trouble", trouble.value]];

/** @param {AbortSignal} signal @param {(said: [event: string, data: any]) => void} say */
async function look(signal, say) {
  for (let wait = 500; !signal.aborted; wait = Math.min(wait * 2, LONGEST_PAUSE)) {
    try {
      const reply = await call("page/live", { signal });
      say(["trouble", ""]);
      wait = 500;
      for await (const { event, data } of events(reply)) say([event, data]);
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof ApiError && error.status === 401) wait = LONGEST_PAUSE; // the same key may become valid later
      const lost = error instanceof ApiError && !error.status;
      say(lost ? ["lost", ""] : ["trouble", String(/** @type {Error} */ (error).message)]);
    }
    await pause(wait, signal);
  }
}

/** @param {string} event @param {any} data */
function take(event, data) {
  if (event === "trouble") trouble.value = data;
  else if (event === "lost") connection.value = "lost"; // the frame shows a message above all views
  else if (event === "history") hour.value = data;
  else if (event === "sample") hour.value = [...hour.value, data].slice(-360);
  else if (event === "requests") requests.value = data;
  else if (event === "tiers") tiers.value = data;
  else if (event === "state") {
    state.value = data;
    const next = new Map(steps.value);
    for (const model of data.models) {
      const fresh = model.engine?.steps.flat() ?? [];
      if (fresh.length) next.set(model.id, [...(next.get(model.id) ?? []), ...fresh].slice(-KEPT_STEPS));
    }
    steps.value = next;
  }
}
