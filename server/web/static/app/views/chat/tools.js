// The server's own tools (`--tools`): what they are, and having one do something. The person at the page decides each time.
import { json } from "../../lib/api.js";

/** @typedef {{tool: string, definition: any, permissions: {write: boolean}}} ServerTool */

/** @type {Promise<ServerTool[]> | undefined} */
let known;

/** @returns {Promise<ServerTool[]>} none where the server has none, or this key may not */
export function serverTools() {
  known ??= json("tools").catch(() => []);
  return known;
}

/**
 * What a tool says, as the text of a result.
 * @param {string} name @param {string} given its arguments, as the model wrote them
 */
export async function used(name, given) {
  const said = await json("tools", { body: { tool: name, params: JSON.parse(given || "{}") } });
  return said.plain_text_response ?? JSON.stringify(said);
}
