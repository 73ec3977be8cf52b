// An answer of a chat as tokens. Its text is tokenized again after its prompt, and the model scores each token and the
// alternatives.
import { json } from "../../lib/api.js";
import { messages, pathTo } from "../chat/store.js";
import { requestBody } from "../chat/generate.js";
import { open } from "../chat/view.js";

/**
 * @typedef {import("./view.js").Token} Token
 * @typedef {import("../chat/store.js").Message} Message
 */

const encoder = new TextEncoder();
/** @param {string | number[]} piece */
const bytesOf = (piece) => (typeof piece === "string" ? [...encoder.encode(piece)] : piece);
/** @param {string} text @param {number} logprob */
const alternative = (text, logprob) => ({ token: text, logprob, bytes: [...encoder.encode(text)] });

/**
 * Return the prompt that `message` answers, for an answer with a given prefix, and the tokens of the answer.
 * @param {string} model @param {Message} message @param {number} most alternatives of each
 * @returns {Promise<{prompt: (begun: string) => unknown, tokens: Token[]}>}
 */
export async function scored(model, message, most) {
  const path = pathTo(messages.value, message.id);
  const files = path.flatMap((one) => (one.attached ?? []).filter((file) => file.kind !== "file")).map((one) => one.url.slice(one.url.indexOf(",") + 1));
  const rendered = async (/** @type {Message[]} */ said) =>
    (await json("apply-template", { body: requestBody(model, open.value.settings, said, false) })).prompt;
  const [prompt, whole] = await Promise.all([rendered(path.slice(0, -1)), rendered(path)]);
  const { media_marker: marker } = files.length ? await json(`props?model=${encodeURIComponent(model)}`) : { media_marker: "" };
  const sees = marker && whole.includes(marker); // otherwise its prompt says that files were not shown
  /** @param {string} text */
  const shown = (text) => (sees ? { prompt_string: text, multimodal_data: files } : text);
  const { tokens: all } = await json("tokenize", {
    body: { model, content: shown(whole), with_pieces: true, add_special: true, parse_special: true },
  });
  const reply = await json("v1/completions", { body: { model, prompt: shown(whole), echo: true, logprobs: most, max_tokens: 0 } });
  const { token_logprobs: own, top_logprobs: top } = reply.choices[0].logprobs;
  const pieces = all.map((/** @type {{piece: string | number[]}} */ one) => bytesOf(one.piece));
  const held = pieces.reduce((/** @type {number} */ sum, /** @type {number[]} */ piece) => sum + piece.length, 0);
  const start = encoder.encode(prompt).length - (encoder.encode(whole).length - held); // a first token may have no text
  const decoder = new TextDecoder();
  let at = 0;
  /** @type {Token[]} */
  const tokens = [];
  pieces.forEach((/** @type {number[]} */ bytes, /** @type {number} */ i) => {
    at += bytes.length;
    if (at <= start || own[i] === null) return;
    const others = Object.entries(top[i] ?? {}).map(([text, logprob]) => alternative(text, Number(logprob)));
    tokens.push({ token: decoder.decode(new Uint8Array(bytes)), logprob: own[i], bytes, top_logprobs: others.sort((a, b) => b.logprob - a.logprob) });
  });
  return { prompt: (begun) => shown(prompt + begun), tokens };
}
