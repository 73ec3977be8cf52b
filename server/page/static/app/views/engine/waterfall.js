// A request's time: in the queue, reading its prompt, writing.
import { call } from "../../lib/api.js";
import { html, useState } from "../../lib/dom.js";
import { number, seconds } from "../../lib/format.js";
import { t } from "../../lib/texts.js";

/** @param {{choice: import("../../lib/live.js").Choice, now: number, wide?: boolean}} props `now`: its end, if it has ended */
export const Waterfall = ({ choice, now, wide = false }) => {
  const placed = choice.placed || now;
  const read = choice.prompt_done || now;
  const all = Math.max(now - choice.submitted, 1);
  const parts = [
    { name: "queued", ms: placed - choice.submitted },
    { name: "prefill", ms: choice.placed ? read - placed : 0 },
    { name: "decode", ms: choice.prompt_done ? now - read : 0 },
  ];
  let x = 0;
  const label = parts.map(({ name, ms }) => `${t(`part_${name}`)} ${seconds(ms / 1000)}`).join(", ");
  return html`<div class="waterfall">
    <svg viewBox="0 0 100 6" preserveAspectRatio="none" role="img" aria-label=${label}>
      ${parts.map(({ name, ms }) => {
        const width = (100 * Math.max(ms, 0)) / all;
        x += width;
        return html`<rect key=${name} class=${`part ${name}`} x=${x - width} width=${width} height="6"><title>${label}</title></rect>`;
      })}
    </svg>
    ${!wide &&
    html`<p class="small quiet">
      ${t("promptOf", number(choice.prompt), number(choice.cached))} · ${t("written", number(choice.predicted))} · ${seconds(all / 1000)}
    </p>`}
  </div>`;
};

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
