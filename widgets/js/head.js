/** Head of the panel: title, status and time of the cell; why ranks wait; the number of ranks, with controls to change it. */

import { h, setText, setVisible } from "./dom.js";
import { ENDED_BADLY, RESTARTED, ROW, SIZE } from "./messages.js";
import { duration, grouped } from "./units.js";

/** @import {Size, Snapshot} from "./messages.js" */

const MAX_NAMED = 8;

/** @param {(n: number) => void} resize requests n ranks */
export function makeHead(resize) {
  const title = h("h3");
  const status = h("span", { class: "hvd-status", role: "status" });
  const note = h("span", { class: "hvd-note" });
  const clock = h("span", { class: "hvd-clock" });
  const wait = h("p", { class: "hvd-wait", role: "status" });
  const size = makeSize(resize);
  return {
    root: h("header", {}, title, status, note, clock),
    wait,
    size: size.root,
    /** @param {Snapshot} state */
    update(state) {
      const { text, kind } = statusOf(state);
      const unnamed = state.unnamed ? `${grouped(state.unnamed)} more logged names not shown` : "";
      setText(title, state.title);
      setText(status, text);
      setText(clock, duration(state.t));
      setText(note, [meansOf(state), beganOf(state), unnamed].filter(Boolean).join(" · "));
      setText(wait, state.lost ? "" : state.wait);
      setVisible(wait, state.wait !== "" && !state.lost);
      size.update(state.finished || state.lost ? null : state.size);
      return kind;
    },
  };
}

/** @param {Snapshot} state */
const meansOf = ({ finished, totals }) => (finished ? `means over the ${totals.step ? "training" : "cell"}` : "");

/** @param {Snapshot} state start and imports are a phase of the cell, not of its curves */
const beganOf = ({ began }) => (began === null ? "" : `first step after ${duration(began)}`);

/**
 * Return the status of the cell: running, finished, or the ranks that failed.
 *
 * @param {Pick<Snapshot, "finished" | "lost" | "ranks" | "rows">} state
 * @returns {{ text: string, kind: "live" | "good" | "bad" }}
 */
export function statusOf({ finished, lost, ranks, rows }) {
  if (lost) return { text: RESTARTED, kind: "bad" };
  if (!finished) return { text: "running", kind: "live" };
  const bad = ranks.filter((rank) => ENDED_BADLY.has(rows[rank][ROW.state]));
  if (!bad.length) return { text: "finished", kind: "good" };
  const states = [...new Set(bad.map((rank) => rows[rank][ROW.state]))].join(", ");
  const named = `${bad.slice(0, MAX_NAMED).join(", ")}${bad.length > MAX_NAMED ? ", …" : ""}`;
  return { text: `${states} on ${bad.length === 1 ? "rank" : "ranks"} ${named}`, kind: "bad" };
}

/**
 * Return the controls for the number of ranks; a resize is requested when the user applies it.
 *
 * @param {(n: number) => void} resize
 */
function makeSize(resize) {
  /** @type {number | null} */
  let picked = null;
  /** @type {Size | null} */
  let size = null;
  const less = h("button", { type: "button", class: "hvd-step", "aria-label": "one rank less" }, "−");
  const number = h("output", { class: "hvd-number", "aria-label": "number of ranks" });
  const more = h("button", { type: "button", class: "hvd-step", "aria-label": "one rank more" }, "+");
  const apply = h("button", { type: "button", class: "hvd-apply" });
  const note = h("span", { class: "hvd-note", role: "status" });
  const root = h("div", { class: "hvd-size", role: "group", "aria-label": "resize" }, "ranks", less, number, more);
  root.append(apply, note);

  function draw() {
    setVisible(root, size !== null);
    if (!size) return;
    const shown = shownOf(size, picked);
    setText(number, String(shown.number));
    less.disabled = more.disabled = size[SIZE.target] !== null;
    less.disabled ||= shown.number <= 1;
    setText(apply, shown.apply);
    setVisible(apply, shown.apply !== "");
    setText(note, shown.note);
  }
  /** @param {number} by */
  function step(by) {
    if (size) picked = Math.max(1, (picked ?? size[SIZE.n]) + by);
    draw();
  }
  less.addEventListener("click", () => step(-1));
  more.addEventListener("click", () => step(1));
  apply.addEventListener("click", () => {
    if (picked !== null) resize(picked);
    picked = null;
    draw();
  });
  return {
    root,
    /** @param {Size | null} now */
    update(now) {
      size = now;
      draw();
    },
  };
}

/**
 * Return the text of a size, for the number that a user has picked.
 *
 * @param {Size} size
 * @param {number | null} picked
 */
export function shownOf(size, picked) {
  const target = size[SIZE.target];
  if (target !== null) return { number: target, apply: "", note: `${size[SIZE.n]} now; ${size[SIZE.note]}` };
  const number = picked ?? size[SIZE.n];
  return { number, apply: number === size[SIZE.n] ? "" : `resize to ${number}`, note: size[SIZE.note] };
}
