/** The panel of one cell: status, figures, charts, table of ranks and output, drawn when the state has changed. */

import { makeCharts } from "./charts/charts.js";
import { makeMarks } from "./charts/marks.js";
import { readTheme } from "./colours.js";
import { h, setVisible } from "./dom.js";
import { makeFigures } from "./figures.js";
import { makeHead } from "./head.js";
import { makeLanes } from "./lanes/view.js";
import { makeLimits } from "./limits.js";
import { ROW } from "./messages.js";
import { makeOutput } from "./output.js";
import { makeTable } from "./ranks/table.js";

/** @import {Theme} from "./colours.js" */
/** @import {Snapshot} from "./messages.js" */
/** @import {Store} from "./store.js" */

/** Settings of the user's system that the style sheet follows. */
const QUERIES = ["(prefers-color-scheme: dark)", "(prefers-contrast: more)", "(forced-colors: active)"];

const ASK_AGAIN = 2000; // milliseconds: the kernel's record of a shown timeline expires (widgets/dashboard.py)

/** @param {Snapshot} state */
const communicates = ({ rows }) => Object.values(rows).some((row) => (row[ROW.comm] ?? 0) > 0);

/**
 * @param {Store} store
 * @param {HTMLElement} el
 * @param {AbortSignal} signal ends the panel
 */
export function makePanel(store, el, signal) {
  /** @type {Theme} */
  let theme = { soft: "", grid: "", ink: "", paper: "", font: "11px sans-serif" };
  /** @type {number | null} */
  let hovered = null;
  /** @type {number | null} */
  let picked = null;
  let frame = 0;
  const head = makeHead(store.resize);
  const figures = makeFigures();
  const limits = makeLimits();
  const marks = makeMarks();
  const charts = makeCharts(
    () => theme,
    schedule,
    (index) => pick(store.state?.ranks[index] ?? null),
  );
  const lanes = makeLanes(() => theme);
  const table = makeTable((rank) => {
    hovered = rank;
    focus();
  }, pick);
  const output = makeOutput();
  const root = h("article", { class: "hvd", "aria-label": "hvd dashboard" });
  root.append(
    head.root,
    head.wait,
    head.size,
    figures.root,
    limits.root,
    marks.root,
    charts.root,
    lanes.root,
    table.root,
    output.root,
  );
  el.append(root);

  /** @param {number | null} rank */
  function pick(rank) {
    picked = picked === rank ? null : rank;
    focus();
    schedule();
  }
  function focus() {
    charts.focus(store.state?.ranks.indexOf(hovered ?? picked ?? -1) ?? -1);
  }
  function draw() {
    frame = 0;
    const state = store.state;
    if (!state) return;
    // Paint canvases first: their text forces a layout, which is free before the page has changed.
    const active = charts.update(state, picked);
    lanes.update(store.timeline, state.title, store.timeline !== null || (!state.finished && communicates(state)));
    root.dataset.kind = head.update(state);
    root.dataset.second = Math.floor(state.t) % 2 ? "odd" : "even";
    figures.update(state);
    setVisible(figures.root, active);
    limits.update(state);
    marks.update(state);
    table.update(state, picked);
    output.update(state, picked);
    if (picked !== null || hovered !== null) focus();
  }
  function schedule() {
    frame ||= requestAnimationFrame(draw);
  }
  function ask() {
    if (lanes.open && !store.state?.finished && !store.state?.lost && !document.hidden) store.requestTimeline(picked);
  }
  const asking = setInterval(ask, ASK_AGAIN);
  lanes.root.addEventListener("toggle", ask);
  function restyle() {
    theme = readTheme(root);
    charts.redraw();
    lanes.draw();
  }
  const themes = new MutationObserver(restyle);
  themes.observe(document.body, { attributes: true });
  for (const query of QUERIES) matchMedia(query).addEventListener("change", restyle, { signal });
  const sizes = new ResizeObserver(() => {
    charts.fit();
    restyle();
  });
  for (const element of [root, ...charts.root.children]) sizes.observe(element); // charts share the width
  store.views.add(schedule);
  restyle();
  schedule();
  signal.addEventListener("abort", () => {
    store.views.delete(schedule);
    clearInterval(asking);
    themes.disconnect();
    sizes.disconnect();
    cancelAnimationFrame(frame);
    charts.destroy();
    root.remove();
  });
}
