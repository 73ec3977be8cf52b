// Which message each token of a rendered prompt belongs to.

const encoder = new TextEncoder();
const decoder = new TextDecoder();

/** A token's own bytes. @param {string | number[]} piece */
const bytesOf = (piece) => (typeof piece === "string" ? encoder.encode(piece) : new Uint8Array(piece));

/**
 * @typedef {{id: number, piece: string | number[], medium?: "image" | "audio", n?: number}} Read a token; or a medium, which is `n`
 */

/**
 * @param {string} text the prompt
 * @param {Read[]} tokens
 * @param {{role: string, content: string}[]} said
 * @param {string} system
 * @returns {{id: number, text: string, role: string, medium?: string, n: number}[]}
 */
export function spans(text, tokens, said, system) {
  /** @type {{role: string, start: number, end: number}[]} */
  const places = [];
  let at = 0;
  for (const { role, content } of [{ role: "system", content: system }, ...said]) {
    const own = content.trim();
    const found = own ? text.indexOf(own, at) : -1;
    if (found < 0) continue;
    const start = encoder.encode(text.slice(0, found)).length;
    places.push({ role, start, end: start + encoder.encode(own).length });
    at = found + own.length;
  }
  const total = encoder.encode(text).length;
  const pieces = tokens.map(({ piece }) => bytesOf(piece));
  const held = pieces.reduce((sum, piece) => sum + piece.length, 0);
  let byte = total - held; // a first token without text, such as BOS, shifts the others
  return tokens.map(({ id, medium, n = 1 }, i) => {
    const middle = byte + pieces[i].length / 2;
    byte += pieces[i].length;
    const role = places.find(({ start, end }) => start <= middle && middle <= end)?.role ?? (medium ? "user" : "template");
    return { id, text: decoder.decode(pieces[i]), role, medium, n };
  });
}
