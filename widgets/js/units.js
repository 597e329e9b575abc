/** Numbers and units as text, in the same format as hvd_kernel/formatting/units.py (tests/unit/js/units.json). */

/** @typedef {number | string | null | undefined} Value */

/** Text for a missing number. */
export const NONE = "–";

/**
 * @param {Value} value
 * @returns {value is string | null | undefined}
 */
export const missing = (value) => value === null || value === undefined || typeof value === "string";

/**
 * 12,345: thousands are grouped. Rounded by toFixed, as in Python; toLocaleString rounds ties differently.
 *
 * @param {number} value
 */
export function grouped(value, digits = 0) {
  const [whole, part] = value.toFixed(digits).split(".");
  const thousands = whole.replace(/\B(?=(\d{3})+$)/g, ",");
  return part === undefined ? thousands : `${thousands}.${part}`;
}

/**
 * 0.21, 2.14, 21.4, 2,140, 2.14 M: a column of them keeps its width.
 *
 * @param {Value} value
 */
export function number(value) {
  if (missing(value)) return NONE;
  const magnitude = Math.abs(value);
  if (magnitude >= 999.5e6) return `${(value / 1e9).toPrecision(3)} G`;
  if (magnitude >= 1e6) return `${(value / 1e6).toPrecision(3)} M`;
  if (magnitude >= 99.95 || magnitude === 0) return grouped(value);
  if (magnitude >= 9.995) return value.toFixed(1);
  return magnitude >= 0.0995 ? value.toFixed(2) : value.toPrecision(2);
}

/**
 * Four significant digits; whole numbers (epochs, steps) as they are; "nan" and "inf" stay visible.
 *
 * @param {Value} value
 */
export function metric(value) {
  if (typeof value === "string") return value;
  if (missing(value)) return NONE;
  const magnitude = Math.abs(value);
  if (magnitude && !(magnitude >= 1e-3 && magnitude < 1e6)) return value.toExponential(2);
  if (Number.isInteger(value)) return grouped(value);
  return magnitude >= 1000 ? grouped(value, 1) : value.toPrecision(4);
}

/**
 * A tick of an axis, which is a round number: no trailing zeros.
 *
 * @param {number} value
 */
export const tick = (value) => (Math.abs(value) >= 1000 ? number(value) : String(Number(value.toPrecision(4))));

/**
 * 1.4x
 *
 * @param {number} times
 */
export const multiple = (times) => (times < 9.95 ? `${times.toFixed(1)}x` : ">10x");

/**
 * 0..1 as a whole percentage.
 *
 * @param {Value} share
 */
export const percent = (share) => (missing(share) ? NONE : `${Math.round(100 * share)} %`);

/**
 * Bytes in decimal units.
 *
 * @param {Value} bytes
 */
export function size(bytes) {
  if (missing(bytes) || bytes === 0) return NONE;
  if (bytes < 1e3) return `${Math.round(bytes)} B`;
  if (bytes < 1e6) return `${Math.round(bytes / 1e3)} kB`;
  const [unit, scale] = bytes >= 1e9 ? ["GB", 1e9] : ["MB", 1e6];
  const scaled = bytes / scale;
  return `${scaled < 100 ? Number(scaled.toPrecision(3)) : Math.round(scaled)} ${unit}`;
}

/**
 * Bytes per second, sent and received together; "0" for an idle link, no number for an absent one.
 *
 * @param {Value} sent
 * @param {Value} received
 */
export function rate(sent, received) {
  if (missing(sent) || missing(received)) return NONE;
  return sent + received >= 1e3 ? `${size(sent + received)}/s` : "0";
}

/**
 * 12.3 s, 4:05, 1:02:03.
 *
 * @param {number} seconds
 */
export function duration(seconds) {
  if (seconds < 59.95) return `${seconds.toFixed(1)} s`;
  const total = Math.round(seconds);
  const [hours, minutes, rest] = [Math.floor(total / 3600), Math.floor(total / 60) % 60, twoDigits(total % 60)];
  return hours ? `${hours}:${twoDigits(minutes)}:${rest}` : `${minutes}:${rest}`;
}

/** @param {number} value */
const twoDigits = (value) => String(value).padStart(2, "0");
