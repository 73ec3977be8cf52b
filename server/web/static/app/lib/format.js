// Formats numbers, sizes and times in the language of the page.
import { language } from "./texts.js";

/** @param {number} value @param {number} [digits] */
export function number(value, digits = 0) {
  if (!Number.isFinite(value)) return "–";
  return value.toLocaleString(language.value, { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

/** Three digits that count. @param {number} value */
export function short(value) {
  if (!Number.isFinite(value)) return "–";
  if (Math.abs(value) >= 10000) return `${number(value / 1000, value >= 100000 ? 0 : 1)}k`;
  return number(value, Math.abs(value) >= 100 || Number.isInteger(value) ? 0 : Math.abs(value) >= 10 ? 1 : 2);
}

/** @param {number} value */
export function bytes(value) {
  if (!Number.isFinite(value)) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${number(value, unit && value < 100 ? 1 : 0)} ${units[unit]}`;
}

/** @param {number} value */
export function seconds(value) {
  if (!Number.isFinite(value)) return "–";
  if (value < 0.0095) return `${number(value * 1000, 1)} ms`;
  if (value < 0.9995) return `${number(value * 1000)} ms`;
  if (value < 99.5) return `${number(value, value < 10 ? 2 : 1)} s`;
  if (value < 7200) return `${number(value / 60)} min`;
  return value < 172800 ? `${number(value / 3600)} h` : `${number(value / 86400)} d`;
}

/** @param {number} ratio 0..1 */
export const percent = (ratio) => (Number.isFinite(ratio) ? `${number(ratio * 100)} %` : "–");

/** @param {number} ms unix milliseconds */
export function clock(ms) {
  return new Date(ms).toLocaleTimeString(language.value, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
}

/** @param {number} ms unix milliseconds */
export function day(ms) {
  const then = new Date(ms);
  const now = new Date();
  if (then.toDateString() === now.toDateString()) {
    return then.toLocaleTimeString(language.value, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
  }
  return then.toLocaleDateString(language.value, { day: "numeric", month: "short" });
}
