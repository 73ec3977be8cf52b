// A client for MCP servers with streamable HTTP (modelcontextprotocol.io, revisions 2025-03-26 to 2025-11-25).
import { address, apiKey, events } from "./api.js";
import { t } from "./texts.js";

const NEWEST = "2025-11-25";
const CONNECT_MS = 10_000;
const TIMEOUT_MS = 60_000;
const MAX_PAGES = 50;
/** `/cors-proxy` forwards headers with this prefix. */
const FORWARD = "x-llama-server-proxy-header-";

/** Origins that this page's Content-Security-Policy does not allow. @type {Set<string>} */
const blocked = new Set();
document.addEventListener("securitypolicyviolation", ({ blockedURI, effectiveDirective }) => {
  if (effectiveDirective === "connect-src" && URL.canParse(blockedURI)) blocked.add(new URL(blockedURI).origin);
});

/** A failure of an MCP server or of the connection to it. */
export class McpError extends Error {}

export class McpClient {
  /**
   * @param {string} url
   * @param {Record<string, string>} headers sent with each request, such as Authorization
   * @param {boolean} proxied through this server's `/cors-proxy`; otherwise the browser connects by itself
   */
  constructor(url, headers, proxied) {
    this.url = url;
    this.headers = headers;
    this.proxied = proxied;
    this.session = "";
    this.version = "";
    this.lastId = 0;
  }

  /** Initialize a session. @returns {Promise<{capabilities: Record<string, any>, serverInfo?: {name?: string, title?: string}}>} */
  async connect() {
    this.session = this.version = "";
    const clientInfo = { name: "llamapool-web-ui", version: "1" };
    const found = await this.request("initialize", { protocolVersion: NEWEST, capabilities: {}, clientInfo }, { ms: CONNECT_MS });
    this.version = found.protocolVersion;
    await this.post({ method: "notifications/initialized" }, AbortSignal.timeout(CONNECT_MS));
    return found;
  }

  /** Return all pages of a list. @param {string} method @param {string} key of the page that has the items */
  async list(method, key) {
    /** @type {any[]} */
    const found = [];
    let cursor;
    for (let n = 0; n < MAX_PAGES; n += 1) {
      const page = await this.request(method, cursor ? { cursor } : {});
      found.push(...(page[key] ?? []));
      cursor = page.nextCursor;
      if (!cursor) break;
    }
    return found;
  }

  /**
   * Return the result of a request. A server that forgot the session gets a new one. Throws `McpError`, or an abort.
   * @param {string} method @param {Record<string, any>} params
   * @param {{signal?: AbortSignal, ms?: number}} [options] `ms`: time limit
   * @returns {Promise<any>}
   */
  async request(method, params, { signal, ms = TIMEOUT_MS } = {}) {
    const id = (this.lastId += 1);
    const limit = AbortSignal.timeout(ms);
    const stop = signal ? AbortSignal.any([signal, limit]) : limit;
    try {
      let reply = await this.post({ id, method, params }, stop);
      if (reply.status === 404 && this.session && method !== "initialize") {
        await this.connect();
        reply = await this.post({ id, method, params }, stop);
      }
      if (method === "initialize") this.session = reply.headers.get("Mcp-Session-Id") ?? "";
      return await this.resultOf(id, reply);
    } catch (error) {
      if (!stop.aborted) throw error;
      if (this.version) void this.post({ method: "notifications/cancelled", params: { requestId: id } }, AbortSignal.timeout(CONNECT_MS)).catch(() => {});
      throw signal?.aborted ? error : new McpError(t("mcpTimeout", ms / 1000));
    }
  }

  /** @param {Record<string, any>} message @param {AbortSignal} signal @returns {Promise<Response>} */
  async post(message, signal) {
    /** @type {Record<string, string>} */
    const headers = { ...this.headers, Accept: "application/json, text/event-stream", "Content-Type": "application/json" };
    if (this.session) headers["Mcp-Session-Id"] = this.session;
    if (this.version) headers["MCP-Protocol-Version"] = this.version;
    const body = JSON.stringify({ jsonrpc: "2.0", ...message });
    try {
      if (this.proxied) return await fetch(address(`cors-proxy?url=${encodeURIComponent(this.url)}`), { method: "POST", headers: forwarded(headers), body, signal });
      return await fetch(this.url, { method: "POST", headers, body, signal, credentials: "omit", redirect: "error", referrerPolicy: "no-referrer", cache: "no-store" });
    } catch (error) {
      if (signal.aborted) throw error;
      await new Promise((done) => setTimeout(done)); // the violation's event follows the failed fetch
      const { origin } = new URL(this.url);
      throw new McpError(blocked.has(origin) ? t("mcpBlocked", origin) : t("mcpUnreachable"));
    }
  }

  /** @param {number} id @param {Response} reply */
  async resultOf(id, reply) {
    if (!reply.ok) throw new McpError(`HTTP ${reply.status}: ${errorIn(await reply.text()) || reply.statusText}`);
    if (!reply.headers.get("Content-Type")?.startsWith("text/event-stream")) return result(await reply.json());
    for await (const { data } of events(reply)) {
      if (data.id === id && !data.method) return result(data);
      if (data.method && data.id !== undefined) void this.decline(data).catch(() => {});
    }
    throw new McpError(t("mcpNoReply"));
  }

  /** Answer a request of the server: a ping, or one for a capability that this client does not have. @param {{id: string | number, method: string}} request */
  decline({ id, method }) {
    const answer = method === "ping" ? { result: {} } : { error: { code: -32601, message: "Method not found" } };
    return this.post({ id, ...answer }, AbortSignal.timeout(CONNECT_MS));
  }
}

/** @param {any} message */
function result(message) {
  if (message.error) throw new McpError(String(message.error.message ?? message.error.code));
  return message.result ?? {};
}

/** @param {string} text of a failed reply */
function errorIn(text) {
  try {
    const { error, message } = JSON.parse(text);
    return String(error?.message ?? message ?? error ?? "");
  } catch {
    return text.slice(0, 300);
  }
}

/** @param {Record<string, string>} headers of the MCP server's request */
function forwarded(headers) {
  const sent = Object.fromEntries(Object.entries(headers).map(([name, value]) => [FORWARD + name, value]));
  return { ...sent, "Content-Type": "application/json", ...(apiKey.value && { Authorization: `Bearer ${apiKey.value}` }) };
}
