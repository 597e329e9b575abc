/** The horizontal axis: steps from the first one on, unless time was chosen or there are none. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { placeOf, viewOf } from "../../../widgets/js/charts/xaxis.js";

const state = {
  curves: {
    t: [10, 20, 23, 23.2, 23.4, 23.6],
    step: [0, 0, 1, 2, 2, 4],
    y: {
      "samples/s": [[0], [0], [5], [6], [7], [8]],
      "log:loss": [[null], [null], [9], [8], [7], [6]],
      "high:loss": [[null], [null], [null], [1000], [null], [null]],
    },
  },
  marks: [
    [15, "died", "rank 1 died"],
    [23.3, "joined", "rank 1 joined"],
  ],
};

test("curves begin at the first step, with the last column of each step and every peak", () => {
  const { curves, marks, bySteps } = viewOf(state, false);
  assert.ok(bySteps);
  assert.deepEqual(curves.t, [1, 2, 4]);
  assert.deepEqual(curves.y["samples/s"], [[5], [7], [8]]);
  assert.deepEqual(curves.y["log:loss"], [[9], [7], [6]]);
  assert.deepEqual(curves.y["high:loss"], [[null], [1000], [null]]);
  assert.deepEqual(marks, [[2, "joined", "rank 1 joined"]]);
  assert.deepEqual([placeOf(1200, true), placeOf(61, false)], ["step 1,200", "1:01"]);
});

test("over time curves begin at the first step too, and a cell without steps has all of its time", () => {
  assert.deepEqual(viewOf(state, true).curves.t, [23, 23.2, 23.4, 23.6]);
  const none = { ...state, curves: { ...state.curves, step: [0, 0, 0, 0, 0, 0] } };
  const { curves, marks, bySteps } = viewOf(none, false);
  assert.deepEqual([curves.t, marks, bySteps], [state.curves.t, state.marks, false]);
});
