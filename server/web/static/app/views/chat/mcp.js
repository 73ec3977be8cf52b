// The MCP servers that this browser uses: their connections, the tools that the model may call, prompts and resources.
import { config } from "../../lib/config.js";
import { signal } from "../../lib/dom.js";
import { McpClient, McpError } from "../../lib/mcp-client.js";
import { keep, kept, onKept } from "../../lib/storage.js";
import { t } from "../../lib/texts.js";
import { asAttached, kindOf } from "./store.js";

/**
 * @typedef {import("./store.js").Attached} Attached
 * @typedef {{id: string, url: string, header: string, proxied: boolean, on: boolean, without: string[]}} McpServer
 *   `header`: "Name: value" or ""; `without`: names of tools that are off
 * @typedef {{name: string, title?: string, description?: string, inputSchema: any}} McpTool
 * @typedef {{title: string, client?: McpClient, error?: string, tools: McpTool[], prompts: any[], resources: any[], templates: any[]}} Connection
 *   neither `client` nor `error`: connecting
 * @typedef {{text: string, attached: Attached[]}} Content
 * @typedef {{id: string, title: string, about: string, fields: {name: string, about: string, required: boolean}[],
 *   read: (values: Record<string, string>) => Promise<Content>}} Insertion a prompt or a resource
 */

const KEY = "llamapool.mcp";
const CALL_MS = 600_000;
const MAX_CHARS = 100_000;

/** @type {import("../../../vendor/signals.js").Signal<McpServer[]>} */
export const mcpServers = signal(readServers(kept(KEY)));
/** By id of the server. */
export const connections = signal(/** @type {Map<string, Connection>} */ (new Map()));
/** @type {Map<string, Promise<void>>} */
const opening = new Map();

onKept(KEY, (text) => (mcpServers.value = readServers(text)));

/** Until the user changes them, the servers are those of `--ui-config` (`mcpServers`, as for llama-server). */
config.subscribe(({ settings }) => {
  const given = typeof settings.mcpServers === "string" ? settings.mcpServers : JSON.stringify(settings.mcpServers ?? []);
  if (!kept(KEY)) mcpServers.value = readServers(given);
});

/** @param {string} text @returns {McpServer[]} */
function readServers(text) {
  try {
    const found = /** @type {any[]} */ (JSON.parse(text || "[]"));
    return found.filter(({ url }) => mcpUrl(url)).map((one) => ({
      ...{ id: String(one.id ?? one.url), url: String(one.url), header: String(one.header ?? "") },
      ...{ proxied: Boolean(one.proxied ?? one.useProxy), on: Boolean(one.on ?? one.enabled), without: [...(one.without ?? [])] },
    }));
  } catch {
    return [];
  }
}

/** @param {McpServer[]} servers */
function store(servers) {
  mcpServers.value = servers;
  keep(KEY, JSON.stringify(servers));
}

/** Whether this is the URL of a server: http or https, without a password. @param {string} text */
export function mcpUrl(text) {
  if (!URL.canParse(text)) return false;
  const { protocol, username, password } = new URL(text);
  return /^https?:$/.test(protocol) && !username && !password;
}

/** @param {McpServer} server */
export function addServer(server) {
  store([...mcpServers.value.filter(({ id }) => id !== server.id), server]);
  return reconnect(server);
}

/** @param {McpServer} server @param {Partial<McpServer>} change */
export function changeServer(server, change) {
  store(mcpServers.value.map((one) => (one.id === server.id ? { ...one, ...change } : one)));
}

/** @param {McpServer} server */
export function removeServer({ id }) {
  store(mcpServers.value.filter((one) => one.id !== id));
  put(id, null);
}

/** @param {string} id @param {Connection | null} connection */
function put(id, connection) {
  const next = new Map(connections.value);
  if (connection && mcpServers.value.some((one) => one.id === id)) next.set(id, connection);
  else next.delete(id);
  connections.value = next;
}

/** Connect to the servers that are on, except those that failed. Never throws: a failure is in the connection. */
export async function connectAll() {
  await Promise.all(mcpServers.value.filter(({ id, on }) => on && (opening.has(id) || !connections.value.has(id))).map(connect));
}

/** @param {McpServer} server */
export function reconnect(server) {
  put(server.id, null);
  return connect(server);
}

/** @param {McpServer} server @returns {Promise<void>} */
function connect(server) {
  const begun = opening.get(server.id) ?? opened(server).finally(() => opening.delete(server.id));
  opening.set(server.id, begun);
  return begun;
}

/** @param {McpServer} server */
async function opened({ id, url, header, proxied }) {
  const at = header.indexOf(":");
  const client = new McpClient(url, at > 0 ? { [header.slice(0, at).trim()]: header.slice(at + 1).trim() } : {}, proxied);
  const none = { title: new URL(url).host, tools: [], prompts: [], resources: [], templates: [] };
  put(id, none);
  try {
    const { capabilities, serverInfo } = await client.connect();
    const [tools, prompts, resources, templates] = await Promise.all([
      capabilities.tools ? client.list("tools/list", "tools") : [],
      capabilities.prompts ? client.list("prompts/list", "prompts") : [],
      capabilities.resources ? client.list("resources/list", "resources") : [],
      capabilities.resources ? client.list("resources/templates/list", "resourceTemplates").catch(() => []) : [],
    ]);
    put(id, { title: serverInfo?.title || serverInfo?.name || none.title, client, tools, prompts, resources, templates });
  } catch (error) {
    put(id, { ...none, error: /** @type {Error} */ (error).message });
  }
}

/**
 * The tools of the connected servers, by the names that the model sees. A name that `settings` or an earlier server has gets
 * the server's host in front. Requests with a schema or a grammar take no tools.
 * @param {import("./store.js").Settings} settings
 * @returns {Map<string, {server: McpServer, connection: Connection, tool: McpTool}>}
 */
export function mcpTools(settings) {
  const found = new Map();
  if (settings.schema.trim() || settings.grammar.trim()) return found;
  const taken = new Set(namesIn(settings.tools));
  for (const server of mcpServers.value) {
    const connection = connections.value.get(server.id);
    if (!server.on || !connection?.client) continue;
    for (const tool of connection.tools) {
      if (server.without.includes(tool.name)) continue;
      const names = [tool.name, `${new URL(server.url).host}_${tool.name}`].map((name) => name.replace(/[^\w-]/g, "_").slice(0, 64));
      const name = names.find((one) => !taken.has(one) && !found.has(one));
      if (name) found.set(name, { server, connection, tool });
    }
  }
  return found;
}

/** @param {string} tools of the settings @returns {string[]} */
function namesIn(tools) {
  try {
    return JSON.parse(tools || "[]").map((/** @type {any} */ one) => one.function?.name ?? one.name);
  } catch {
    return []; // the request says what is wrong
  }
}

/** The tools as a request has them. @param {import("./store.js").Settings} settings */
export const toolDefinitions = (settings) =>
  [...mcpTools(settings)].map(([name, { tool }]) => ({
    type: "function",
    function: { name, description: tool.description ?? "", parameters: tool.inputSchema },
  }));

/**
 * Call a tool. A failure that the server reports is a text for the model.
 * @param {Connection} connection @param {McpTool} tool @param {Record<string, any>} values @param {AbortSignal} signal
 */
export async function callTool({ client }, tool, values, signal) {
  if (!client) throw new McpError(t("mcpUnreachable"));
  const said = await client.request("tools/call", { name: tool.name, arguments: values }, { signal, ms: CALL_MS });
  const { text, attached } = await contentOf(said.content ?? []);
  const shown = text || (said.structuredContent ? JSON.stringify(said.structuredContent) : "");
  return { text: (said.isError ? `Error: ${shown}` : shown).slice(0, MAX_CHARS), attached };
}

/** @param {any[]} parts of a result or a prompt @returns {Promise<Content>} */
async function contentOf(parts) {
  const texts = [];
  const attached = [];
  for (const part of parts) {
    if (part.type === "text") texts.push(part.text);
    else if (part.type === "resource_link") texts.push(`${part.title ?? part.name}: ${part.uri}`);
    else if (part.type === "resource" && part.resource.text !== undefined) texts.push(part.resource.text);
    else {
      const { data, mimeType } = part.type === "resource" ? { data: part.resource.blob, mimeType: part.resource.mimeType } : part;
      const kind = kindOf(String(mimeType));
      if (kind && data) attached.push({ kind, url: `data:${mimeType};base64,${data}`, name: part.type });
      else texts.push(`[${part.type} ${mimeType ?? ""}]`);
    }
  }
  return { text: texts.join("\n\n"), attached };
}

/** What a message can get from the connected servers, by the server's title. @returns {{title: string, entries: Insertion[]}[]} */
export function insertions() {
  const found = [];
  for (const { id, on } of mcpServers.value) {
    const connection = connections.value.get(id);
    if (!on || !connection?.client) continue;
    const { client, prompts, resources, templates, title } = connection;
    /** @type {Insertion[]} */
    const entries = prompts.map((one) => ({
      ...{ id: `prompt ${one.name}`, title: one.title ?? one.name, about: one.description ?? "" },
      fields: (one.arguments ?? []).map((/** @type {any} */ each) => ({ name: each.name, about: each.description ?? "", required: Boolean(each.required) })),
      read: async (values) => {
        const { messages } = await client.request("prompts/get", { name: one.name, arguments: values });
        return contentOf(messages.map((/** @type {any} */ message) => message.content));
      },
    }));
    for (const one of [...resources, ...templates]) {
      const uri = one.uri ?? one.uriTemplate;
      const names = [...uri.matchAll(/\{\+?(\w+)\}/g)].map(([, name]) => name);
      entries.push({
        ...{ id: `resource ${uri}`, title: one.title ?? one.name, about: one.description ?? uri },
        fields: one.uri ? [] : names.map((name) => ({ name, about: "", required: true })),
        read: (values) => resource(client, one.uri ?? expanded(uri, values), one.name),
      });
    }
    if (entries.length) found.push({ title, entries });
  }
  return found;
}

/** Variables of a URI template, of the kinds `{name}` and `{+name}`. @param {string} template @param {Record<string, string>} values */
const expanded = (template, values) =>
  template.replace(/\{(\+?)(\w+)\}/g, (_, plus, name) => (plus ? encodeURI : encodeURIComponent)(values[name] ?? ""));

/** @param {McpClient} client @param {string} uri @param {string} name @returns {Promise<Content>} */
async function resource(client, uri, name) {
  const { contents } = await client.request("resources/read", { uri });
  const attached = [];
  for (const one of contents) {
    if (one.text !== undefined) attached.push(await asAttached(new File([one.text], name, { type: "text/plain" })));
    else if (kindOf(String(one.mimeType))) attached.push({ ...(await contentOf([{ ...one, type: "blob", data: one.blob }])).attached[0], name });
    else throw new McpError(t("resourceUnread", uri, one.mimeType ?? "?"));
  }
  return { text: "", attached };
}
