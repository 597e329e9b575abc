/** The heat map of many ranks: colours, range, pixels; the curve of one rank beside the mean. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { besideMean } from "../../../widgets/js/charts/chart.js";
import { heatColour, pixelsOf, rangeOf, STOPS } from "../../../widgets/js/charts/pixels.js";

test("colours go from the first to the last stop, and grow lighter all the way", () => {
  assert.deepEqual(heatColour(2, 2, 5), STOPS[0]);
  assert.deepEqual(heatColour(5, 2, 5), STOPS.at(-1));
  assert.deepEqual(heatColour(9, 2, 5), STOPS.at(-1));
  assert.deepEqual(heatColour(7, 7, 7), STOPS[3]);
  const light = Array.from({ length: 101 }, (_, i) => heatColour(i, 0, 100)).map(
    ([r, g, b]) => 0.2126 * r + 0.7152 * g + 0.0722 * b,
  );
  assert.ok(light.every((value, i) => i === 0 || value >= light[i - 1] - 0.5));
});

test("a hole is no value: it has no colour and does not count", () => {
  const columns = [
    [1, null],
    [3, 2],
  ];
  assert.deepEqual(rangeOf(columns), [1, 3]);
  assert.equal(rangeOf([[null, null]]), null);
  const pixels = pixelsOf(columns, 2, rangeOf(columns));
  assert.deepEqual([...pixels.slice(0, 4)], [...STOPS[0], 255], "rank 0, first column");
  assert.deepEqual([...pixels.slice(4, 8)], [...STOPS.at(-1), 255], "rank 0, second column");
  assert.deepEqual([...pixels.slice(8, 12)], [0, 0, 0, 0], "rank 1, first column");
  assert.deepEqual([...pixels.slice(12, 16)], [...STOPS[3], 255]);
});

test("the curve of one rank stands beside the mean of those that have a value", () => {
  const columns = [
    [1, 3, null],
    [null, null, null],
    [2, 4, 9],
  ];
  assert.deepEqual(besideMean(columns, 1), [
    [3, null, 4],
    [2, null, 5],
  ]);
});
