/** Painting of the lanes on their canvas: axis, names of the ranks, bars, and the chosen operation. */

import { PLACES } from "./files.js";
import { barsOf, ticksOf } from "./layout.js";

/** @import {View} from "./layout.js" */
/** @import {Operation, Timeline} from "./model.js" */

/** @typedef {{ rank: number, operation: Operation | null }} Chosen */
/**
 * @typedef {object} Picture
 * @property {Timeline} timeline
 * @property {View} view
 * @property {Chosen | null} chosen
 * @property {number} width pixels
 * @property {Record<string, string>} colours by kind, and of ink, soft and grid; and the font
 */

/**
 * @param {CanvasRenderingContext2D} context
 * @param {Picture} picture
 */
export function paint(context, picture) {
  const { timeline, view, chosen, width, colours } = picture;
  const inner = width - PLACES.left - PLACES.right;
  const bottom = PLACES.lane * timeline.lanes.size;
  context.font = colours.font;
  context.textBaseline = "middle";
  context.textAlign = "center";
  for (const [at, text] of ticksOf(view)) {
    const x = PLACES.left + ((at - view.from) / (view.to - view.from)) * inner;
    context.fillStyle = colours.grid;
    context.fillRect(Math.round(x), 0, 1, bottom);
    context.fillStyle = colours.soft;
    context.fillText(text, Math.min(Math.max(x, PLACES.left), width - 24), bottom + 11);
  }
  context.textAlign = "left";
  for (const [i, rank] of [...timeline.lanes.keys()].entries()) {
    context.fillStyle = rank === chosen?.rank ? colours.ink : colours.soft;
    context.fillText(`rank ${rank}`, 14, PLACES.lane * i + 17);
  }
  for (const bar of barsOf(timeline, view, inner)) {
    context.fillStyle = colours[bar.kind];
    const y = PLACES.lane * bar.lane + (bar.band ? PLACES.core : PLACES.program);
    context.fillRect(PLACES.left + bar.x, y, bar.width, bar.band ? PLACES.thick : PLACES.thin);
  }
  outline(context, picture, inner);
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {Picture} picture
 * @param {number} inner
 */
function outline(context, { timeline, view, chosen, colours }, inner) {
  if (!chosen?.operation) return;
  const scale = inner / (view.to - view.from);
  const lane = [...timeline.lanes.keys()].indexOf(chosen.rank);
  const from = Math.max(0, (chosen.operation.asked - view.from) * scale);
  const to = Math.min(inner, (chosen.operation.end - view.from) * scale);
  if (lane < 0 || to < from) return;
  context.strokeStyle = colours.ink;
  context.lineWidth = 1.5;
  const y = PLACES.lane * lane + PLACES.core;
  context.strokeRect(PLACES.left + from - 1, y - 1, Math.max(to - from, 2) + 2, PLACES.thick + 2);
}
