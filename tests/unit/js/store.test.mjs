/** The store of a model: which messages it takes, what it asks for, and what it leaves behind. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { statusOf } from "../../../widgets/js/head.js";
import { applyIncrement, makeStore } from "../../../widgets/js/store.js";

const TOTALS = { samples_per_s: null, exposed: null, overlapped: null, bus: null, step: 0, logged: [] };
const head = (seq, more = {}) => ({
  seq,
  t: seq,
  names: [],
  unnamed: 0,
  slow: {},
  wait: "",
  totals: TOTALS,
  rows: {},
  ...more,
});
const snapshot = (seq, more = {}) => ({
  ...head(seq),
  title: "cell 1",
  ranks: [0, 1],
  finished: false,
  curves: { t: [], step: [], y: {} },
  log: [],
  lines: 0,
  open: [],
  marks: [],
  ...more,
});

function fakeModel(first) {
  const listeners = new Map();
  const model = {
    snapshot: first,
    sent: [],
    get: () => model.snapshot,
    on: (name, callback) => listeners.set(name, callback),
    off: (name, callback) => listeners.get(name) === callback && listeners.delete(name),
    send: (content) => model.sent.push(content),
  };
  const give = (name, content) => listeners.get(name)(content);
  return {
    model,
    listeners,
    increment: (content) => give("msg:custom", content),
    changed: () => give("change:snapshot"),
    lost: () => give("comm_live_update"),
  };
}

function opened(first) {
  const life = new AbortController();
  const fake = fakeModel(first);
  const store = makeStore(fake.model, life.signal);
  let draws = 0;
  store.views.add(() => draws++);
  return { ...fake, store, life, draws: () => draws };
}

test("an increment is applied once, and each view is drawn", () => {
  const { store, increment, model, draws } = opened(snapshot(1));
  increment(head(2, { wait: "ranks wait" }));
  increment(head(2, { wait: "said twice" }));
  increment("no increment");
  assert.deepEqual([store.state.seq, store.state.wait, draws(), model.sent], [2, "ranks wait", 1, []]);
});

test("after a restart of its kernel a running cell has ended, and it runs again if the connection alone was lost", () => {
  const { store, lost, increment, draws } = opened(snapshot(1, { rows: { 0: ["compute"], 1: ["collective"] } }));
  lost();
  assert.deepEqual(store.state.rows, { 0: ["ended"], 1: ["ended"] });
  assert.deepEqual([statusOf(store.state), draws()], [{ text: "kernel restarted", kind: "bad" }, 1]);
  increment(head(2, { rows: { 0: ["compute"] } }));
  assert.equal(statusOf(store.state).text, "running");
  const over = opened(snapshot(1, { finished: true, rows: { 0: ["done"], 1: ["done"] } }));
  over.lost();
  assert.deepEqual([statusOf(over.store.state).text, over.draws()], ["finished", 0]);
});

test("after a gap the snapshot is asked for, and what came is shown", () => {
  const { store, increment, model } = opened(snapshot(1));
  increment(head(4));
  assert.deepEqual([store.state.seq, model.sent], [4, ["snapshot"]]);
});

test("an older snapshot is not taken, and the state is no part of the model's", () => {
  const { store, increment, changed, model } = opened(snapshot(1));
  increment(head(2, { rows: { 0: ["compute"] } }));
  assert.deepEqual(model.snapshot.rows, {});
  changed();
  assert.equal(store.state.seq, 2);
  model.snapshot = snapshot(3, { finished: true });
  changed();
  increment(head(4));
  assert.equal(store.state.seq, 3, "nothing comes after the end");
});

test("without a snapshot increments wait for one", () => {
  const { store, increment, changed, model } = opened(null);
  increment(head(1));
  assert.equal(store.state, null);
  model.snapshot = snapshot(1);
  changed();
  assert.equal(store.state.seq, 1);
});

test("the end of a store takes its listeners away", () => {
  const { life, listeners } = opened(snapshot(1));
  assert.deepEqual([...listeners.keys()], ["change:snapshot", "msg:custom", "comm_live_update"]);
  life.abort();
  assert.equal(listeners.size, 0);
});

test("columns and lines that a snapshot has are not appended again", () => {
  const curves = {
    t: [0, 1],
    step: [0, 3],
    y: {
      "samples/s": [
        [1, 2],
        [3, 4],
      ],
    },
  };
  const state = snapshot(5, { curves, log: [[0, "stdout", "a"]], lines: 1 });
  const fresh = {
    t: [1, 2],
    step: [3, 8],
    y: {
      "samples/s": [
        [3, 4],
        [5, 6],
      ],
      "log:loss": [
        [7, 8],
        [9, 10],
      ],
    },
  };
  const log = [
    [0, "stdout", "a"],
    [1, "stderr", "b"],
  ];
  applyIncrement(state, head(6, { curves: fresh, log, lines: 2, open: [[1, "stdout", "c"]] }));
  assert.deepEqual(state.curves, {
    t: [0, 1, 2],
    step: [0, 3, 8],
    y: {
      "samples/s": [
        [1, 2],
        [3, 4],
        [5, 6],
      ],
      "log:loss": [
        [null, null],
        [null, null],
        [9, 10],
      ],
    },
  });
  assert.deepEqual([state.log, state.lines, state.open], [log, 2, [[1, "stdout", "c"]]]);
});

test("a curve that an increment lacks has a gap, and the last 200 lines are kept", () => {
  const state = snapshot(1, { curves: { t: [0], step: [0], y: { "log:loss": [[1, 2]] } } });
  const log = Array.from({ length: 250 }, (_, i) => [0, "stdout", String(i)]);
  applyIncrement(state, head(2, { curves: { t: [1], step: [0], y: {} }, log, lines: 250 }));
  assert.deepEqual(state.curves.y, {
    "log:loss": [
      [1, 2],
      [null, null],
    ],
  });
  assert.deepEqual([state.log.length, state.log[0][2], state.log.at(-1)[2]], [200, "50", "249"]);
});

test("a timeline is kept as far as it is whole, and asked for anew where it is not", () => {
  const { store, increment, model } = opened(snapshot(1));
  const told = (from, words, more = {}) => ({ timeline: { now: 5, from, words, lanes: {}, ...more } });
  store.requestTimeline(3);
  increment(told(0, ["a"], { whole: true }));
  assert.deepEqual(store.timeline.words, ["a"]);
  store.requestTimeline(null);
  increment(told(2, ["c"]));
  assert.equal(store.timeline, null);
  store.requestTimeline(null);
  assert.deepEqual(model.sent, [
    { timeline: 3, whole: true },
    { timeline: null, whole: false },
    { timeline: null, whole: true },
  ]);
});

test("what limits the run stays until something else is said", () => {
  const state = snapshot(1, { limits: ["limited by communication"] });
  applyIncrement(state, head(2));
  assert.deepEqual(state.limits, ["limited by communication"]);
  applyIncrement(state, head(3, { limits: [] }));
  assert.deepEqual(state.limits, []);
});

test("marks are replaced by those that come, and stay where none do", () => {
  const state = snapshot(1, { marks: [[1, "died", "rank 2 died"]] });
  applyIncrement(state, head(2));
  assert.equal(state.marks.length, 1);
  applyIncrement(state, head(3, { marks: [...state.marks, [2, "joined", "rank 2 joined"]] }));
  assert.deepEqual(
    state.marks.map(([, kind]) => kind),
    ["died", "joined"],
  );
});
