/** The timeline as files: a trace for Perfetto and chrome://tracing, a picture as SVG. Pure. */

import { barsOf, LEGEND, partsOf, ticksOf } from "./layout.js";

/** @import {Kind, View} from "./layout.js" */
/** @import {Operation, Timeline} from "./model.js" */

export const PLACES = /** @type {const} */ ({
  left: 74,
  right: 14,
  lane: 34,
  program: 4,
  core: 13,
  thin: 7,
  thick: 15,
  axis: 20,
});

/**
 * Return the trace: a process for each rank, a thread for its program and one for the core.
 *
 * @param {Timeline} timeline
 */
export function chromeTrace(timeline) {
  /** @type {object[]} */
  const events = [];
  for (const [rank, lane] of timeline.lanes) {
    events.push({ name: "process_name", ph: "M", pid: rank, tid: 0, args: { name: `rank ${rank}` } });
    events.push({ name: "thread_name", ph: "M", pid: rank, tid: 0, args: { name: "program" } });
    events.push({ name: "thread_name", ph: "M", pid: rank, tid: 1, args: { name: "core" } });
    for (const [begin, end] of lane.waits) {
      events.push({ name: "WAIT", cat: "program", ph: "X", ts: begin, dur: end - begin, pid: rank, tid: 0 });
    }
    for (const operation of lane.operations) {
      for (const [kind, from, to] of partsOf(operation)) {
        if (to <= from) continue;
        events.push({
          name: nameOf(kind, operation),
          cat: kind,
          ph: "X",
          ts: from,
          dur: to - from,
          pid: rank,
          tid: 1,
          args: argsOf(operation),
        });
      }
    }
  }
  return JSON.stringify(events);
}

/**
 * @param {Kind} kind
 * @param {Operation} operation
 */
const nameOf = (kind, { kind: operation, name, how, late }) =>
  ({
    negotiate: `NEGOTIATE_${operation} ${name}`,
    late: `WAIT_FOR_RANK_${late} ${name}`,
    queue: `QUEUE ${name}`,
    transfer: `${how || operation} ${name}`,
    compute: "",
    wait: "",
  })[kind];

/** @param {Operation} operation */
const argsOf = ({ tensors, bytes, merged, late, waited }) => ({
  tensors,
  bytes,
  merged,
  ...(late < 0 ? {} : { late, waited_us: waited }),
});

/** @param {string} text */
const escaped = (text) =>
  text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;").replaceAll('"', "&quot;");

/**
 * Return the picture of a view.
 *
 * @param {Timeline} timeline
 * @param {View} view
 * @param {number} width
 * @param {Record<string, string>} colours by kind, and of ink, soft, grid and paper
 * @param {string} title
 */
export function svgOf(timeline, view, width, colours, title) {
  const [head, foot] = [34, 26];
  const height = head + PLACES.lane * timeline.lanes.size + PLACES.axis + foot;
  const inner = width - PLACES.left - PLACES.right;
  const parts = [`<rect width="${width}" height="${height}" fill="${colours.paper}"/>`];
  /** @param {number} x @param {number} y @param {string} content @param {string} anchor @param {string} fill */
  const text = (x, y, content, anchor = "start", fill = colours.soft) =>
    parts.push(
      `<text x="${x.toFixed(1)}" y="${y.toFixed(1)}" text-anchor="${anchor}" fill="${fill}">${escaped(content)}</text>`,
    );
  text(10, 20, title, "start", colours.ink);
  const bottom = head + PLACES.lane * timeline.lanes.size;
  for (const [at, label] of ticksOf(view)) {
    const x = PLACES.left + ((at - view.from) / (view.to - view.from)) * inner;
    parts.push(`<rect x="${x.toFixed(1)}" y="${head}" width="1" height="${bottom - head}" fill="${colours.grid}"/>`);
    text(x, bottom + 14, label, "middle");
  }
  for (const [i, rank] of [...timeline.lanes.keys()].entries())
    text(10, head + PLACES.lane * i + 20, `rank ${rank}`, "start", colours.ink);
  for (const { x, width: wide, lane, band, kind } of barsOf(timeline, view, inner)) {
    const y = head + PLACES.lane * lane + (band ? PLACES.core : PLACES.program);
    const tall = band ? PLACES.thick : PLACES.thin;
    parts.push(
      `<rect x="${(PLACES.left + x).toFixed(1)}" y="${y}" width="${wide.toFixed(1)}" height="${tall}" fill="${colours[kind]}"/>`,
    );
  }
  let x = PLACES.left;
  for (const [kind, name] of Object.entries(LEGEND)) {
    parts.push(`<rect x="${x}" y="${height - 16}" width="9" height="9" fill="${colours[kind]}"/>`);
    text(x + 13, height - 8, name);
    x += 34 + 6 * name.length;
  }
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" font-family="system-ui, sans-serif" font-size="11">${parts.join("")}</svg>`;
}
