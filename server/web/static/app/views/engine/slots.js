// Slots: context usage, request, shared prefix, and actions.
import { ApiError, call } from "../../lib/api.js";
import { html, useState } from "../../lib/dom.js";
import { number, seconds } from "../../lib/format.js";
import { tiers } from "../../lib/live.js";
import { t } from "../../lib/texts.js";
import { CancelButton, Waterfall } from "./waterfall.js";

/**
 * @typedef {import("../../lib/live.js").LiveModel} LiveModel
 * @typedef {import("../../lib/live.js").Slot} Slot
 */

/** @param {{model: LiveModel, now: number}} props */
export const Slots = ({ model, now }) => {
  const [said, setSaid] = useState("");
  const slots = model.engine?.slots ?? [];
  return html`
    <ul class="slots">
      ${slots.map((slot) => html`<${SlotView} key=${slot.id} slot=${slot} model=${model} now=${now} onSaid=${setSaid} />`)}
    </ul>
    <p class="quiet" role="status">${said}</p>
  `;
};

/** @param {{slot: Slot, model: LiveModel, now: number, onSaid: (text: string) => void}} props */
const SlotView = ({ slot, model, now, onSaid }) => {
  const { choice } = slot;
  const room = model.n_ctx || 1;
  const pairs = (model.engine?.shared ?? []).filter(([a, b]) => a === slot.id || b === slot.id);
  const [a, b, shared] = pairs.reduce((best, pair) => (pair[2] > best[2] ? pair : best), [-1, -1, 0]);
  const other = a === slot.id ? b : a;
  const tier = other < 0 && Object.entries(tiers.value[model.id] ?? {}).find(([, { states }]) => states.some(([id]) => id === other))?.[0];
  const part = (/** @type {number} */ n) => Math.min(100, (100 * n) / room);
  const cached = Math.min(slot.tokens, shared);
  return html`<li class=${`slot ${slot.phase}`}>
    <div class="slot-head">
      <strong>${t("slot", slot.id)}</strong>
      <span class=${`phase ${slot.phase}`}>${t(`phase_${slot.phase}`)}</span>
      <span class="stretch"></span>
      <span class="quiet">${number(slot.tokens)} / ${number(room)}</span>
    </div>
    <svg class="fill" viewBox="0 0 100 4" preserveAspectRatio="none" role="img"
      aria-label=${t("contextOf", number(slot.tokens), number(room))}>
      <rect class="rest" width="100" height="4" rx="1" />
      <rect class="held" width=${part(slot.tokens)} height="4" />
      <rect class="shared" width=${part(cached)} height="4" />
    </svg>
    ${shared > 0 && html`<p class="quiet small">${tier ? t("sharesWithKept", number(shared), t(`tier_${tier}`)) : t("sharesWith", number(shared), other)}</p>`}
    ${slot.adapters.length > 0 &&
    html`<p class="quiet small">LoRA ${slot.adapters.map(([id, scale]) => `${id}: ${number(scale, 2)}`).join(", ")}</p>`}
    ${choice
      ? html`<${Waterfall} choice=${choice} now=${now} />
        <div class="slot-foot"><span class="code small clip">${choice.request}</span><${CancelButton} id=${choice.request} /></div>`
      : html`<div class="slot-foot">
          <span class="quiet small">${slot.used ? t("idleFor", seconds((now - slot.used) / 1000)) : t("neverUsed")}</span>
          <${Actions} slot=${slot} model=${model} onSaid=${onSaid} />
        </div>`}
  </li>`;
};

/** @param {{slot: Slot, model: LiveModel, onSaid: (text: string) => void}} props */
const Actions = ({ slot, model, onSaid }) => {
  const file = `slot-${slot.id}.bin`;
  /** @param {string} action */
  const act = (action) => async () => {
    try {
      const body = action === "erase" ? {} : { filename: file };
      const query = `action=${action}&model=${encodeURIComponent(model.id)}`;
      await call(`slots/${slot.id}?${query}`, { body });
      onSaid(t(`did_${action}`, slot.id, file));
    } catch (error) {
      onSaid(error instanceof ApiError ? error.message : String(error));
    }
  };
  return html`<span class="slot-actions">
    ${(slot.tokens > 0 ? ["save", "restore", "erase"] : ["restore"]).map(
      (action) => html`<button type="button" key=${action} onClick=${act(action)}
        aria-label=${`${t(`slot_${action}`)}: ${t("slot", slot.id)}`}>${t(`slot_${action}`)}</button>`,
    )}
  </span>`;
};
