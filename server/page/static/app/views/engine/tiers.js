// Prompt states that have lost their slot, in RAM and on disk: each a tile, as large as its bytes, the paler the older.
import { html } from "../../lib/dom.js";
import { bytes, number, seconds, short } from "../../lib/format.js";
import { t } from "../../lib/texts.js";

/** @param {{tiers: Record<string, import("../../lib/live.js").Tier>, hits: Record<string, number>}} props */
export const Tiers = ({ tiers, hits }) => html`
  ${Object.entries(tiers).map(
    ([name, tier]) => html`<div class="tier" key=${name}>
      <p><strong>${t(`tier_${name}`)}</strong> <span class="quiet">${t("tierHolds", number(tier.n), bytes(tier.bytes), number(hits[name]))}</span></p>
      ${tier.states.length > 0 && html`<${Map} tier=${tier} />`}
    </div>`,
  )}
`;

const WIDTH = 400;
const ROW = 26;

/** @param {{tier: import("../../lib/live.js").Tier}} props */
const Map = ({ tier }) => {
  const total = tier.states.reduce((sum, [, size]) => sum + size, 0) || 1;
  const rows = Math.max(1, Math.ceil(tier.states.length / 12));
  const each = (WIDTH * rows) / total;
  let x = 0;
  let y = 0;
  return html`<svg class="map" viewBox=${`0 0 ${WIDTH} ${rows * ROW + ROW}`} role="img" aria-label=${t("tierMap", number(tier.n))}>
    ${tier.states.map(([tokens, size, age, uses, worth], i) => {
      const width = Math.max(6, size * each);
      if (x + width > WIDTH && x > 0) {
        x = 0;
        y += ROW;
      }
      const at = x;
      x += width;
      const pale = Math.max(0.25, 1 - Math.log10(1 + age) / 4);
      return html`<rect key=${i} x=${at} y=${y} width=${Math.min(width, WIDTH) - 2} height=${ROW - 2} rx="3" fill-opacity=${pale}>
        <title>${t("tierState", number(tokens), bytes(size), seconds(age), number(uses), short(worth))}</title>
      </rect>`;
    })}
  </svg>`;
};
