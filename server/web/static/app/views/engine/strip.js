// Each step's batch as a bar, the newest on the right: decode, draft and prefill tokens. Drawn on a canvas, since there
// may be a hundred steps a second.
import { html, useEffect, useRef } from "../../lib/dom.js";
import { number, seconds, short } from "../../lib/format.js";
import { t } from "../../lib/texts.js";

const BAR = 5;

/** @param {{steps: import("../../lib/live.js").Step[]}} props */
export const Strip = ({ steps }) => {
  const place = useRef(/** @type {HTMLCanvasElement | null} */ (null));
  useEffect(() => {
    if (place.current) draw(place.current, steps);
  }, [steps]);
  const last = steps.at(-1);
  const summary = last ? t("lastStep", number(last[3]), number(last[4]), number(last[5]), seconds(last[2])) : t("noSteps");
  return html`<figure class="strip">
    <canvas ref=${place} height="96" role="img" aria-label=${summary}></canvas>
    <figcaption>
      <span><i class="key decode"></i>${t("decode")}</span><span><i class="key draft"></i>${t("drafts")}</span>
      <span><i class="key prefill"></i>${t("promptTokens")}</span>
      <span class="stretch"></span><span class="quiet wide">${summary}</span>
    </figcaption>
  </figure>`;
};

/** Heights are logarithmic: one token and a prompt of thousands are both to be seen. @param {number} n */
const height = (n) => Math.log2(1 + n);

/** @param {HTMLCanvasElement} canvas @param {import("../../lib/live.js").Step[]} steps */
function draw(canvas, steps) {
  const scale = devicePixelRatio || 1;
  const width = canvas.clientWidth;
  const tall = canvas.clientHeight;
  canvas.width = width * scale;
  canvas.height = tall * scale;
  const paint = canvas.getContext("2d");
  if (!paint) return;
  paint.scale(scale, scale);
  const style = getComputedStyle(canvas);
  const colour = (/** @type {string} */ name) => style.getPropertyValue(name).trim();
  const shown = steps.slice(-Math.floor(width / BAR));
  const most = Math.max(3, ...shown.map((step) => height(step[3] + step[4] + step[5])));
  shown.forEach((step, i) => {
    const total = step[3] + step[4] + step[5];
    const full = (height(total) / most) * (tall - 14);
    let y = tall;
    for (const [n, name] of /** @type {[number, string][]} */ ([
      [step[3], "--decode"],
      [step[4], "--draft"],
      [step[5], "--prefill"],
    ])) {
      if (!n) continue;
      const h = (n / total) * full;
      paint.fillStyle = colour(name);
      paint.fillRect(width - (shown.length - i) * BAR, y - h, BAR - 1, h);
      y -= h;
    }
  });
  paint.fillStyle = colour("--quiet");
  paint.font = `11px ${style.fontFamily}`;
  paint.fillText(short(Math.round(2 ** most - 1)), 0, 10);
}
