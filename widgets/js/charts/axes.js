/** Axes and lines of a chart, as options of uPlot; the range of its vertical axis. */

import { rankColour } from "../colours.js";
import { duration, grouped, tick } from "../units.js";

/** @import {Theme} from "../colours.js" */

export const HEIGHT = 148;
const MANY = 8; // ranks: their lines are thinner
const MINUTE = 60;

/**
 * @param {() => Theme} theme
 * @param {string} sync charts of the same key show their cursor at the same time
 * @param {() => boolean} bySteps whether the horizontal axis has steps, not seconds
 * @param {() => boolean} fromZero whether the vertical axis begins at zero
 * @param {number} ranks the number of lines; each has a band, from the least to the greatest value of a column
 * @returns {uPlot.Options}
 */
export function plotOptions(theme, sync, bySteps, fromZero, ranks) {
  const axis = {
    stroke: () => theme().soft,
    font: theme().font,
    grid: { stroke: () => theme().grid, width: 1 },
    ticks: { show: false },
  };
  const lines = Array.from({ length: ranks }, (_, i) => ({
    stroke: rankColour(i, ranks),
    width: ranks > MANY ? 1 : 1.5,
    spanGaps: true,
    points: { show: false },
  }));
  const ends = lines.flatMap(({ stroke }) => [1, 2].map(() => ({ stroke, width: 0, points: { show: false } })));
  const bands = lines.map(({ stroke }, i) => {
    const first = 1 + ranks + 2 * i; // the greatest values, then the least
    return {
      series: /** @type {[number, number]} */ ([first, first + 1]),
      fill: `color-mix(in srgb, ${stroke} 25%, transparent)`,
    };
  });
  return {
    width: 300,
    height: HEIGHT,
    legend: { show: false },
    focus: { alpha: 0.14 },
    padding: [8, 20, 0, 0], // on the right, half of the last number
    scales: { x: { time: false }, y: { range: (_plot, low, high) => axisRange(low, high, fromZero()) } },
    cursor: { sync: { key: sync }, points: { show: false }, drag: { x: false, y: false }, y: false },
    axes: [
      { ...axis, size: 22, gap: 4, space: 60, values: (_plot, ticks) => ticks.map(bySteps() ? stepTick : timeTick) },
      { ...axis, size: 46, gap: 6, space: 28, values: (_plot, ticks) => ticks.map(tick) },
    ],
    series: [{}, ...lines, ...ends],
    bands,
  };
}

/** @param {number} step */
const stepTick = (step) => (Number.isInteger(step) ? grouped(step) : "");

/** @param {number} seconds */
const timeTick = (seconds) => (seconds < MINUTE ? `${seconds} s` : duration(seconds));

/**
 * Return the range of the vertical axis, with room above and below; rates, and values near zero, begin at zero.
 *
 * @param {number | null} low
 * @param {number | null} high
 * @param {boolean} fromZero
 * @returns {[number, number]}
 */
export function axisRange(low, high, fromZero) {
  if (low === null || high === null) return [0, 1];
  const from = fromZero || (low >= 0 && low < 0.6 * high) ? 0 : low - 0.1 * (high - low || Math.abs(low) || 1);
  return [from, high + 0.08 * (high - from || 1)];
}
