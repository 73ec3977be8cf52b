// Tool calls: of the server's own tools (`--tools`) and of MCP servers. A tool runs when the user allows it.
import { json } from "../../lib/api.js";
import { config } from "../../lib/config.js";
import { signal } from "../../lib/dom.js";
import { t } from "../../lib/texts.js";
import { callTool, mcpTools } from "./mcp.js";

/**
 * @typedef {{tool: string, definition: any, permissions: {write: boolean}}} ServerTool
 * @typedef {import("./store.js").Message} Message
 * @typedef {import("./store.js").Settings} Settings
 * @typedef {{content?: string, attached?: import("./store.js").Attached[], stop?: () => void}} Outcome of a call; without
 *   `content` it runs
 * @typedef {{id: string, where: string, run: (given: string, signal: AbortSignal) => Promise<import("./mcp.js").Content>}} Runner
 */

const DENIED = "The user denied this call.";
const CANCELLED = "The user cancelled this call.";
/** After this many rounds since the user's last message, allowed tools need permission again. */
const MAX_ROUNDS = 25;

/** @type {Promise<ServerTool[] | void> | undefined} */
let loading;
const known = signal(/** @type {ServerTool[]} */ ([]));

/** @returns {Promise<ServerTool[]>} none where the server has none, or this key may not */
export async function serverTools() {
  if (!config.value.tools) return [];
  loading ??= json("tools").catch(() => void (loading = undefined));
  return (known.value = (await loading) ?? []);
}

/** The results of calls that this tab ran, by `nameOf`. */
export const outcomes = signal(/** @type {Map<string, Outcome>} */ (new Map()));
/** Tools that run without a question: the chat, then the tool. Nothing is stored, so that a reload asks again. @type {Set<string>} */
const allowed = new Set();

/** @param {Message} message @param {number} i */
const nameOf = (message, i) => `${message.id}/${i}`;
/** @param {Message} message @param {number} i */
export const outcomeOf = (message, i) => outcomes.value.get(nameOf(message, i));

/** @param {Message} message @param {number} i @param {Outcome} outcome */
function put(message, i, outcome) {
  outcomes.value = new Map(outcomes.value).set(nameOf(message, i), outcome);
}

/**
 * Return the runner of the tool with this name. MCP tools never share a name with the chat's own tools.
 * @param {string} name @param {Settings} settings @returns {Runner | undefined}
 */
export function runnerOf(name, settings) {
  const found = mcpTools(settings).get(name);
  if (found) {
    const { server, connection, tool } = found;
    return {
      ...{ id: `${server.url} ${tool.name}`, where: `${connection.title} (${new URL(server.url).host})` },
      run: (given, signal) => callTool(connection, tool, JSON.parse(given || "{}"), signal),
    };
  }
  if (!known.value.some(({ tool }) => tool === name)) return undefined;
  return {
    ...{ id: name, where: t("thisServer") },
    async run(given, signal) {
      const said = await json("tools", { body: { tool: name, params: JSON.parse(given || "{}") }, signal });
      return { text: said.plain_text_response ?? JSON.stringify(said), attached: [] };
    },
  };
}

/** Whether the user has allowed this tool for the chat. @param {Message} message @param {Runner} runner @param {number} rounds */
export const isAllowed = ({ chat }, { id }, rounds) => rounds <= MAX_ROUNDS && allowed.has(`${chat} ${id}`);

/** @param {Message} message @param {Runner} runner */
export const allow = ({ chat }, { id }) => void allowed.add(`${chat} ${id}`);

/**
 * Run a call. A failure becomes a text for the model.
 * @param {Message} message @param {number} i @param {Runner} runner @returns {Promise<void>}
 */
export async function run(message, i, runner) {
  if (outcomeOf(message, i)) return;
  const stopping = new AbortController();
  put(message, i, { stop: () => stopping.abort() });
  try {
    const { text, attached } = await runner.run((message.calls ?? [])[i].arguments, stopping.signal);
    put(message, i, { content: text, attached });
  } catch (error) {
    put(message, i, { content: stopping.signal.aborted ? CANCELLED : `Error: ${/** @type {Error} */ (error).message}` });
  }
}

/** @param {Message} message @param {number} i @param {string} [content] what the user says instead of the tool */
export const answer = (message, i, content = DENIED) => put(message, i, { content });
