// What slots hold in common, as a tree: each beginning that several share is a branch, and what some of these share beyond it
// a branch of that.
import { html } from "../../lib/dom.js";
import { number } from "../../lib/format.js";
import { t } from "../../lib/texts.js";

/**
 * @typedef {import("../../lib/live.js").Slot} Slot
 * @typedef {{shared: number, n: number, key: string, below: Twig[]}} Branch `n`: slots below
 * @typedef {Branch | Slot} Twig
 */

/**
 * Joins slots by the pairs that share the most, the longest beginnings first.
 * @param {Slot[]} slots @param {[number, number, number][]} pairs @returns {Twig[]}
 */
export function grown(slots, pairs) {
  const held = slots.filter((slot) => slot.tokens);
  /** @type {Map<number, Twig>} */
  const top = new Map(held.map((slot) => [slot.id, slot]));
  /** @type {Map<Twig, number[]>} */
  const under = new Map(held.map((slot) => [slot, [slot.id]]));
  for (const [a, b, shared] of [...pairs].sort((one, other) => other[2] - one[2])) {
    const [left, right] = [top.get(a), top.get(b)];
    if (!left || !right || left === right) continue;
    const below = [left, right].flatMap((twig) => ("below" in twig && twig.shared === shared ? twig.below : [twig]));
    const ids = [...(under.get(left) ?? []), ...(under.get(right) ?? [])];
    const branch = { shared, n: ids.length, key: `b${Math.min(...ids)}-${shared}`, below };
    under.set(branch, ids);
    for (const id of ids) top.set(id, branch);
  }
  const size = (/** @type {Twig} */ twig) => ("below" in twig ? twig.shared : 0);
  return [...new Set(top.values())].sort((a, b) => size(b) - size(a));
}

/** @param {{slots: Slot[], shared: [number, number, number][]}} props */
export const Tree = ({ slots, shared }) => {
  const found = grown(slots, shared);
  if (!found.length) return html`<p class="quiet">${t("nothingHeld")}</p>`;
  return html`<ul class="tree">${found.map((twig) => html`<${Twigs} key=${"below" in twig ? twig.key : twig.id} twig=${twig} above=${0} />`)}</ul>`;
};

/** @param {{twig: Twig, above: number}} props `above`: tokens of the branch that it grows from */
const Twigs = ({ twig, above }) => {
  if (!("below" in twig)) {
    return html`<li><span class=${`leaf ${twig.phase}`}>${t("slot", twig.id)}</span>
      <span class="quiet">${above > 0 ? `+${number(twig.tokens - above)}` : number(twig.tokens)}</span></li>`;
  }
  const label = above > 0 ? t("sharedFurther", number(twig.shared - above), twig.n) : t("sharedBy", number(twig.shared), twig.n);
  return html`<li class="branch"><span class="trunk">${label}</span>
    <ul>${twig.below.map((one) => html`<${Twigs} key=${"below" in one ? one.key : one.id} twig=${one} above=${twig.shared} />`)}</ul>
  </li>`;
};
