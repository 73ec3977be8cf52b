// The last requests: time, duration of each phase, tokens, finish reason.
import { call, json } from "../../lib/api.js";
import { config } from "../../lib/config.js";
import { html, useEffect, useModal, useState } from "../../lib/dom.js";
import { clock, day, number, seconds, short } from "../../lib/format.js";
import { IconButton } from "../../lib/icons.js";
import { requests, state, trouble, useLive } from "../../lib/live.js";
import { t } from "../../lib/texts.js";
import { CancelButton, PartsLegend, Waterfall } from "../engine/waterfall.js";

/** @typedef {import("../../lib/live.js").Ended} Ended */

/** @param {Ended} one */
const name = ({ request, index }) => `${request}/${index}`;

export const RequestsView = () => {
  useLive();
  const [query, setQuery] = useState("");
  const [read, setRead] = useState("");
  const now = state.value?.at ?? 0;
  const running = (state.value?.models ?? []).flatMap((model) =>
    [...(model.engine?.slots.map((slot) => slot.choice) ?? []), ...(model.engine?.waiting ?? [])].flatMap((choice) =>
      choice ? [{ ...choice, model: model.id, slot: -1, ended: 0 }] : [],
    ),
  );
  const all = [...running.sort((a, b) => b.submitted - a.submitted), ...[...requests.value].reverse()];
  const details = all.find((one) => name(one) === read);
  const shown = all.filter((one) => `${one.request} ${one.model} ${t(`outcome_${one.outcome}`)}`.toLowerCase().includes(query.toLowerCase()));
  return html`<div class="page">
    <header class="page-head"><h1>${t("requests")}</h1><span class="stretch"></span>
      <label class="filter"><span class="hidden">${t("filter")}</span>
        <input type="search" placeholder=${t("filter")} value=${query} onInput=${(/** @type {any} */ event) => setQuery(event.target.value)} /></label>
    </header>
    ${trouble.value && html`<p class="notice warn" role="status">${trouble.value}</p>`}
    <${PartsLegend} />
    ${!shown.length && html`<p class="quiet empty">${t("noRequests")}</p>`}
    ${shown.length > 0 && html`<div class="table-box" tabindex="0"><table class="requests">
      <thead><tr>
        <th scope="col">${t("time")}</th><th scope="col">${t("request")}</th><th scope="col">${t("model")}</th>
        <th scope="col" class="right">${t("promptTokens")}</th><th scope="col" class="right">${t("fromCache")}</th>
        <th scope="col" class="right">${t("writtenTokens")}</th><th scope="col" class="right">${t("firstTokens")}</th>
        <th scope="col" class="right">${t("speed")}</th><th scope="col" class="bars">${t("course")}</th><th scope="col">${t("outcome")}</th>
      </tr></thead>
      <tbody>${shown.map((one) => {
        const end = one.ended || now;
        const first = one.prompt_done ? (one.prompt_done - one.submitted) / 1000 : Number.NaN;
        const writing = one.prompt_done ? (end - one.prompt_done) / 1000 : 0;
        return html`<tr key=${name(one)}>
          <td>${clock(one.submitted)}</td>
          <td class="code"><button type="button" class="small" onClick=${() => setRead(name(one))}>
            ${one.request.slice(-12)}${one.index > 0 && ` /${one.index}`}<span class="hidden"> ${t("details")}</span></button></td>
          <td class="clip">${one.model}</td><td class="right">${number(one.prompt)}</td><td class="right">${number(one.cached)}</td>
          <td class="right">${number(one.predicted)}</td><td class="right">${seconds(first)}</td>
          <td class="right">${one.predicted > 1 && writing > 0 ? `${short((one.predicted - 1) / writing)}/s` : "–"}</td>
          <td class="bars"><${Waterfall} choice=${one} now=${end} wide /></td>
          <td><span class=${`outcome ${one.outcome}`}>${t(`outcome_${one.outcome}`)}</span>${!one.ended && html` <${CancelButton} id=${one.request} />`}</td>
        </tr>`;
      })}</tbody>
    </table></div>`}
    <${Batches} />
    ${details && html`<${Details} key=${read} one=${details} now=${now} onClose=${() => setRead("")} />`}
  </div>`;
};

/**
 * A batch as `GET /v1/batches` lists it.
 * @typedef {{id: string, endpoint: string, status: string, created_at: number, request_counts: {total: number, completed: number, failed: number}}} Batch
 */

const BATCHES_INTERVAL_MS = 5000;

/** The newest batches of this key, in any state. */
const Batches = () => {
  const [all, setAll] = useState(/** @type {Batch[]} */ ([]));
  const refresh = () => json("v1/batches?limit=20").then(({ data }) => setAll(data), () => {});
  const unfinished = all.some(({ status }) => ["in_progress", "finalizing", "cancelling"].includes(status));
  useEffect(() => {
    void refresh();
    const timer = unfinished ? setInterval(() => document.hidden || void refresh(), BATCHES_INTERVAL_MS) : undefined;
    return () => clearInterval(timer);
  }, [unfinished]);
  if (!all.length) return null;
  /** @param {string} id */
  const cancel = (id) => call(`v1/batches/${id}/cancel`, { method: "POST" }).then(refresh, () => {});
  return html`<section aria-labelledby="batches-title"><h2 id="batches-title">${t("batches")}</h2>
    <div class="table-box" tabindex="0"><table class="batches">
      <thead><tr><th scope="col">${t("time")}</th><th scope="col">${t("batch")}</th><th scope="col">${t("endpoint")}</th>
        <th scope="col" class="right">${t("load_")}</th><th scope="col">${t("standing")}</th></tr></thead>
      <tbody>${all.map(({ id, endpoint, status, created_at, request_counts: { total, completed, failed } }) => html`<tr key=${id}>
        <td>${day(created_at * 1000)}</td><td class="code">${id.slice(-12)}</td><td class="code">${endpoint}</td>
        <td class="right">${t("batchDone", number(completed), number(total))}${failed > 0 && `, ${t("batchFailed", number(failed))}`}</td>
        <td>${t(`batch_${status}`)}${status === "in_progress" &&
          html` <button type="button" class="small" onClick=${() => cancel(id)} aria-label=${`${t("cancel")}: ${id}`}>${t("cancel")}</button>`}</td>
      </tr>`)}</tbody>
    </table></div>
  </section>`;
};

/**
 * One request: its phases, the source of its prefix and, if they are recorded, the bodies of request and reply.
 * @param {{one: Ended, now: number, onClose: () => void}} props
 */
const Details = ({ one, now, onClose }) => {
  const modal = useModal(onClose);
  const from = one.source[0] ? t("fromWhere", number(one.cached), number(one.prompt), t(`from_${one.source[0]}`, one.source[1])) : "";
  return html`<dialog ...${modal} class="bodies" aria-labelledby="request-title">
    <header class="row"><h2 id="request-title">${t("request")}</h2><span class="stretch"></span>
      <${IconButton} icon="close" label=${t("close")} onClick=${onClose} /></header>
    <p class="code small">${one.request}${one.index > 0 && ` /${one.index}`}</p>
    <${Waterfall} choice=${one} now=${one.ended || now} />
    <dl class="facts left">
      <dt>${t("model")}</dt><dd>${one.model}</dd>
      <dt>${t("time")}</dt><dd>${clock(one.submitted)}</dd>
      <dt>${t("priority")}</dt><dd>${number(one.priority)}</dd>
      <dt>${t("outcome")}</dt><dd>${t(`outcome_${one.outcome}`)}</dd>
      ${from && html`<dt>${t("fromCache")}</dt><dd>${from}${one.recompute && `. ${t("recomputedBecause", number(one.prompt - one.cached), t(`recomputed_${one.recompute}`))}.`}</dd>`}
    </dl>
    ${config.value.log_bodies && one.log ? html`<${Bodies} id=${one.log} />` : html`<p class="small quiet">${t("bodiesOff")}</p>`}
  </dialog>`;
};

/** What was asked and replied. @param {{id: string}} props */
const Bodies = ({ id }) => {
  const [found, setFound] = useState(/** @type {{path: string, request: {text: string}, reply: {text: string}} | null} */ (null));
  const [trouble, setTrouble] = useState("");
  useEffect(() => {
    json(`page/bodies?id=${encodeURIComponent(id)}`).then(setFound, (error) => setTrouble(String(error.message ?? error)));
  }, [id]);
  return html`${trouble && html`<p class="failure" role="alert">${trouble}</p>`}
    ${found && html`<h3>${found.path}</h3><pre class="raw" tabindex="0">${indented(found.request.text)}</pre>
      <h3>${t("reply")}</h3><pre class="raw" tabindex="0">${indented(found.reply.text)}</pre>`}`;
};

/** @param {string} text */
function indented(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
