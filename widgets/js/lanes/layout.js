/** Layout of the lanes: the visible bars, the operation at a position, zoom and axis. Pure. */

/** @import {Lane, Operation, Timeline} from "./model.js" */

/** @typedef {{ from: number, to: number }} View the visible time, in microseconds */
/** @typedef {"compute" | "wait" | "negotiate" | "late" | "queue" | "transfer"} Kind */
/** @typedef {{ x: number, width: number, lane: number, band: 0 | 1, kind: Kind }} Bar in pixels; band 0: the program, 1: the core */

/** Kinds of bars, with their text in the legend. */
export const LEGEND = /** @type {const} */ ({
  compute: "computing",
  wait: "standing still",
  negotiate: "negotiating",
  late: "waiting for a rank",
  queue: "queue",
  transfer: "transfer",
});

export const SHORTEST = 1000; // microseconds of the closest view
const FINEST = 1; // pixels: bars of a kind that are closer together are joined

/**
 * Return the consecutive parts of an operation.
 *
 * @param {Operation} operation
 * @returns {[kind: Kind, from: number, to: number][]}
 */
export function partsOf({ asked, ready, agreed, begun, end, late, waited }) {
  const arrival = late < 0 ? ready : Math.min(agreed, ready + waited);
  return [
    ["negotiate", asked, ready],
    ["late", ready, arrival],
    ["negotiate", arrival, agreed],
    ["queue", agreed, begun],
    ["transfer", begun, Math.max(end, begun + 1)],
  ];
}

/**
 * Return the bars of a timeline in a view.
 *
 * @param {Timeline} timeline
 * @param {View} view
 * @param {number} width pixels
 * @returns {Bar[]}
 */
export function barsOf(timeline, view, width) {
  const scale = width / (view.to - view.from);
  return [...timeline.lanes.values()].flatMap((lane, i) => {
    const parts = lane.operations.filter(({ asked, end }) => end > view.from && asked < view.to).flatMap(partsOf);
    for (const [, since, missing] of lane.open)
      parts.push([missing.length ? "late" : "negotiate", since, timeline.now]);
    const waits = lane.waits.filter(([begin, end]) => end > view.from && begin < view.to);
    const arrival = Math.min(lane.came, lane.operations[0]?.asked ?? lane.came); // a rank may join while a cell runs
    return [
      ...drawn([[Math.max(view.from, 0, arrival), Math.min(view.to, timeline.now)]], view, scale, i, 0, "compute"),
      ...drawn(waits, view, scale, i, 0, "wait"),
      ...KINDS.flatMap((kind) => {
        const spans = parts.filter(([part]) => part === kind).map(([, from, to]) => /** @type {Pair} */ ([from, to]));
        return drawn(spans, view, scale, i, 1, kind);
      }),
    ];
  });
}

/** @typedef {[number, number]} Pair */
/** @type {Kind[]} later ones are drawn over earlier ones */
const KINDS = ["negotiate", "queue", "late", "transfer"];

/**
 * @param {Pair[]} spans
 * @param {View} view
 * @param {number} scale
 * @param {number} lane
 * @param {0 | 1} band
 * @param {Kind} kind
 * @returns {Bar[]}
 */
function drawn(spans, view, scale, lane, band, kind) {
  /** @type {Bar[]} */
  const bars = [];
  for (const [from, to] of spans.sort((a, b) => a[0] - b[0])) {
    if (to <= from || to < view.from || from > view.to) continue;
    const x = (Math.max(from, view.from) - view.from) * scale;
    const end = (Math.min(to, view.to) - view.from) * scale;
    const last = bars.at(-1);
    if (last && x - (last.x + last.width) < FINEST) last.width = Math.max(last.width, end - last.x);
    else bars.push({ x, width: Math.max(end - x, FINEST), lane, band, kind });
  }
  return bars;
}

/**
 * Return the operation at a time, or the nearest one within `slack`.
 *
 * @param {Lane} lane
 * @param {number} time
 * @param {number} slack
 * @returns {Operation | null}
 */
export function operationAt(lane, time, slack) {
  let [best, least] = [/** @type {Operation | null} */ (null), Number.POSITIVE_INFINITY];
  for (const operation of lane.operations) {
    const off = Math.max(operation.asked - time, time - operation.end, 0);
    const within = time >= operation.begun && time <= operation.end; // prefer its transfer to another operation's negotiation
    const cost = off > 0 ? 1e12 + off : (operation.end - operation.asked) * (within ? 1e-3 : 1);
    if (off <= slack && cost < least) [best, least] = [operation, cost];
  }
  return best;
}

/**
 * Return the operation after or before another one.
 *
 * @param {Lane} lane
 * @param {Operation | null} operation
 * @param {1 | -1} by
 * @param {View} view without an operation, the last one in it
 */
export function neighbour(lane, operation, by, view) {
  const all = lane.operations;
  if (!all.length) return null;
  if (!operation) return all.filter(({ begun }) => begun <= view.to).at(-1) ?? all[0];
  const at = all.findIndex(({ asked, end }) => asked === operation.asked && end === operation.end);
  return all[Math.min(Math.max(at + by, 0), all.length - 1)];
}

/**
 * Return a view zoomed by a factor around a fixed position.
 *
 * @param {View} view
 * @param {number} factor below 1: closer
 * @param {number} at the position, 0..1 of the width
 * @param {number} longest microseconds
 * @returns {View}
 */
export function zoomed({ from, to }, factor, at, longest) {
  const span = Math.min(Math.max((to - from) * factor, SHORTEST), Math.max(longest, SHORTEST));
  const place = from + (to - from) * at;
  return { from: place - span * at, to: place + span * (1 - at) };
}

/**
 * Return a view moved by a fraction of its width, within limits.
 *
 * @param {View} view
 * @param {number} by
 * @param {View} within
 * @returns {View}
 */
export function panned({ from, to }, by, within) {
  const span = to - from;
  const start = Math.min(
    Math.max(from + span * by, within.from - span * 0.05),
    Math.max(within.to - span, within.from),
  );
  return { from: start, to: start + span };
}

/**
 * Return the times of the axis, 1, 2 or 5 times a power of ten apart, with their labels.
 *
 * @param {View} view
 * @param {number} most
 * @returns {[at: number, text: string][]}
 */
export function ticksOf({ from, to }, most = 6) {
  const power = 10 ** Math.floor(Math.log10((to - from) / most));
  const step = [1, 2, 5, 10].map((times) => times * power).find((width) => width * most >= to - from) ?? 10 * power;
  const first = Math.ceil(from / step);
  const digits = Math.max(0, -Math.floor(Math.log10(step / 1e6) + 1e-9));
  return Array.from({ length: Math.max(0, Math.floor(to / step) - first + 1) }, (_, i) => {
    const at = (first + i) * step;
    return [at, `${(at / 1e6).toFixed(digits)} s`];
  });
}
