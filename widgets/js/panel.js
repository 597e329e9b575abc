/** The panel of one cell: status, figures, charts, table of ranks and output, drawn when the state has changed. */

import { makeChart } from "./charts/chart.js";
import { makeMarks } from "./charts/marks.js";
import { readTheme } from "./colours.js";
import { h, setVisible } from "./dom.js";
import { makeFigures } from "./figures.js";
import { makeHead } from "./head.js";
import { makeLanes } from "./lanes/view.js";
import { makeLimits } from "./limits.js";
import { LOG, RATES, ROW } from "./messages.js";
import { makeOutput } from "./output.js";
import { makeTable } from "./ranks/table.js";

/** @import {Chart} from "./charts/chart.js" */
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

/**
 * @param {() => Theme} theme
 * @param {() => void} changed called when another curve is picked
 * @param {(index: number) => void} onPick called with the index of a picked rank, in the heat map of many ranks
 */
function makeCharts(theme, changed, onPick) {
  const key = `hvd-${Math.random()}`;
  const logged = makeChart("Logged value", theme, key, onPick);
  const rates = makeChart("Rate", theme, key, onPick);
  const both = [logged, rates];
  let one = -1; // index of the picked rank
  const root = h("div", { class: "hvd-charts" }, logged.root, rates.root);
  /**
   * @param {Chart} chart
   * @param {Snapshot} state
   * @param {string[]} names
   * @param {string} standard
   */
  function update(chart, state, names, standard) {
    setVisible(chart.root, names.length > 0);
    if (names.length && !root.hidden) chart.draw(state, names, standard, one, changed);
  }
  return {
    root,
    /**
     * Return whether there is any curve; a cell without communication and logged values has no charts.
     *
     * @param {Snapshot} state
     * @param {number | null} picked
     */
    update(state, picked) {
      one = picked === null ? -1 : state.ranks.indexOf(picked);
      const { names, curves } = state;
      const moved = RATES.filter((rate) => (curves.y[rate] ?? []).some((column) => column.some((v) => v && v > 0)));
      const active = names.length + moved.length > 0;
      setVisible(root, active && curves.t.length > 1);
      update(
        logged,
        state,
        names.map((name) => LOG + name),
        LOG + (names.find((name) => /loss/i.test(name)) ?? names[0]),
      );
      update(rates, state, moved, moved[0]);
      return active;
    },
    /** @param {number} index the rank with highlighted lines, -1 for none */
    focus(index) {
      for (const chart of both) chart.focus(index);
    },
    fit() {
      for (const chart of both) chart.fit();
    },
    redraw() {
      for (const chart of both) chart.redraw();
    },
    destroy() {
      for (const chart of both) chart.destroy();
    },
  };
}
