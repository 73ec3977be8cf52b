// A request's time: queue, placement, prefill, decode.
import { call } from "../../lib/api.js";
import { html, useState } from "../../lib/dom.js";
import { number, seconds } from "../../lib/format.js";
import { t } from "../../lib/texts.js";

/** @typedef {import("../../lib/live.js").Choice} Choice */

export const PARTS = ["queued", "placed", "prefill", "decode"];

/**
 * Return the duration of each phase in ms, without phases that have not begun.
 * @param {Choice} choice @param {number} now its end, if it has ended
 */
export function parts({ submitted, placed, begun, prompt_done }, now) {
  const starts = [submitted, placed, begun, prompt_done];
  return PARTS.flatMap((name, i) => {
    const end = starts[i + 1] || now;
    return starts[i] ? [{ name, ms: Math.max(0, end - starts[i]) }] : [];
  });
}

/** @param {{choice: Choice, now: number, wide?: boolean}} props `now`: its end, if it has ended */
export const Waterfall = ({ choice, now, wide = false }) => {
  const all = Math.max(now - choice.submitted, 1);
  const found = parts(choice, now);
  let x = 0;
  const label = found.map(({ name, ms }) => `${t(`part_${name}`)} ${seconds(ms / 1000)}`).join(", ");
  return html`<div class="waterfall">
    <svg viewBox="0 0 100 6" preserveAspectRatio="none" role="img" aria-label=${label}>
      <title>${label}</title>
      ${found.map(({ name, ms }) => {
        const width = (100 * ms) / all;
        x += width;
        return html`<rect key=${name} class=${`part ${name}`} x=${x - width} width=${width} height="6" />`;
      })}
    </svg>
    ${!wide &&
    html`<p class="small quiet times">${found.map(({ name, ms }) => html`<span key=${name}>${t(`part_${name}`)} ${seconds(ms / 1000)}</span>`)}</p>
      <p class="small quiet">${t("promptOf", number(choice.prompt), number(choice.cached))} · ${t("written", number(choice.predicted))}</p>`}
  </div>`;
};

/** The legend of the waterfall. */
export const PartsLegend = () => html`<p class="legend small quiet">
  ${PARTS.map((name) => html`<span key=${name}><i class=${`key ${name}`}></i>${t(`part_${name}`)}</span>`)}
</p>`;

/** @param {{id: string}} props */
export const CancelButton = ({ id }) => {
  const [asked, setAsked] = useState(false);
  const cancel = () => {
    setAsked(true);
    call("v1/chat/completions/control", { body: { id, action: "cancel" } }).catch(() => setAsked(false));
  };
  return html`<button type="button" class="small" disabled=${asked} onClick=${cancel} aria-label=${`${t("cancel")}: ${id}`}>
    ${t("cancel")}
  </button>`;
};
