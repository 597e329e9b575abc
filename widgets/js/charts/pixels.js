/** Pixels of the heat map: a colour for each value, from low to high. Pure. */

/** @import {Column} from "../messages.js" */

/** From low to high: dark blue to yellow (Cividis), whose order colour-blind users see too. */
export const STOPS = [
  [0, 32, 77],
  [49, 68, 107],
  [87, 92, 109],
  [124, 123, 120],
  [166, 157, 117],
  [211, 193, 100],
  [255, 234, 70],
];

/**
 * Return the colour of a value between `low` and `high`.
 *
 * @param {number} value
 * @param {number} low
 * @param {number} high
 * @returns {[number, number, number]}
 */
export function heatColour(value, low, high) {
  const place = (high > low ? Math.min(Math.max((value - low) / (high - low), 0), 1) : 0.5) * (STOPS.length - 1);
  const at = Math.min(Math.floor(place), STOPS.length - 2);
  const [from, to] = [STOPS[at], STOPS[at + 1]];
  const part = place - at;
  return /** @type {[number, number, number]} */ (
    from.map((channel, i) => Math.round(channel + part * (to[i] - channel)))
  );
}

/**
 * Return the least and the greatest value, or null without values.
 *
 * @param {Column[]} columns
 * @returns {[number, number] | null}
 */
export function rangeOf(columns) {
  let [low, high] = [Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY];
  for (const column of columns) {
    for (const value of column) {
      if (value === null) continue;
      if (value < low) low = value;
      if (value > high) high = value;
    }
  }
  return low > high ? null : [low, high];
}

const SHADES = 256;
/** All colours, in the format of pixels. */
const TABLE = new Uint32Array(
  Uint8ClampedArray.from({ length: 4 * SHADES }, (_, i) => [...heatColour(i >> 2, 0, SHADES - 1), 255][i & 3]).buffer,
);

/**
 * Return the pixels of the map, one for each rank and column; those without a value are transparent.
 *
 * @param {Column[]} columns
 * @param {number} ranks
 * @param {[number, number] | null} range of all values
 */
export function pixelsOf(columns, ranks, range) {
  const pixels = new Uint32Array(columns.length * ranks);
  const [low, high] = range ?? [0, 0];
  const scale = high > low ? (SHADES - 1) / (high - low) : 0;
  for (let x = 0; range && x < columns.length; x++) {
    for (let y = 0; y < ranks; y++) {
      const value = columns[x][y];
      if (value === null || value === undefined) continue;
      pixels[y * columns.length + x] = TABLE[scale ? Math.round((value - low) * scale) : SHADES >> 1];
    }
  }
  return new Uint8ClampedArray(pixels.buffer);
}
