/** Head of the panel: title of the cell, its status and its time; why ranks wait, where they do. */

import { h, setText, setVisible } from "./dom.js";
import { ENDED_BADLY, ROW } from "./messages.js";
import { duration, grouped } from "./units.js";

/** @import {Snapshot} from "./messages.js" */

const MAX_NAMED = 8;

export function makeHead() {
  const title = h("h3");
  const status = h("span", { class: "hvd-status", role: "status" });
  const note = h("span", { class: "hvd-note" });
  const clock = h("span", { class: "hvd-clock" });
  const wait = h("p", { class: "hvd-wait", role: "status" });
  return {
    root: h("header", {}, title, status, note, clock),
    wait,
    /** @param {Snapshot} state */
    update(state) {
      const { text, kind } = statusOf(state);
      const unnamed = state.unnamed ? `${grouped(state.unnamed)} more logged names not shown` : "";
      setText(title, state.title);
      setText(status, text);
      setText(clock, duration(state.t));
      setText(note, [state.finished ? "means over the cell" : "", unnamed].filter(Boolean).join(" · "));
      setText(wait, state.wait);
      setVisible(wait, state.wait !== "");
      return kind;
    },
  };
}

/**
 * Return how the cell does: it runs, it is finished, or some of its ranks ended badly.
 *
 * @param {Pick<Snapshot, "finished" | "ranks" | "rows">} state
 * @returns {{ text: string, kind: "live" | "good" | "bad" }}
 */
export function statusOf({ finished, ranks, rows }) {
  if (!finished) return { text: "running", kind: "live" };
  const bad = ranks.filter((rank) => ENDED_BADLY.has(rows[rank][ROW.state]));
  if (!bad.length) return { text: "finished", kind: "good" };
  const states = [...new Set(bad.map((rank) => rows[rank][ROW.state]))].join(", ");
  const named = `${bad.slice(0, MAX_NAMED).join(", ")}${bad.length > MAX_NAMED ? ", …" : ""}`;
  return { text: `${states} on ${bad.length === 1 ? "rank" : "ranks"} ${named}`, kind: "bad" };
}
