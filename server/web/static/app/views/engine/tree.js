// The prefixes that slots and cached KV states share, as a tree: each shared prefix is a branch, each longer prefix within it
// a branch of that branch.
import { html } from "../../lib/dom.js";
import { number } from "../../lib/format.js";
import { t } from "../../lib/texts.js";

/**
 * @typedef {{id: number, where: string, phase: string, tokens: number}} Leaf `where`: "slot", or a tier's name; `id`: of a slot, or
 *   negative
 * @typedef {{shared: number, n: number, key: string, below: Twig[]}} Branch `n`: leaves below
 * @typedef {Branch | Leaf} Twig
 */

const SHOWN = 3; // cached KV states of a tier that each branch lists

/**
 * Return all slots and cached KV states that hold tokens.
 * @param {import("../../lib/live.js").Slot[]} slots @param {Record<string, import("../../lib/live.js").Tier>} tiers @returns {Leaf[]}
 */
export function leaves(slots, tiers) {
  const held = slots.filter((slot) => slot.tokens).map(({ id, phase, tokens }) => ({ id, phase, tokens, where: "slot" }));
  const kept = Object.entries(tiers).flatMap(([where, { states }]) => states.map(([id, tokens]) => ({ id, tokens, phase: "", where })));
  return [...held, ...kept];
}

/**
 * Join the leaves that share the longest prefixes first.
 * @param {Leaf[]} held @param {[number, number, number][]} pairs @returns {Twig[]}
 */
export function grown(held, pairs) {
  /** @type {Map<number, Twig>} */
  const top = new Map(held.map((leaf) => [leaf.id, leaf]));
  /** @type {Map<Twig, number[]>} */
  const under = new Map(held.map((leaf) => [leaf, [leaf.id]]));
  for (const [a, b, shared] of [...pairs].sort((one, other) => other[2] - one[2])) {
    const [left, right] = [top.get(a), top.get(b)];
    if (!left || !right || left === right) continue;
    const below = [left, right].flatMap((twig) => ("below" in twig && twig.shared === shared ? twig.below : [twig]));
    const ids = [...(under.get(left) ?? []), ...(under.get(right) ?? [])];
    const branch = { shared, n: ids.length, key: `b${Math.max(...ids)}-${shared}`, below };
    under.set(branch, ids);
    for (const id of ids) top.set(id, branch);
  }
  return [...new Set(top.values())];
}

/** @param {{held: Leaf[], shared: [number, number, number][]}} props */
export const Tree = ({ held, shared }) => {
  if (!held.length) return html`<p class="quiet">${t("nothingHeld")}</p>`;
  return html`<ul class="tree"><${Twigs} twigs=${grown(held, shared)} above=${0} /></ul>`;
};

/** Branches, the longest first, then slots, then cached KV states. @param {Twig} twig */
const rank = (twig) => ("below" in twig ? -twig.shared : twig.where === "slot" ? 1 + twig.id : 1e9 - twig.tokens);

/** @param {{twigs: Twig[], above: number}} props `above`: tokens of the branch that they grow from */
const Twigs = ({ twigs, above }) => {
  const sorted = [...twigs].sort((a, b) => rank(a) - rank(b));
  /** @type {Map<string, Leaf[]>} */
  const kept = new Map();
  for (const twig of sorted) if (!("below" in twig) && twig.where !== "slot") kept.set(twig.where, [...(kept.get(twig.where) ?? []), twig]);
  const more = (/** @type {number} */ tokens) => (above > 0 ? `+${number(tokens - above)}` : number(tokens));
  return html`
    ${sorted.map((twig) =>
      "below" in twig
        ? html`<li class="branch" key=${twig.key}>
            <span class="trunk">${above > 0 ? t("sharedFurther", number(twig.shared - above), twig.n) : t("sharedBy", number(twig.shared), twig.n)}</span>
            <ul><${Twigs} twigs=${twig.below} above=${twig.shared} /></ul>
          </li>`
        : twig.where === "slot" && html`<li key=${twig.id}><span class=${`leaf ${twig.phase}`}>${t("slot", twig.id)}</span> <span class="quiet">${more(twig.tokens)}</span></li>`,
    )}
    ${[...kept].map(
      ([where, all]) => html`
        ${all.slice(0, all.length > SHOWN + 1 ? SHOWN : all.length).map(
          (one) => html`<li key=${one.id}><span class="leaf kept">${t(`tier_${where}`)}</span> <span class="quiet">${more(one.tokens)}</span></li>`,
        )}
        ${all.length > SHOWN + 1 && html`<li key=${where}><span class="leaf kept">${t(`tier_${where}`)}</span> <span class="quiet">${t("andMore", number(all.length - SHOWN))}</span></li>`}
      `,
    )}
  `;
};
