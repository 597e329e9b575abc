/** Chart of one curve per rank over time, drawn by uPlot, with a tab for each curve that there is to choose. */

import { h, setText } from "../dom.js";
import { LOG, RATES } from "../messages.js";
import { duration, metric } from "../units.js";
import { HEIGHT, plotOptions } from "./axes.js";
import { drawMarks } from "./marks.js";

/** @import {Theme} from "../colours.js" */
/** @import {Mark, Snapshot} from "../messages.js" */
/** @typedef {ReturnType<typeof makeChart>} Chart */

/**
 * @param {string} label
 * @param {() => Theme} theme
 * @param {string} sync charts of the same key show their cursor at the same time
 */
export function makeChart(label, theme, sync) {
  const tabs = h("div", { class: "hvd-tabs", role: "group", "aria-label": `${label} shown` });
  const readout = h("div", { class: "hvd-readout", "aria-hidden": "true" });
  const canvas = h("div", { class: "hvd-plot", role: "img" });
  const root = h("section", { class: "hvd-chart" }, h("div", { class: "hvd-chart-head" }, tabs, readout), canvas);
  let picked = "";
  let shown = "";
  let ranks = 0;
  /** @type {Mark[]} */
  let marks = [];
  /** @type {uPlot | null} */
  let plot = null;

  function fit() {
    const width = Math.floor(canvas.clientWidth);
    if (plot && width > 0 && width !== plot.width) plot.setSize({ width, height: HEIGHT });
  }
  /** @param {number} count */
  function makePlot(count) {
    plot?.destroy();
    ranks = count;
    const options = plotOptions(theme, sync, () => RATES.includes(shown), count);
    plot = new uPlot(
      {
        ...options,
        hooks: {
          setCursor: [(drawn) => setText(readout, readoutOf(drawn))],
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
  return {
    root,
    /**
     * Draw the curve that was picked, or the standard one.
     *
     * @param {Snapshot} state
     * @param {string[]} names
     * @param {string} standard
     * @param {() => void} changed called when another one is picked
     */
    draw(state, names, standard, changed) {
      shown = names.includes(picked) ? picked : standard;
      const drawn = plot && ranks === state.ranks.length ? plot : makePlot(state.ranks.length);
      marks = state.marks;
      const columns = state.curves.y[shown] ?? [];
      drawn.setData([state.curves.t, ...state.ranks.map((_rank, i) => columns.map((column) => column[i]))]);
      const last = (columns.at(-1) ?? []).map(metric).join(", ");
      canvas.setAttribute("aria-label", `${titleOf(shown)} of ${ranks} ranks over time; last values ${last}`);
      if (names.length !== tabs.children.length) tabs.replaceChildren(...names.map((name) => makeTab(name, changed)));
      for (const [i, tab] of [...tabs.children].entries()) tab.setAttribute("aria-pressed", String(names[i] === shown));
      fit();
    },
    fit,
    /** @param {number} index the line that stands out, -1 for none */
    focus: (index) => plot?.setSeries(index < 0 ? null : index + 1, { focus: index >= 0 }),
    redraw: () => plot?.redraw(false, true),
    destroy: () => plot?.destroy(),
  };
}

/** @param {string} name */
const titleOf = (name) => (name.startsWith(LOG) ? name.slice(LOG.length) : name);

/**
 * Return what the ranks had at the cursor, in words.
 *
 * @param {Pick<uPlot, "cursor" | "data">} plot
 */
export function readoutOf({ cursor: { idx }, data: [times, ...curves] }) {
  if (idx === null || idx === undefined) return "";
  const values = curves.map((curve) => curve[idx]).filter((value) => value !== null && value !== undefined);
  if (!values.length) return "";
  const [low, high] = [Math.min(...values), Math.max(...values)];
  return `${duration(times[idx])}   ${low === high ? metric(low) : `${metric(low)} … ${metric(high)}`}`;
}
