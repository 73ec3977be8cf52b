// Offloaded KV states in RAM and on disk. A map shows each as a tile: its width is its bytes, its shade its last use, the line
// below it its keep value. The selected state is described in text; a table lists all.
import { classes, html, useRef, useState } from "../../lib/dom.js";
import { bytes, number, seconds, short } from "../../lib/format.js";
import { t } from "../../lib/texts.js";

/**
 * @typedef {import("../../lib/live.js").Tier} Tier
 * @typedef {import("../../lib/live.js").Kept} Kept
 */

/** @param {{tiers: Record<string, Tier>, hits: Record<string, number>, now: number}} props */
export const Tiers = ({ tiers, hits, now }) => html`
  ${Object.entries(tiers).map(
    ([name, tier]) => html`<div class="tier" key=${name}>
      <p><strong>${t(`tier_${name}`)}</strong> <span class="quiet">${t("tierHolds", number(tier.n), bytes(tier.bytes), number(hits[name] ?? 0))}</span></p>
      ${tier.states.length > 0 && html`<${Map} name=${name} tier=${tier} now=${now} /><${Table} tier=${tier} now=${now} />`}
    </div>`,
  )}
  ${Object.values(tiers).some((tier) => tier.n) && html`<p class="small quiet">${t("tierLegend")}</p>`}
`;

/** How pale a tile is: 0 is new, 4 older than half an hour. @param {number} age seconds */
const paleness = (age) => [10, 60, 300, 1800].filter((bound) => age > bound).length;

/** @param {Kept} kept @param {number} now */
function words([, tokens, size, used, uses, value], now) {
  return t("tierState", number(tokens), bytes(size), seconds(Math.max(0, now - used) / 1000), number(uses), short(value));
}

/**
 * A list box with one tab stop: arrow keys or a click select a tile.
 * @param {{name: string, tier: Tier, now: number}} props
 */
const Map = ({ name, tier, now }) => {
  const [chosen, setChosen] = useState(0);
  const box = useRef(/** @type {HTMLDivElement | null} */ (null));
  const { states } = tier;
  const at = Math.max(0, states.findIndex(([id]) => id === chosen));
  const mostWorth = Math.max(1e-9, ...states.map((one) => one[5]));
  /** @param {KeyboardEvent} event */
  const move = (event) => {
    const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, Home: -states.length, End: states.length }[event.key];
    if (!by) return;
    event.preventDefault();
    setChosen(states[Math.min(states.length - 1, Math.max(0, at + by))][0]);
  };
  const id = (/** @type {Kept} */ one) => `kept-${name}${one[0]}`;
  return html`
    <div class="map" ref=${box} role="listbox" tabindex="0" aria-label=${t("tierMap", number(tier.n))} aria-activedescendant=${id(states[at])} onKeyDown=${move}>
      ${states.map(
        (one, i) => html`<div key=${one[0]} id=${id(one)} role="option" aria-selected=${i === at}
          class=${classes("tile", `pale${paleness((now - one[3]) / 1000)}`, i === at && "chosen")} style=${{ flexGrow: one[2] }}
          onClick=${() => setChosen(one[0])} onMouseEnter=${() => setChosen(one[0])}>
          <b>${bytes(one[2])}</b><span>${t("uses", number(one[4]))}</span><span>${seconds(Math.max(0, now - one[3]) / 1000)}</span>
          <span class="hidden">${t("tierMore", number(one[1]), short(one[5]))}</span>
          <i style=${{ width: `${100 * Math.sqrt(one[5] / mostWorth)}%` }}></i>
        </div>`,
      )}
    </div>
    <p class="small chosen-state">${words(states[at], now)}</p>
  `;
};

/** @param {{tier: Tier, now: number}} props */
const Table = ({ tier, now }) => html`<details class="kept-table"><summary>${t("asTable")}</summary>
  <div class="table-box" tabindex="0"><table>
    <thead><tr>${["keptTokens", "keptBytes", "keptAge", "keptUses", "keptWorth"].map((name) => html`<th scope="col" class="right" key=${name}>${t(name)}</th>`)}</tr></thead>
    <tbody>${tier.states.map(
      ([id, tokens, size, used, uses, value]) => html`<tr key=${id}>
        <td class="right">${number(tokens)}</td><td class="right">${bytes(size)}</td><td class="right">${seconds(Math.max(0, now - used) / 1000)}</td>
        <td class="right">${number(uses)}</td><td class="right">${short(value)}</td>
      </tr>`,
    )}</tbody>
  </table></div>
  ${tier.n > tier.states.length && html`<p class="small quiet">${t("andMore", number(tier.n - tier.states.length))}</p>`}
</details>`;
