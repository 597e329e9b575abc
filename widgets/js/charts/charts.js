/** The two charts of a cell: logged values and rates, over steps or over time. */

import { h, setText, setVisible } from "../dom.js";
import { LOG, RATES } from "../messages.js";
import { makeChart } from "./chart.js";
import { hasSteps, viewOf } from "./xaxis.js";

/** @import {Theme} from "../colours.js" */
/** @import {Snapshot} from "../messages.js" */
/** @import {Chart} from "./chart.js" */
/** @import {View} from "./xaxis.js" */

/**
 * @param {() => Theme} theme
 * @param {() => void} changed called when another curve is picked
 * @param {(index: number) => void} onPick called with the index of a picked rank, in the heat map of many ranks
 */
export function makeCharts(theme, changed, onPick) {
  const key = `hvd-${Math.random()}`;
  const logged = makeChart("Logged value", theme, key, onPick);
  const rates = makeChart("Rate", theme, key, onPick);
  const both = [logged, rates];
  let one = -1; // index of the picked rank
  let byTime = false;
  const axis = h("button", { type: "button", class: "hvd-tab hvd-axis", hidden: "" });
  axis.addEventListener("click", () => {
    byTime = !byTime;
    changed();
  });
  const root = h("div", { class: "hvd-charts" }, logged.root, rates.root, axis);
  /**
   * @param {Chart} chart
   * @param {View} state
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
      setVisible(axis, hasSteps(state));
      setText(axis, byTime ? "over time: show steps" : "over steps: show time");
      const view = viewOf(state, byTime);
      update(
        logged,
        view,
        names.map((name) => LOG + name),
        LOG + (names.find((name) => /loss/i.test(name)) ?? names[0]),
      );
      update(rates, view, moved, moved[0]);
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
