// The web UI's configuration from the server.
import { json } from "./api.js";
import { signal } from "./dom.js";

/**
 * @typedef {{settings: Record<string, any>, tools: boolean, proxy: boolean, log_bodies: boolean, scenarios: string[], sampling: string[]}}
 *   Config `settings`: by llama-server's names (`--ui-config`). `proxy`: whether `/cors-proxy` is on. `sampling`: names
 *   of the numeric sampling parameters
 */

/** @type {import("../../vendor/signals.js").Signal<Config>} */
export const config = signal(/** @type {Config} */ ({ settings: {}, tools: false, proxy: false, log_bodies: false, scenarios: [], sampling: [] }));

export async function loadConfig() {
  config.value = await json("page/config");
}
