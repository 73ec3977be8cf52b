// An answer of a chat as tokens: its text is tokenized again behind the prompt that it answered, and the model says how likely
// each of these tokens was, and which others were.
import { json } from "../../lib/api.js";
import { t } from "../../lib/texts.js";
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
 * The prompt that `message` answers, and its tokens.
 * @param {string} model @param {Message} message @param {number} most alternatives of each
 * @returns {Promise<{prompt: string, tokens: Token[]}>}
 */
export async function scored(model, message, most) {
  const path = pathTo(messages.value, message.id);
  if (path.some((one) => one.attached?.length)) throw new Error(t("mediaUnscored")); // an echo with log probabilities is of text
  const rendered = async (/** @type {Message[]} */ said) =>
    (await json("apply-template", { body: requestBody(model, open.value.settings, said, false) })).prompt;
  const [prompt, whole] = await Promise.all([rendered(path.slice(0, -1)), rendered(path)]);
  const { tokens: all } = await json("tokenize", {
    body: { model, content: whole, with_pieces: true, add_special: true, parse_special: true },
  });
  const ids = all.map((/** @type {{id: number}} */ one) => one.id);
  const reply = await json("v1/completions", { body: { model, prompt: ids, echo: true, logprobs: most, max_tokens: 0 } });
  const { token_logprobs: own, top_logprobs: top } = reply.choices[0].logprobs;
  const pieces = all.map((/** @type {{piece: string | number[]}} */ one) => bytesOf(one.piece));
  const held = pieces.reduce((/** @type {number} */ sum, /** @type {number[]} */ piece) => sum + piece.length, 0);
  const start = encoder.encode(prompt).length - (encoder.encode(whole).length - held); // a first token may be no text
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
  return { prompt, tokens };
}
