/** Sentences about what limits the run: the first is the verdict, the others are its figures. */

import { h, setVisible } from "./dom.js";

/** @import {Snapshot} from "./messages.js" */

export function makeLimits() {
  const root = h("section", { class: "hvd-limits", "aria-label": "What limits this run", hidden: "" });
  let shown = "";
  return {
    root,
    /** @param {Pick<Snapshot, "limits">} state */
    update({ limits = [] }) {
      const wanted = limits.join("\n");
      if (wanted === shown) return;
      shown = wanted;
      root.replaceChildren(...limits.map((sentence) => h("p", {}, sentence)));
      setVisible(root, limits.length > 0);
    },
  };
}
