/** Chart of one curve per rank over time, drawn by uPlot, with a tab for each curve. */

import { h, setText, setVisible } from "../dom.js";
import { FEW, HIGH, LOG, LOW, RATES } from "../messages.js";
import { endsOf } from "../store.js";
import { metric } from "../units.js";
import { HEIGHT, plotOptions } from "./axes.js";
import { makeHeat } from "./heat.js";
import { drawMarks } from "./marks.js";
import { placeOf } from "./xaxis.js";

/** @import {Theme} from "../colours.js" */
/** @import {Column, Mark, Snapshot} from "../messages.js" */
/** @import {View} from "./xaxis.js" */
/** @typedef {ReturnType<typeof makeChart>} Chart */

/**
 * @param {string} label
 * @param {() => Theme} theme
 * @param {string} sync charts of the same key show their cursor at the same time
 * @param {(index: number) => void} onPick called with the index of a picked rank, in the heat map of many ranks
 */
export function makeChart(label, theme, sync, onPick) {
  const tabs = h("div", { class: "hvd-tabs", role: "group", "aria-label": `${label} shown` });
  const readout = h("div", { class: "hvd-readout", "aria-hidden": "true" });
  const canvas = h("div", { class: "hvd-plot", role: "img" });
  const heat = makeHeat(theme, onPick, readout);
  const head = h("div", { class: "hvd-chart-head" }, tabs, readout);
  const root = h("section", { class: "hvd-chart" }, head, canvas, heat.root);
  let legend = ""; // text about the lines, unless there is one per rank
  let picked = "";
  let shown = "";
  let ranks = 0;
  let bySteps = false;
  /** @type {Mark[]} */
  let marks = [];
  /** @type {uPlot | null} */
  let plot = null;

  function fit() {
    const width = Math.floor(canvas.clientWidth);
    heat.fit();
    if (plot && width > 0 && width !== plot.width) plot.setSize({ width, height: HEIGHT });
  }
  /** @param {number} count */
  function makePlot(count) {
    plot?.destroy();
    ranks = count;
    const options = plotOptions(
      theme,
      sync,
      () => bySteps,
      () => RATES.includes(shown),
      count,
    );
    plot = new uPlot(
      {
        ...options,
        hooks: {
          setCursor: [(drawn) => setText(readout, readoutOf(drawn, bySteps) || legend)],
          draw: [(drawn) => drawMarks(drawn, marks, theme())],
        },
      },
      [[]],
      canvas,
    );
    fit();
    return plot;
  }
  /**
   * @param {string} name
   * @param {() => void} changed
   */
  function makeTab(name, changed) {
    const tab = h("button", { type: "button", class: "hvd-tab" }, titleOf(name));
    tab.addEventListener("click", () => {
      picked = name;
      changed();
    });
    return tab;
  }
  /**
   * Draw a line for each rank, or a line of one rank and a line of the mean of all.
   *
   * @param {View} state
   * @param {Column[]} columns
   * @param {number} one
   */
  function drawLines(state, columns, one) {
    const lines =
      one < 0 ? state.ranks.map((_rank, i) => columns.map((column) => column[i])) : besideMean(columns, one);
    const ends = one < 0 ? rangesOf(state, columns, shown) : [];
    const drawn = plot && ranks === lines.length ? plot : makePlot(lines.length);
    marks = state.marks;
    bySteps = state.bySteps;
    legend = one < 0 ? "" : `rank ${state.ranks[one]}, and the mean of ${state.ranks.length}`;
    const none = columns.map(() => null);
    drawn.setData([state.curves.t, ...lines, ...(ends.length ? ends : lines.flatMap(() => [none, none]))]);
    if (legend && (drawn.cursor.idx ?? null) === null) setText(readout, legend);
    const last = lines.map((line) => metric(line.at(-1))).join(", ");
    const whose = legend || `${state.ranks.length} ranks`;
    const axis = bySteps ? "steps" : "time";
    canvas.setAttribute("aria-label", `${titleOf(shown)} of ${whose} over ${axis}; last values ${last}`);
  }
  return {
    root,
    /**
     * Draw the picked curve, or the standard one.
     *
     * @param {View} state
     * @param {string[]} names
     * @param {string} standard
     * @param {number} one index of the picked rank, -1 for none
     * @param {() => void} changed called when another curve is picked
     */
    draw(state, names, standard, one, changed) {
      shown = names.includes(picked) ? picked : standard;
      const columns = state.curves.y[shown] ?? [];
      const many = state.ranks.length > FEW;
      setVisible(heat.root, many && one < 0);
      setVisible(canvas, !many || one >= 0);
      if (many && one < 0) {
        const label = `${titleOf(shown)} of ${state.ranks.length} ranks over ${state.bySteps ? "steps" : "time"}`;
        const { ranks, marks, bySteps } = state;
        heat.draw({ t: state.curves.t, columns, ranks, marks, bySteps }, label);
      } else drawLines(state, columns, many ? one : -1);
      if (names.length !== tabs.children.length) tabs.replaceChildren(...names.map((name) => makeTab(name, changed)));
      for (const [i, tab] of [...tabs.children].entries()) tab.setAttribute("aria-pressed", String(names[i] === shown));
    },
    fit,
    /** @param {number} index the highlighted line, -1 for none */
    focus(index) {
      if (!legend) plot?.setSeries(index < 0 ? null : index + 1, { focus: index >= 0 });
    },
    redraw() {
      plot?.redraw(false, true);
      heat.paint();
    },
    destroy: () => plot?.destroy(),
  };
}

/**
 * @param {Column[]} columns
 * @param {number} one
 * @returns {Column[]}
 */
export function besideMean(columns, one) {
  const means = columns.map((column) => {
    const there = column.filter((value) => value !== null);
    return there.length ? there.reduce((sum, value) => sum + value, 0) / there.length : null;
  });
  return [columns.map((column) => column[one]), means];
}

/**
 * Return the curves of the greatest and the least values of each rank; none if all columns have one value.
 *
 * @param {Snapshot} state
 * @param {Column[]} columns of the values
 * @param {string} name of their curve
 * @returns {Column[]}
 */
function rangesOf({ curves, ranks }, columns, name) {
  const of = name.startsWith(LOG) ? name.slice(LOG.length) : "";
  const [lows, highs] = [curves.y[LOW + of], curves.y[HIGH + of]];
  if (!of || !lows || !highs) return [];
  const ends = [endsOf(highs, columns), endsOf(lows, columns)];
  return ranks.flatMap((_rank, i) => ends.map((end) => end.map((column) => column[i])));
}

/** @param {string} name */
const titleOf = (name) => (name.startsWith(LOG) ? name.slice(LOG.length) : name);

/**
 * Return the values at the cursor, as text.
 *
 * @param {Pick<uPlot, "cursor" | "data">} plot
 * @param {boolean} bySteps
 */
export function readoutOf({ cursor: { idx }, data: [places, ...curves] }, bySteps) {
  if (idx === null || idx === undefined) return "";
  const values = curves.map((curve) => curve[idx]).filter((value) => value !== null && value !== undefined);
  if (!values.length) return "";
  const [low, high] = [Math.min(...values), Math.max(...values)];
  return `${placeOf(places[idx], bySteps)}   ${low === high ? metric(low) : `${metric(low)} … ${metric(high)}`}`;
}
