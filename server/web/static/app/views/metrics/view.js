// Plots of the last hour.
import { json } from "../../lib/api.js";
import { html, useEffect, useRef, useState } from "../../lib/dom.js";
import { bytes, clock, number, percent, seconds, short } from "../../lib/format.js";
import { hour, trouble, useLive } from "../../lib/live.js";
import { language, t } from "../../lib/texts.js";
import { Figure } from "../engine/view.js";

/** @typedef {import("../../lib/live.js").Sample} Sample */
/** @typedef {{name: string, colour: string, of: (sample: Sample) => number | null}} Line */

/** @type {{title: string, format: (value: number) => string, lines: Line[]}[]} */
const PLOTS = [
  {
    title: "firstTokens",
    format: seconds,
    lines: [
      { name: "median", colour: "--decode", of: (s) => s.first_token?.[0] ?? null },
      { name: "p95", colour: "--prefill", of: (s) => s.first_token?.[1] ?? null },
    ],
  },
  {
    title: "gaps",
    format: seconds,
    lines: [
      { name: "median", colour: "--decode", of: (s) => s.gap?.[0] ?? null },
      { name: "p95", colour: "--prefill", of: (s) => s.gap?.[1] ?? null },
    ],
  },
  {
    title: "tokenRates",
    format: (value) => `${short(value)}/s`,
    lines: [
      { name: "decode", colour: "--decode", of: (s) => s.generated_per_s },
      { name: "promptTokens", colour: "--prefill", of: (s) => s.prompt_per_s },
    ],
  },
  { title: "hitRate", format: percent, lines: [{ name: "hitRate", colour: "--decode", of: (s) => s.hit_rate }] },
  {
    title: "load_",
    format: short,
    lines: [
      { name: "running", colour: "--decode", of: (s) => s.running },
      { name: "waiting", colour: "--prefill", of: (s) => s.waiting },
    ],
  },
  {
    title: "memory",
    format: bytes,
    lines: [
      { name: "models", colour: "--decode", of: (s) => s.memory },
      { name: "tier_ram", colour: "--prefill", of: (s) => s.ram_cache },
      { name: "tier_disk", colour: "--draft", of: (s) => s.disk_cache },
    ],
  },
];

export const MetricsView = () => {
  useLive();
  const samples = hour.value;
  const last = samples.at(-1);
  return html`<div class="page" tabindex="0">
    <header class="page-head"><h1>${t("metrics")}</h1><span class="quiet">${t("lastHour")}</span></header>
    ${trouble.value && html`<p class="notice warn" role="status">${trouble.value}</p>`}
    ${last && html`<dl class="figures">
      <${Figure} label=${t("generatedRate")} value=${short(last.generated_per_s)} unit="/s" />
      <${Figure} label=${t("running")} value=${short(last.running)} />
      <${Figure} label=${t("waiting")} value=${short(last.waiting)} />
      <${Figure} label=${t("memory")} value=${bytes(last.memory)} />
    </dl>`}
    ${samples.length < 2
      ? html`<p class="quiet empty">${t("noSamples")}</p>`
      : html`<div class="plots">${PLOTS.map((plot) => html`<${Plot} key=${plot.title} ...${plot} samples=${samples} />`)}</div>`}
    <${Usage} at=${last?.at} />
  </div>`;
};

/** What `GET /v1/usage` counts by key, model and day. @typedef {{key: string, model: string} & Record<string, number>} UsageRow */
const COUNTS = { requests: "load_", prompt_tokens: "promptTokens", cached_tokens: "fromCache", completion_tokens: "writtenTokens" };

/** The usage of this key, or of all keys that it sees, in this month. @param {{at: number | undefined}} props `at`: when to read it again */
const Usage = ({ at }) => {
  const [report, setReport] = useState(/** @type {{data: UsageRow[], budget?: Record<string, {used: number, limit: number | null}>} | null} */ (null));
  useEffect(() => {
    json("v1/usage").then(setReport, () => {});
  }, [at]);
  if (!report?.data.length) return null;
  /** @type {Map<string, UsageRow>} */
  const sums = new Map();
  for (const row of report.data) {
    const name = `${row.key} ${row.model}`;
    const sum = sums.get(name) ?? { ...row, ...Object.fromEntries(Object.keys(COUNTS).map((count) => [count, 0])) };
    for (const count of Object.keys(COUNTS)) sum[count] += row[count];
    sums.set(name, sum);
  }
  return html`<section aria-labelledby="usage-title"><h2 id="usage-title">${t("usage")}</h2>
    ${Object.entries(report.budget ?? {}).map(([period, { used, limit }]) => limit && html`<p class="small quiet" key=${period}>
      ${t(`budget_${period}`, number(used), number(limit))}</p>`)}
    <div class="table-box" tabindex="0"><table>
      <thead><tr><th scope="col">${t("usageKey")}</th><th scope="col">${t("model")}</th>
        ${Object.values(COUNTS).map((name) => html`<th scope="col" class="right" key=${name}>${t(name)}</th>`)}</tr></thead>
      <tbody>${[...sums].map(([name, row]) => html`<tr key=${name}><td>${row.key || "–"}</td><td>${row.model}</td>
        ${Object.keys(COUNTS).map((count) => html`<td class="right" key=${count}>${number(row[count])}</td>`)}</tr>`)}</tbody>
    </table></div>
  </section>`;
};

/** @param {{title: string, format: (value: number) => string, lines: Line[], samples: Sample[]}} props */
const Plot = ({ title, format, lines, samples }) => {
  const place = useRef(/** @type {HTMLDivElement | null} */ (null));
  const plot = useRef(/** @type {any} */ (null));
  const data = /** @type {import("../../../vendor/uplot.js").default.AlignedData} */ ([samples.map((s) => s.at), ...lines.map((line) => samples.map(line.of))]);
  useEffect(() => {
    let gone = false;
    const box = place.current;
    if (!box) return undefined;
    const resized = new ResizeObserver(() => plot.current?.setSize({ width: box.clientWidth, height: 170 }));
    void made(box, format, lines).then((one) => {
      if (gone) return one.destroy();
      plot.current = one;
      one.setData(latest.current);
      resized.observe(box);
    });
    return () => {
      gone = true;
      resized.disconnect();
      plot.current?.destroy();
    };
  }, [language.value]);
  const latest = useRef(data);
  latest.current = data;
  useEffect(() => plot.current?.setData(data), [samples]);
  const last = samples.at(-1);
  const summary = last ? lines.map((line) => `${t(line.name)} ${format(line.of(last) ?? Number.NaN)}`).join(", ") : "";
  return html`<figure class="plot" aria-label=${`${t(title)}: ${summary}`}>
    <figcaption><h2>${t(title)}</h2>
      ${lines.length > 1 && lines.map((line) => html`<span key=${line.name} class="small quiet"><i class=${`key ${line.colour.slice(2)}`}></i>${t(line.name)}</span>`)}
    </figcaption>
    <div ref=${place}></div>
  </figure>`;
};

/** @param {number} at unix seconds */
const time = (at) => clock(at * 1000).replace(/:00(?=\D*$)/, "");

/** @param {HTMLElement} box @param {(value: number) => string} format @param {Line[]} lines */
async function made(box, format, lines) {
  const { default: UPlot } = await import("../../../vendor/uplot.js");
  const style = getComputedStyle(document.documentElement);
  const colour = (/** @type {string} */ name) => style.getPropertyValue(name).trim();
  const axis = { stroke: colour("--quiet"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
  return new UPlot(
    {
      ...{ width: box.clientWidth, height: 170, legend: { show: false }, cursor: { y: false }, padding: [8, 8, 0, 0] },
      scales: { y: { range: (/** @type {any} */ _, /** @type {number} */ __, /** @type {number} */ high) => [0, (high || 1) * 1.15] } },
      axes: [{ ...axis, space: 70, values: (/** @type {any} */ _, /** @type {number[]} */ values) => values.map(time) }, { ...axis, size: 62, values: (/** @type {any} */ _, /** @type {number[]} */ values) => values.map(format) }],
      series: [{}, ...lines.map((line) => ({ stroke: colour(line.colour), width: 1.75, spanGaps: false, points: { size: 4 } }))],
    },
    [[], ...lines.map(() => [])],
    box,
  );
}
