/** Figures of all ranks together, in a row above the charts. */

import { h, setText, setVisible } from "./dom.js";
import { MAX_LOGGED } from "./messages.js";
import { grouped, metric, number, percent } from "./units.js";

/** @import {Snapshot} from "./messages.js" */

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
   * @param {string} hint
   */
  function put(label, text, hint, present = true) {
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
      const { samples_per_s: speed, step, comm, gbps, logged } = totals;
      put("samples/s", number(speed), "training samples per second, all ranks together", some(speed));
      put("step", grouped(step), "optimizer steps", some(step));
      put("communication", percent(comm), "share of time in collectives, mean of the ranks", some(comm));
      put(
        "allreduce GB/s",
        number(gbps),
        "bytes reduced per second spent in collectives, mean of the ranks",
        some(gbps),
      );
      for (const [i, name] of names.slice(0, MAX_LOGGED).entries()) {
        put(name, metric(logged[i]), "last logged value, mean of the ranks");
      }
    },
  };
}
