/** Heat map of many ranks: a row for each, time to the right, values as colours; a click picks a rank. */

import { markColour } from "../colours.js";
import { h, setText } from "../dom.js";
import { MARK } from "../messages.js";
import { metric } from "../units.js";
import { HEIGHT } from "./axes.js";
import { pixelsOf, rangeOf, STOPS } from "./pixels.js";
import { placeOf } from "./xaxis.js";

/** @import {Theme} from "../colours.js" */
/** @import {Column, Mark} from "../messages.js" */

const LEFT = 46; // pixels, as wide as the axis of line charts
const BOTTOM = 22;
const TOP = 4;

/** @typedef {{ t: number[], columns: Column[], ranks: number[], marks: Mark[], bySteps: boolean }} Shown */

/**
 * @param {() => Theme} theme
 * @param {(index: number) => void} onPick called with the index of a picked rank
 * @param {HTMLElement} readout
 */
export function makeHeat(theme, onPick, readout) {
  const hint = "a row for each rank; click one, or choose it with the arrow keys and Enter, for its curve";
  const canvas = h("canvas", { class: "hvd-heat", tabindex: "0", role: "img", title: hint });
  const small = document.createElement("canvas");
  /** @type {Shown} */
  let shown = { t: [], columns: [], ranks: [], marks: [], bySteps: false };
  let chosen = 0;
  let painted = ""; // key of the painted state
  let wide = 0; // cached: reading a width after a change of the page forces a layout

  function fit() {
    wide = canvas.clientWidth || wide;
  }
  function paint() {
    const { t, columns, ranks } = shown;
    const [tall, ratio] = [HEIGHT, devicePixelRatio];
    if (!wide || !columns.length) return;
    const range = rangeOf(columns);
    if (canvas.width !== Math.round(wide * ratio)) [canvas.width, canvas.height] = [wide * ratio, tall * ratio];
    [small.width, small.height] = [columns.length, ranks.length];
    const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
    const pixels = new ImageData(pixelsOf(columns, ranks.length, range), columns.length, ranks.length);
    small.getContext("2d")?.putImageData(pixels, 0, 0);
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, wide, tall);
    context.imageSmoothingEnabled = false;
    context.drawImage(small, LEFT, TOP, wide - LEFT - 12, tall - TOP - BOTTOM);
    for (const mark of shown.marks) {
      const part = (mark[MARK.t] - t[0]) / (t[t.length - 1] - t[0] || 1);
      context.fillStyle = markColour(mark[MARK.kind]);
      if (part >= 0 && part <= 1) context.fillRect(LEFT + part * (wide - LEFT - 12), TOP, 2, tall - TOP - BOTTOM);
    }
    context.fillStyle = theme().soft;
    context.font = theme().font;
    context.textBaseline = "middle";
    context.textAlign = "right";
    for (const i of [0, ranks.length - 1])
      context.fillText(String(ranks[i]), LEFT - 8, y(i) + rowHeight() / 2 + (i ? -4 : 4));
    context.textAlign = "left";
    context.fillText(placeOf(t[0], shown.bySteps), LEFT, tall - 9);
    context.textAlign = "right";
    context.fillText(placeOf(t[t.length - 1], shown.bySteps), wide - 12, tall - 9);
    if (range) scale(context, range, tall);
    if (canvas.matches(":focus-visible")) {
      context.strokeStyle = theme().ink;
      context.strokeRect(LEFT - 1, y(chosen), wide - LEFT - 10, Math.max(rowHeight(), 2));
    }
  }
  /**
   * @param {CanvasRenderingContext2D} context
   * @param {[number, number]} range
   * @param {number} tall
   */
  function scale(context, [low, high], tall) {
    const [length, middle] = [80, (wide + LEFT) / 2];
    context.fillText(metric(low), middle - length / 2 - 6, tall - 9);
    const ramp = context.createLinearGradient(middle - length / 2, 0, middle + length / 2, 0);
    for (const [i, colour] of STOPS.entries()) ramp.addColorStop(i / (STOPS.length - 1), `rgb(${colour.join(" ")})`);
    context.fillStyle = ramp;
    context.fillRect(middle - length / 2, tall - 13, length, 8);
    context.fillStyle = theme().soft;
    context.textAlign = "left";
    context.fillText(metric(high), middle + length / 2 + 6, tall - 9);
  }
  const rowHeight = () => (HEIGHT - TOP - BOTTOM) / Math.max(1, shown.ranks.length);
  /** @param {number} index */
  const y = (index) => TOP + index * rowHeight();
  /** @param {MouseEvent} event */
  const rowAt = (event) => Math.floor((event.clientY - canvas.getBoundingClientRect().top - TOP) / rowHeight());
  /** @param {number} index @param {number} column */
  function showValue(index, column) {
    const value = shown.columns[column]?.[index];
    const text =
      shown.ranks[index] === undefined || value === undefined
        ? ""
        : `${placeOf(shown.t[column], shown.bySteps)}   rank ${shown.ranks[index]}   ${metric(value)}`;
    setText(readout, text);
  }
  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect();
    const part = (event.clientX - box.left - LEFT) / (box.width - LEFT - 12);
    showValue(rowAt(event), Math.floor(part * shown.columns.length));
  });
  canvas.addEventListener("pointerleave", () => {
    if (!canvas.hidden) setText(readout, ""); // hidden: a rank was picked, and its curve uses the readout
  });
  canvas.addEventListener("click", (event) => {
    const index = rowAt(event);
    if (shown.ranks[index] !== undefined) onPick(index);
  });
  canvas.addEventListener("keydown", (event) => {
    const by = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    if (by === undefined && event.key !== "Enter") return;
    event.preventDefault();
    event.stopPropagation();
    if (by === undefined) return onPick(chosen);
    chosen = Math.min(Math.max(chosen + by, 0), shown.ranks.length - 1);
    showValue(chosen, shown.columns.length - 1);
    paint();
  });
  for (const type of ["focus", "blur"]) canvas.addEventListener(type, paint);
  return {
    root: canvas,
    fit,
    paint,
    /**
     * @param {Shown} next
     * @param {string} label
     */
    draw(next, label) {
      const seen = JSON.stringify([label, next.t.length, next.t.at(-1), next.ranks, next.marks, wide]);
      shown = next;
      if (seen === painted) return; // in a long cell new columns are rare
      painted = seen;
      if (canvas.ariaLabel !== label) canvas.ariaLabel = label;
      if (!wide) fit();
      paint();
    },
  };
}
