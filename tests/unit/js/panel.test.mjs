/** What the panel says of a state, without a page: status, columns, bars, the chart's readout and its axis. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { axisRange } from "../../../widgets/js/charts/axes.js";
import { readoutOf } from "../../../widgets/js/charts/chart.js";
import { drawMarks, rowsOf, textOf } from "../../../widgets/js/charts/marks.js";
import { shownOf, statusOf } from "../../../widgets/js/head.js";
import { barOf, columnsOf } from "../../../widgets/js/ranks/columns.js";

const row = (state, gpu = [], comm = 0.5, wait = 0.25) => [
  state,
  "",
  1234,
  2137.4,
  comm,
  wait,
  0.67,
  95.4,
  4e8,
  gpu,
  [0.25, "nan"],
];
const cell = (...states) => ({
  finished: true,
  ranks: states.map((_, i) => i),
  rows: { ...states.map((state) => row(state)) },
});

test("the status names the ranks that ended badly", () => {
  assert.deepEqual(statusOf({ ...cell("failed"), finished: false }), { text: "running", kind: "live" });
  assert.deepEqual(statusOf({ ...cell("compute"), finished: false, lost: true }), {
    text: "kernel restarted",
    kind: "bad",
  });
  assert.deepEqual(statusOf(cell("done", "done")), { text: "finished", kind: "good" });
  assert.deepEqual(statusOf(cell("done", "failed")), { text: "failed on rank 1", kind: "bad" });
  assert.deepEqual(statusOf(cell("failed", "done", "dead")), { text: "failed, dead on ranks 0, 2", kind: "bad" });
  const many = statusOf(cell(...Array(9).fill("interrupted"))).text;
  assert.equal(many, "interrupted on ranks 0, 1, 2, 3, 4, 5, 6, 7, …");
});

test("a number of ranks is asked for once it was picked, and shown until it is there", () => {
  assert.deepEqual(shownOf([4, null, ""], null), { number: 4, apply: "", note: "" });
  assert.deepEqual(shownOf([4, null, ""], 6), { number: 6, apply: "resize to 6", note: "" });
  assert.deepEqual(shownOf([4, null, "no memory"], 4), { number: 4, apply: "", note: "no memory" });
  const waits = { number: 6, apply: "", note: "4 now; at the next commit" };
  assert.deepEqual(shownOf([4, 6, "at the next commit"], 5), waits);
});

test("there is a column for each logged value, and none for figures that no GPU has", () => {
  const shown = (columns, one) => columns.map(({ head, text }) => [head, text(one)]);
  const one = row("compute");
  const host = [
    ["step", "1,234"],
    ["loss", "0.2500"],
    ["lr", "nan"],
    ["samples/s", "2,137"],
    ["comm %", "50 %"],
    ["bus GB/s", "0.67"],
    ["CPU", "95 %"],
    ["memory", "400 MB"],
  ];
  assert.deepEqual(shown(columnsOf({ names: ["loss", "lr"], rows: { 0: one } }), one), host);
  const gpu = row("compute", [71.4, 2e9, 412.5, 68, null, null, 1.2e9, 3.4e9]);
  assert.deepEqual(shown(columnsOf({ names: ["loss", "lr"], rows: { 0: one, 1: gpu } }), gpu).slice(host.length), [
    ["GPU", "71 %"],
    ["GPU memory", "2 GB"],
    ["power", "413 W, 68 °C"],
    ["PCIe", "4.6 GB/s"],
  ]);
  assert.deepEqual(
    columnsOf({ names: ["a", "b", "c", "d"], rows: {} })
      .map(({ head }) => head)
      .slice(1, 5),
    ["a", "b", "c", "samples/s"],
  );
});

test("a bar shows no more waiting than time in collectives", () => {
  assert.deepEqual(barOf(row("compute", [], 0.5, 0.25)), { overlap: 0.5, blocked: 0.25 });
  assert.deepEqual(barOf(row("compute", [], 0.2, 0.25)), { overlap: 0.2, blocked: 0.2 });
  assert.deepEqual(barOf(row("compute", [], null, 0.25)), { overlap: 0, blocked: 0.25 });
  assert.deepEqual(barOf(row("compute", [], null, null)), { overlap: 0, blocked: 0 });
});

test("the readout has the range of the ranks at the cursor", () => {
  const at = (idx) =>
    readoutOf({
      cursor: { idx },
      data: [
        [0, 61],
        [1.5, 2.5],
        [1.5, null],
        [null, 0.5],
      ],
    });
  assert.equal(at(null), "");
  assert.equal(at(0), "0.0 s   1.500");
  assert.equal(at(1), "1:01   0.5000 … 2.500");
  assert.equal(readoutOf({ cursor: { idx: 0 }, data: [[0], [null]] }), "");
});

test("rates, and values near zero, are seen against zero", () => {
  assert.deepEqual(axisRange(null, null, false), [0, 1]);
  assert.deepEqual(axisRange(90, 100, true), [0, 108]);
  assert.deepEqual(axisRange(0.5, 1, false), [0, 1.08]);
  assert.deepEqual(axisRange(90, 100, false), [89, 100.88]);
  assert.deepEqual(axisRange(5, 5, false), [4.5, 5.04]);
});

test("labels of marks lie one below the other, and one without room is left out", () => {
  const at = (...xs) => xs.map((x) => ({ x, width: 50 }));
  assert.deepEqual(rowsOf(at(0, 60, 120)), [0, 0, 0]);
  assert.deepEqual(rowsOf(at(0, 10, 20, 30, 40, 50)), [0, 1, 2, 3, -1, 0]);
});

test("a mark is a line over the chart with its label, at the right end to its left, and none outside", () => {
  globalThis.devicePixelRatio = 1;
  const drawn = [];
  const ctx = {
    save() {},
    restore() {},
    measureText: (label) => ({ width: label.length * 5 }),
    fillRect: (x, y, w, h) => drawn.push(["line", x, y, w, h]),
    fillText: (label, x, y) => drawn.push([label, x, y]),
  };
  const plot = { ctx, bbox: { left: 10, top: 5, width: 100, height: 80 }, valToPos: (t) => 10 + 10 * t };
  const marks = [
    [2, "died", "rank 2 died"],
    [9, "joined", "rank 2 joined"],
    [11, "lost", "never seen"],
  ];
  drawMarks(plot, marks, { soft: "", grid: "", font: "11px sans-serif" });
  assert.equal(ctx.font, "11px sans-serif");
  assert.deepEqual(drawn, [
    ["line", 30, 5, 1, 80],
    ["rank 2 died", 34, 5],
    ["line", 100, 5, 1, 80],
    ["rank 2 joined", 31, 18],
  ]);
  assert.equal(textOf(marks.slice(0, 2)), "2.0 s rank 2 died · 9.0 s rank 2 joined");
});
