/** State of the panel: one store per widget model applies its messages, shared by all views of the model. */

import { takeMessage } from "./lanes/model.js";
import { ENDED, FEW, HIGH, LOG, LOW, MAX_LINES, ROW } from "./messages.js";

/** @import {Timeline, TimelineMessage} from "./lanes/model.js" */
/** @import {Column, Curves, Increment, Snapshot} from "./messages.js" */

/**
 * @typedef {object} Model The used part of anywidget's model
 * @property {(name: string) => Snapshot | null} get
 * @property {(name: string, callback: (content: any) => void) => void} on
 * @property {(name: string, callback: (content: any) => void) => void} off
 * @property {(content: unknown) => void} send
 */

/**
 * @typedef {object} Store
 * @property {Snapshot | null} state
 * @property {Set<() => void>} views called after each change
 * @property {Timeline | null} timeline the latest operations of the ranks, if a view has requested it
 * @property {(n: number) => void} resize requests n ranks of the kernel
 * @property {(picked: number | null) => void} requestTimeline requests the timeline for a view, with this rank
 */

/**
 * @param {Model} model
 * @param {AbortSignal} signal ends the store
 * @returns {Store}
 */
export function makeStore(model, signal) {
  /** @type {Store} */
  const store = {
    state: null,
    timeline: null,
    views: new Set(),
    resize: (n) => model.send({ resize: n }),
    requestTimeline: (picked) => model.send({ timeline: picked, whole: store.timeline === null }),
  };
  const changed = () => {
    for (const view of store.views) view();
  };

  /** The comm is lost when the kernel restarts; a message that arrives later shows that the connection alone was lost. */
  function lose() {
    if (!store.state || store.state.finished) return;
    store.state.lost = true;
    for (const row of Object.values(store.state.rows)) row[ROW.state] = ENDED;
    changed();
  }
  function takeSnapshot() {
    const snapshot = model.get("snapshot");
    if (!snapshot || (store.state && snapshot.seq < store.state.seq)) return;
    store.state = structuredClone(snapshot);
    if (snapshot.timeline) store.timeline = takeMessage(null, snapshot.timeline) ?? store.timeline;
    changed();
  }
  /** @param {TimelineMessage} message */
  function takeTimeline(message) {
    if (store.state?.finished) return;
    store.timeline = takeMessage(store.timeline, message);
    changed();
  }
  /** @param {Increment | { timeline: TimelineMessage }} content */
  function take(content) {
    if (typeof content !== "object") return;
    if ("timeline" in content) takeTimeline(content.timeline);
    else takeIncrement(content);
  }
  /** @param {Increment} increment */
  function takeIncrement(increment) {
    const state = store.state;
    if (!state || increment.seq <= state.seq || state.finished) return;
    if (increment.seq !== state.seq + 1) model.send("snapshot"); // a gap: curves lack some columns until the snapshot arrives
    state.lost = false;
    applyIncrement(state, increment);
    changed();
  }
  model.on("change:snapshot", takeSnapshot);
  model.on("msg:custom", take);
  model.on("comm_live_update", lose);
  signal.addEventListener("abort", () => {
    model.off("change:snapshot", takeSnapshot);
    model.off("msg:custom", take);
    model.off("comm_live_update", lose);
  });
  takeSnapshot();
  return store;
}

/**
 * Apply an increment to a state: figures are replaced; columns and lines are appended.
 *
 * @param {Snapshot} state
 * @param {Increment} increment
 */
export function applyIncrement(state, increment) {
  const { rows, curves, log, lines, merges, ...replaced } = increment;
  Object.assign(state, replaced);
  Object.assign(state.rows, rows);
  for (let i = 0; i < (merges ?? 0); i++) mergeColumns(state.curves, state.ranks.length <= FEW);
  if (curves) appendColumns(state.curves, curves, state.ranks.length);
  if (log && lines !== undefined) {
    const unseen = lines - state.lines; // a snapshot between two increments has some of them
    state.log = state.log.concat(unseen > 0 ? log.slice(-unseen) : []).slice(-MAX_LINES);
    state.lines = lines;
  }
}

/**
 * Join neighbours, as the kernel did with its columns (Grid in widgets/series.py): averages of values, ends of ranges.
 *
 * @param {Curves} curves
 * @param {boolean} few whether ranks have lines of their own
 */
function mergeColumns(curves, few) {
  /** @param {number | null} a @param {number | null} b */
  const mean = (a, b) => (a === null || b === null ? (a ?? b) : Number(((a + b) / 2).toPrecision(few ? 4 : 3)));
  /** @type {typeof mean} */
  const least = (a, b) => (a === null || b === null ? (a ?? b) : Math.min(a, b));
  /** @type {typeof mean} */
  const greatest = (a, b) => (a === null || b === null ? (a ?? b) : Math.max(a, b));
  /** @param {Column[]} columns @param {typeof mean} join */
  const merged = (columns, join) =>
    curves.t.map((_when, i) => columns[2 * i].map((value, rank) => join(value, columns[2 * i + 1][rank])));
  curves.t = curves.t.filter((_when, i) => i % 2 === 1);
  curves.step = curves.step.filter((_step, i) => i % 2 === 1);
  const before = curves.y;
  curves.y = {};
  for (const [name, columns] of Object.entries(before)) {
    curves.y[name] ??= merged(columns, mean);
    if (!few || !name.startsWith(LOG)) continue;
    const of = name.slice(LOG.length);
    curves.y[LOW + of] = merged(endsOf(before[LOW + of], columns), least);
    curves.y[HIGH + of] = merged(endsOf(before[HIGH + of], columns), greatest);
  }
}

/**
 * Return the ends of the ranges of a curve's columns; a range of one value has no end of its own.
 *
 * @param {Column[] | undefined} ends
 * @param {Column[]} columns
 * @returns {Column[]}
 */
export const endsOf = (ends, columns) =>
  columns.map((column, i) => column.map((value, rank) => ends?.[i]?.[rank] ?? value));

/**
 * @param {Curves} curves
 * @param {Curves} fresh
 * @param {number} ranks
 */
function appendColumns(curves, fresh, ranks) {
  /** @returns {Column} */
  const gap = () => Array(ranks).fill(null);
  const last = curves.t.at(-1) ?? -1;
  const from = fresh.t.findIndex((when) => when > last); // a snapshot between two increments has some of them
  if (from < 0) return;
  for (const name of Object.keys(fresh.y)) curves.y[name] ??= curves.t.map(gap);
  for (const name of Object.keys(curves.y)) curves.y[name].push(...(fresh.y[name] ?? fresh.t.map(gap)).slice(from));
  curves.t.push(...fresh.t.slice(from));
  curves.step.push(...fresh.step.slice(from));
}
