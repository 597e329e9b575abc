/** Figures of all ranks together, in a row above the charts. */

import { DEFINITIONS } from "./definitions.js";
import { h, setText, setVisible } from "./dom.js";
import { MAX_LOGGED } from "./messages.js";
import { grouped, metric, number, percent } from "./units.js";

/** @import {Snapshot} from "./messages.js" */

const LOGGED = "last logged value, mean of the ranks";

export function makeFigures() {
  const root = h("dl", { class: "hvd-figures" });
  /** @type {Map<string, { cell: HTMLElement, value: HTMLElement }>} */
  const figures = new Map();

  /**
   * @param {string} label
   * @param {string} hint
   */
  function makeFigure(label, hint) {
    const value = h("dd");
    const cell = h("div", { class: "hvd-figure", hidden: "" }, h("dt", { title: hint }, label), value);
    root.append(cell);
    figures.set(label, { cell, value });
    return { cell, value };
  }
  /**
   * @param {string} label
   * @param {string} text
   * @param {boolean} present
   */
  function put(label, text, present, hint = DEFINITIONS[label]) {
    const { cell, value } = figures.get(label) ?? makeFigure(label, hint);
    setText(value, text);
    setVisible(cell, present || !cell.hidden); // a figure that was shown stays, so that the layout does not jump
  }
  /** @param {number | null} value */
  const some = (value) => value !== null && value > 0;
  return {
    root,
    /** @param {Pick<Snapshot, "totals" | "names">} state */
    update({ totals, names }) {
      const { samples_per_s: speed, step, exposed, overlapped, bus, logged } = totals;
      put("samples/s", number(speed), some(speed));
      put("step", grouped(step), some(step));
      put("exposed comm", percent(exposed), exposed !== null);
      put("overlapped comm", percent(overlapped), overlapped !== null);
      put("bus GB/s", number(bus), some(bus));
      for (const [i, name] of names.slice(0, MAX_LOGGED).entries()) put(name, metric(logged[i]), true, LOGGED);
    },
  };
}
