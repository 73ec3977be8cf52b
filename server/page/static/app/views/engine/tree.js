// What slots hold in common: each beginning that several share is a branch, as long as it is.
import { html } from "../../lib/dom.js";
import { number } from "../../lib/format.js";
import { t } from "../../lib/texts.js";

/** @typedef {import("../../lib/live.js").Slot} Slot */

/**
 * Slots in groups of those that share the most, by the longest beginning that each has in common with another one.
 * @param {Slot[]} slots @returns {{shared: number, slots: Slot[]}[]}
 */
export function groups(slots) {
  const held = slots.filter((slot) => slot.tokens);
  const leader = new Map(held.map((slot) => [slot.id, slot.id]));
  const find = (/** @type {number} */ id) => {
    let at = id;
    while (leader.get(at) !== at) at = leader.get(at) ?? at;
    return at;
  };
  for (const slot of held) {
    const [other, n] = slot.shared;
    if (n && leader.has(other)) leader.set(find(slot.id), find(other));
  }
  const found = new Map();
  for (const slot of held) {
    const at = find(slot.id);
    if (!found.has(at)) found.set(at, []);
    found.get(at).push(slot);
  }
  return [...found.values()]
    .map((/** @type {Slot[]} */ some) => ({ shared: some.length > 1 ? Math.min(...some.map((slot) => slot.shared[1])) : 0, slots: some }))
    .sort((a, b) => b.shared - a.shared);
}

/** @param {{slots: Slot[]}} props */
export const Tree = ({ slots }) => {
  const found = groups(slots);
  if (!found.length) return html`<p class="quiet">${t("nothingHeld")}</p>`;
  return html`<ul class="tree">
    ${found.map(
      ({ shared, slots: some }) => html`<li key=${some[0].id}>
        ${shared > 0 && html`<span class="trunk">${t("sharedBy", number(shared), some.length)}</span>`}
        <ul>${some.map(
          (slot) => html`<li key=${slot.id}><span class=${`leaf ${slot.phase}`}>${t("slot", slot.id)}</span>
            <span class="quiet">${shared > 0 ? `+${number(slot.tokens - shared)}` : number(slot.tokens)}</span></li>`,
        )}</ul>
      </li>`,
    )}
  </ul>`;
};
