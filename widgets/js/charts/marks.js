/** Marks on the time axis, over a chart and as a line of text: ranks that died, joined or left, and lost steps. */

import { markColour } from "../colours.js";
import { h, setText, setVisible } from "../dom.js";
import { MARK } from "../messages.js";
import { duration } from "../units.js";

/** @import {Theme} from "../colours.js" */
/** @import {Mark, Snapshot} from "../messages.js" */

const ROWS = 4; // of labels, one below the other
const LINE = 13; // pixels per row
const GAP = 4; // pixels between a line and its label

/**
 * Return the row of each label, so that none overlap; -1 for a label without room.
 *
 * @param {{ x: number, width: number }[]} labels from left to right
 */
export function rowsOf(labels) {
  /** @type {number[]} */
  const ends = Array(ROWS).fill(Number.NEGATIVE_INFINITY);
  return labels.map(({ x, width }) => {
    const row = ends.findIndex((end) => end <= x);
    if (row >= 0) ends[row] = x + width;
    return row;
  });
}

/**
 * Draw the marks over a chart.
 *
 * @param {uPlot} plot
 * @param {Mark[]} marks
 * @param {Theme} theme
 */
export function drawMarks(plot, marks, theme) {
  const { ctx, bbox } = plot;
  const ratio = devicePixelRatio;
  const [size, ...family] = theme.font.split("px ");
  ctx.save();
  ctx.font = `${Number(size) * ratio}px ${family.join("px ")}`;
  ctx.textAlign = "left";
  ctx.textBaseline = "top";
  const right = bbox.left + bbox.width;
  const gap = GAP * ratio;
  const seen = marks
    .map((mark) => ({ mark, x: plot.valToPos(mark[MARK.t], "x", true) }))
    .filter(({ x }) => x >= bbox.left && x <= right);
  const labels = seen.map(({ mark, x }) => {
    const { width } = ctx.measureText(mark[MARK.label]);
    return { x: x + gap + width > right ? x - gap - width : x + gap, width: width + gap }; // left of the line near the right end
  });
  const rows = rowsOf(labels);
  for (const [i, { mark, x }] of seen.entries()) {
    ctx.fillStyle = markColour(mark[MARK.kind]);
    ctx.fillRect(Math.round(x), bbox.top, Math.max(1, Math.round(ratio)), bbox.height);
    if (rows[i] >= 0) ctx.fillText(mark[MARK.label], labels[i].x, bbox.top + rows[i] * LINE * ratio);
  }
  ctx.restore();
}

export function makeMarks() {
  const root = h("p", { class: "hvd-marks", hidden: "" });
  return {
    root,
    /** @param {Snapshot} state */
    update({ marks }) {
      setText(root, textOf(marks));
      setVisible(root, marks.length > 0);
    },
  };
}

/** @param {Mark[]} marks */
export const textOf = (marks) => marks.map(([t, , label]) => `${duration(t)} ${label}`).join(" · ");
