/** Output of the ranks: the last lines of all ranks, or of the picked one. */

import { rankColour } from "./colours.js";
import { h, setText, setVisible } from "./dom.js";
import { grouped } from "./units.js";

/** @import {Line, Snapshot} from "./messages.js" */

const NEAR_END = 30; // pixels: further up the scroll position is kept

export function makeOutput() {
  const lines = h("div", {
    class: "hvd-lines",
    role: "log",
    "aria-live": "off",
    "aria-label": "Output of the ranks",
    tabindex: "0",
  });
  const note = h("span", { class: "hvd-note" });
  const head = h("summary", { class: "hvd-log-head" }, h("span", {}, "output"), note);
  const root = h("details", { class: "hvd-log", open: "" }, head, lines);
  const [whole, unfinished] = [h("div"), h("div")];
  const inner = h("div", {}, whole, unfinished);
  lines.append(inner);
  let reads = false; // scrolled up; set by events, since reading the position forces a layout
  lines.addEventListener("scroll", () => {
    reads = lines.scrollTop < -NEAR_END;
  });
  let [drawn, chosen] = ["", ""];
  /** @type {number | null} */
  let of = null; // the rank whose lines are shown
  let drawnTo = 0; // lines in total when it was last drawn

  /**
   * @param {Snapshot} state
   * @param {number | null} picked
   */
  function draw(state, picked) {
    /** @param {Line} line */
    const mine = ([rank]) => picked === null || rank === picked;
    const last = reads ? whole.lastElementChild : null;
    const below = last ? belowOf(last) : 0;
    const fresh = of === picked && drawnTo <= state.lines ? state.lines - drawnTo : state.log.length;
    if (fresh >= state.log.length) whole.replaceChildren();
    const added = fresh > 0 ? state.log.slice(-fresh).filter(mine) : [];
    whole.append(...added.map((line) => lineOf(state.ranks, line)));
    while (whole.childElementCount > state.log.length) whole.firstElementChild?.remove();
    [of, drawnTo] = [picked, state.lines];
    unfinished.replaceChildren(
      ...state.open.filter(mine).map((line) => lineOf(state.ranks, line, "hvd-line hvd-open")),
    );
    const earlier = state.lines - state.log.length;
    const notes = [picked === null ? "" : `rank ${picked}`, earlier > 0 ? `${grouped(earlier)} earlier lines` : ""];
    setText(note, notes.filter(Boolean).join(" · "));
    if (last?.isConnected) lines.scrollTop -= belowOf(last) - below;
  }
  /** @param {Element} line */
  const belowOf = (line) => inner.getBoundingClientRect().bottom - line.getBoundingClientRect().bottom;
  return {
    root,
    /**
     * @param {Snapshot} state
     * @param {number | null} picked the rank whose lines alone are shown
     */
    update(state, picked) {
      const choice = `${state.finished} ${picked}`;
      if (choice !== chosen) root.open = !state.finished || picked !== null; // an ended cell shows all output below the panel
      chosen = choice;
      setVisible(root, state.log.length + state.open.length > 0);
      const wanted = `${state.lines} ${picked} ${JSON.stringify(state.open)}`;
      if (wanted !== drawn) draw(state, picked);
      drawn = wanted;
    },
  };
}

/**
 * @param {number[]} ranks
 * @param {Line} line
 */
function lineOf(ranks, [rank, stream, text], kind = "hvd-line") {
  const tag = h("span", { class: "hvd-tag" }, `[${rank}]`);
  tag.style.setProperty("--hvd-rank", rankColour(ranks.indexOf(rank), ranks.length));
  return h("div", { class: kind, "data-stream": stream === "stderr" ? "stderr" : "stdout" }, tag, text);
}
