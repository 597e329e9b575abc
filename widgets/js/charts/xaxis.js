/**
 * Horizontal axis of the charts: the optimizer step, from the first one on, or the time.
 *
 * widgets/step_axis.py has the same rules for the picture.
 */

import { HIGH, LOW, MARK } from "../messages.js";
import { duration, grouped } from "../units.js";

/** @import {Column, Curves, Mark, Snapshot} from "../messages.js" */
/** @typedef {Snapshot & { bySteps: boolean }} View a state whose curves and marks are over steps, or over time */

const PAIR = 2;

/** @param {Pick<Snapshot, "curves">} state whether it has steps that a line can be drawn over */
export const hasSteps = ({ curves }) => new Set(curves.step.filter((step) => step > 0)).size >= PAIR;

/**
 * Return the state with curves and marks over steps: of each step its last column, with the ends of the ranges of all.
 * Without two steps, or if time was chosen, they are over time; from the first step on, if there is one.
 *
 * @param {Snapshot} state
 * @param {boolean} byTime
 * @returns {View}
 */
export function viewOf(state, byTime) {
  const { curves, marks } = state;
  if (!hasSteps(state)) return { ...state, bySteps: false };
  const first = curves.step.findIndex((step) => step > 0);
  if (byTime) return { ...state, curves: sliced(curves, first), bySteps: false };
  /** @type {Map<number, number[]>} */
  const columns = new Map();
  for (const [i, step] of curves.step.entries()) {
    if (step > 0) columns.set(step, [...(columns.get(step) ?? []), i]);
  }
  const x = [...columns.keys()];
  /** @type {Record<string, Column[]>} */
  const y = {};
  for (const [name, all] of Object.entries(curves.y)) {
    y[name] = [...columns.values()].map((group) =>
      joined(
        name,
        group.map((i) => all[i]),
      ),
    );
  }
  return {
    ...state,
    curves: { t: x, step: x, y },
    marks: marks.flatMap((mark) => markAt(mark, curves)),
    bySteps: true,
  };
}

/** @param {Curves} curves @param {number} first @returns {Curves} */
function sliced(curves, first) {
  const y = Object.fromEntries(Object.entries(curves.y).map(([name, columns]) => [name, columns.slice(first)]));
  return { t: curves.t.slice(first), step: curves.step.slice(first), y };
}

/** @param {string} name @param {Column[]} columns @returns {Column} */
function joined(name, columns) {
  const join = name.startsWith(LOW) ? Math.min : name.startsWith(HIGH) ? Math.max : null;
  if (!join) return columns[columns.length - 1];
  return columns[0].map((_value, rank) => {
    const present = columns.map((column) => column[rank]).filter((value) => value !== null);
    return present.length ? join(...present) : null;
  });
}

/** @param {Mark} mark @param {Curves} curves @returns {Mark[]} */
function markAt(mark, { t, step }) {
  const after = t.findIndex((when) => when > mark[MARK.t]);
  const at = step[(after < 0 ? t.length : after) - 1] ?? 0;
  return at > 0 ? [[at, mark[MARK.kind], mark[MARK.label]]] : [];
}

/** @param {number} x @param {boolean} bySteps */
export const placeOf = (x, bySteps) => (bySteps ? `step ${grouped(x)}` : duration(x));
