/** The timeline: messages become lanes, lanes become bars, a bar becomes words, all of it becomes files. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { describe, describeOpen, span } from "../../../widgets/js/lanes/describe.js";
import { chromeTrace, svgOf } from "../../../widgets/js/lanes/files.js";
import { barsOf, neighbour, operationAt, panned, ticksOf, zoomed } from "../../../widgets/js/lanes/layout.js";
import { beginOf, takeMessage } from "../../../widgets/js/lanes/model.js";

const ROW = [100, 200, 900, 950, 1950, 0, 1, 2, 3, 4_000_000, 1, 2, 600];
const lane = (operations, more = {}) => ({ operations, waits: [], open: [], came: 0, ...more });
const whole = (lanes, now = 2000) => ({ now, from: 0, words: ["ALLREDUCE", "grad", "SHM_SLICES"], lanes, whole: true });
const timeline = (more) => takeMessage(null, whole({ 0: lane([ROW], more) }));

test("a message without the one before it is not taken", () => {
  assert.equal(takeMessage(null, { now: 1, from: 0, words: [], lanes: {} }), null);
  const first = timeline();
  assert.equal(takeMessage(first, { now: 1, from: 2, words: [], lanes: {} }), null);
  const next = takeMessage(first, {
    now: 9,
    from: 3,
    words: ["y"],
    lanes: { 0: lane([[...ROW.slice(0, 6), 3, ...ROW.slice(7)]]) },
  });
  assert.deepEqual(
    next.lanes.get(0).operations.map(({ name }) => name),
    ["grad", "y"],
  );
  assert.equal(beginOf(next), 9, "nothing is before the newest moment that was told");
  assert.equal(beginOf(first), 100);
});

test("what is older than is kept is dropped, and so is a rank that is not told of", () => {
  const first = timeline();
  const later = takeMessage(first, { now: 30e6, from: 3, words: [], lanes: { 0: lane([]) } });
  assert.equal(later.lanes.get(0).operations.length, 0);
  assert.equal(takeMessage(first, { now: 30e6, from: 3, words: [], lanes: {} }).lanes.size, 0);
});

test("bars: the program computes or stands still, the core negotiates, waits for a rank, queues, transfers", () => {
  const bars = barsOf(timeline({ waits: [[500, 1500]] }), { from: 0, to: 2000 }, 200);
  assert.deepEqual(
    bars.map(({ x, width, band, kind }) => [kind, band, x, width]),
    [
      ["compute", 0, 0, 200],
      ["wait", 0, 50, 100],
      ["negotiate", 1, 10, 10],
      ["negotiate", 1, 80, 10],
      ["queue", 1, 90, 5],
      ["late", 1, 20, 60],
      ["transfer", 1, 95, 100],
    ],
  );
});

test("a rank that came while the cell ran computes from then on, or from what it did before its first cell", () => {
  const begins = ([operations, came]) =>
    barsOf(takeMessage(null, whole({ 0: lane(operations, { came }) })), { from: 0, to: 2000 }, 200)[0].x;
  assert.deepEqual(
    [
      [[], 0],
      [[], 500],
      [[ROW], 500],
      [[ROW], 50],
    ].map(begins),
    [0, 50, 10, 5],
  );
});

test("an operation that is not done lasts until now, and waits for those that have not come", () => {
  const bars = barsOf(
    takeMessage(null, whole({ 0: lane([], { open: [["x", 1000, [2]]] }) })),
    { from: 0, to: 4000 },
    400,
  );
  assert.deepEqual(bars.at(-1), { x: 100, width: 100, lane: 0, band: 1, kind: "late" });
});

test("bars that are too close to be told apart are one: what is drawn is bounded", () => {
  const many = Array.from({ length: 5000 }, (_, i) => [
    i * 4,
    i * 4,
    i * 4 + 1,
    i * 4 + 1,
    i * 4 + 3,
    0,
    1,
    2,
    1,
    8,
    1,
    -1,
    0,
  ]);
  const bars = barsOf(takeMessage(null, whole({ 0: lane(many) }, 20_000)), { from: 0, to: 20_000 }, 100);
  assert.ok(bars.length < 10, String(bars.length));
});

test("the transfer under the pointer is found before the negotiation of others, and what is near", () => {
  const other = [0, 0, 1900, 1910, 1999, 0, 1, 2, 1, 8, 1, -1, 0];
  const { lanes } = takeMessage(null, whole({ 0: lane([ROW, other]) }));
  assert.equal(operationAt(lanes.get(0), 1000, 0).asked, 100);
  assert.equal(operationAt(lanes.get(0), 50, 0).asked, 0);
  assert.equal(operationAt(lanes.get(0), 2010, 20).end, 1999);
  assert.equal(operationAt(lanes.get(0), 2100, 20), null);
});

test("neighbours are chosen one after the other, and there is an end", () => {
  const rows = [0, 1000, 2000].map((at) => [at, at, at + 10, at + 10, at + 20, 0, 1, 2, 1, 8, 1, -1, 0]);
  const shown = takeMessage(null, whole({ 0: lane(rows) })).lanes.get(0);
  const view = { from: 0, to: 1500 };
  const middle = neighbour(shown, null, -1, view);
  assert.equal(middle.asked, 1000, "the last one that is seen");
  assert.equal(neighbour(shown, middle, 1, view).asked, 2000);
  assert.equal(neighbour(shown, neighbour(shown, middle, 1, view), 1, view).asked, 2000);
  assert.equal(neighbour({ operations: [] }, null, 1, view), null);
});

test("a view is zoomed about a place, and moved within what there is", () => {
  assert.deepEqual(zoomed({ from: 0, to: 8000 }, 0.5, 0.25, 1e9), { from: 1000, to: 5000 });
  assert.deepEqual(zoomed({ from: 0, to: 1200 }, 0.5, 0, 1e9), { from: 0, to: 1000 });
  assert.deepEqual(zoomed({ from: 0, to: 8000 }, 4, 0, 10_000), { from: 0, to: 10_000 });
  assert.deepEqual(panned({ from: 1000, to: 2000 }, 0.5, { from: 0, to: 9000 }), { from: 1500, to: 2500 });
  assert.deepEqual(panned({ from: 8000, to: 9000 }, 3, { from: 0, to: 9000 }), { from: 8000, to: 9000 });
});

test("ticks are round, and have the digits that tell them apart", () => {
  assert.deepEqual(
    ticksOf({ from: 0, to: 5e6 }),
    [0, 1, 2, 3, 4, 5].map((each) => [each * 1e6, `${each} s`]),
  );
  assert.deepEqual(
    ticksOf({ from: 12_345_100, to: 12_346_900 }, 4).map(([, text]) => text),
    ["12.3455 s", "12.3460 s", "12.3465 s"],
  );
});

test("an operation in words", () => {
  const { operations } = timeline().lanes.get(0);
  assert.equal(
    describe(0, operations[0]),
    "rank 0: allreduce 'grad' and 2 more · 4 MB · 4.00 GB/s · 1.85 ms in all · transfer 1 ms (shm slices) · queue 50 us · waited 600 us for rank 2",
  );
  assert.equal(
    describe(1, { ...operations[0], merged: 12, late: -1 }),
    "rank 1: 12 short operations, first 'grad' · 4 MB · 1.85 ms in all",
  );
  assert.equal(
    describeOpen(3, ["allreduce 'x'", 500, [1, 2]], 2500),
    "rank 3: allreduce 'x' for 2 ms · waits for ranks 1, 2",
  );
  assert.deepEqual([12.3, 4500, 2_500_000].map(span), ["12 us", "4.5 ms", "2.5 s"]);
});

test("the trace has each part of an operation, and the picture is well-formed whatever a tensor is called", () => {
  const shown = timeline({ waits: [[500, 1500]] });
  const events = JSON.parse(chromeTrace(shown));
  assert.deepEqual(
    events.filter(({ ph }) => ph === "X").map(({ name, ts, dur, tid }) => [name, ts, dur, tid]),
    [
      ["WAIT", 500, 1000, 0],
      ["NEGOTIATE_ALLREDUCE grad", 100, 100, 1],
      ["WAIT_FOR_RANK_2 grad", 200, 600, 1],
      ["NEGOTIATE_ALLREDUCE grad", 800, 100, 1],
      ["QUEUE grad", 900, 50, 1],
      ["SHM_SLICES grad", 950, 1000, 1],
    ],
  );
  const svg = svgOf(shown, { from: 0, to: 2000 }, 800, { transfer: "#0072b2" }, '<script>"&');
  assert.ok(svg.includes("&lt;script&gt;&quot;&amp;"));
  assert.ok(!svg.includes("<script"));
});
