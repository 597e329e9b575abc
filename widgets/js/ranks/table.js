/** Table of the ranks: a row for each, with its state and its columns. */

import { rankColour } from "../colours.js";
import { DEFINITIONS } from "../definitions.js";
import { h, setText, setVisible } from "../dom.js";
import { ENDED_BADLY, FEW, ROW, STATES } from "../messages.js";
import { multiple, percent } from "../units.js";
import { barOf, columnsOf } from "./columns.js";

/** @import {Column} from "./columns.js" */
/** @import {Row, Slow, Snapshot} from "../messages.js" */
/** @typedef {ReturnType<typeof makeRow>} Parts */

const SHARE_HINT = "share of the other ranks' time spent waiting for this one";

/**
 * @param {(rank: number | null) => void} onHover
 * @param {(rank: number) => void} onPick
 */
export function makeTable(onHover, onPick) {
  const head = h("tr");
  const body = h("tbody");
  const table = h("table", {}, h("caption", {}, "Ranks"), h("thead", {}, head), body);
  const root = h("div", { class: "hvd-ranks", tabindex: "0", role: "region", "aria-label": "Ranks" }, table);
  /** @type {Map<number, Parts>} */
  const rows = new Map();
  let layout = "";

  /**
   * @param {number[]} ranks
   * @param {Column[]} columns
   */
  function build(ranks, columns) {
    head.replaceChildren(
      h("th", { scope: "col", class: "left" }, "rank"),
      h("th", { scope: "col", class: "left" }, h("span", {}, "state")),
      ...columns.map(({ head: name, bar }) =>
        h("th", { scope: "col", class: bar ? "bar" : "", title: DEFINITIONS[name] ?? "" }, name),
      ),
    );
    root.dataset.many = String(ranks.length > FEW);
    rows.clear();
    for (const [i, rank] of ranks.entries()) {
      const parts = makeRow(rank, rankColour(i, ranks.length), columns);
      parts.button.addEventListener("click", () => onPick(rank));
      parts.row.addEventListener("pointerenter", () => onHover(rank));
      parts.row.addEventListener("pointerleave", () => onHover(null));
      rows.set(rank, parts);
    }
    body.replaceChildren(...[...rows.values()].map((parts) => parts.row));
  }
  return {
    root,
    /**
     * @param {Snapshot} state
     * @param {number | null} picked
     */
    update(state, picked) {
      const columns = columnsOf(state);
      const wanted = JSON.stringify([state.ranks, columns.map((column) => column.head)]);
      if (wanted !== layout) build(state.ranks, columns);
      layout = wanted;
      for (const [rank, parts] of rows) {
        const row = state.rows[rank];
        const seen = JSON.stringify([rank === picked, state.slow[rank], row]);
        if (seen === parts.seen) continue; // unchanged elements cost the browser nothing
        parts.seen = seen;
        parts.button.setAttribute("aria-pressed", String(rank === picked));
        updateState(parts, row);
        updateSlow(parts, state.slow[rank], rows.size > 1);
        updateCells(parts, row, columns);
      }
    },
  };
}

/**
 * @param {number} rank
 * @param {string} colour
 * @param {Column[]} columns
 */
function makeRow(rank, colour, columns) {
  const swatch = h("span", { class: "hvd-swatch" });
  swatch.style.background = colour;
  const button = h(
    "button",
    { type: "button", class: "hvd-rank", "aria-pressed": "false", "aria-label": `rank ${rank}: show alone` },
    swatch,
    String(rank),
  );
  const slow = h("span", { class: "hvd-slow" });
  const share = h("span", { class: "hvd-share", title: SHARE_HINT });
  const state = h("span", { class: "hvd-state" });
  const waits = h("span", { class: "hvd-waits" });
  const cells = columns.map(makeCell);
  const row = h(
    "tr",
    {},
    h("th", { scope: "row" }, button, " ", slow),
    h("td", { class: "left" }, h("span", { class: "hvd-dot" }), state, " ", share, " ", waits),
    ...cells.map(({ cell }) => cell),
  );
  return { row, button, slow, share, state, waits, cells, seen: "" };
}

/** @param {Column} column */
function makeCell({ bar }) {
  const text = h("span");
  if (!bar) return { cell: h("td", { class: "" }, text), text };
  const [overlap, blocked] = [h("i", { class: "hvd-overlap" }), h("i", { class: "hvd-blocked" })];
  const cell = h(
    "td",
    { class: "bar" },
    h("span", { class: "hvd-bar", title: DEFINITIONS["comm %"] }, overlap, blocked),
    text,
  );
  return { cell, text, bars: { overlap, blocked } };
}

/**
 * @param {Parts} parts
 * @param {Row} row
 */
function updateState({ row: element, state, waits }, row) {
  const [word, waitingFor] = [row[ROW.state], row[ROW.waitingFor]];
  element.dataset.state = word;
  element.dataset.ended = String(ENDED_BADLY.has(word));
  setText(state, STATES[word] ?? word);
  setText(waits, waitingFor);
  waits.title = waitingFor;
}

/**
 * @param {Parts} parts
 * @param {Slow | undefined} slow
 * @param {boolean} others whether there are other ranks
 */
function updateSlow({ row, slow: badge, share }, slow, others) {
  row.dataset.slow = String(Boolean(slow));
  badge.style.visibility = slow ? "visible" : "hidden"; // keeps its place, so that the table does not jump
  setText(badge, slow ? `slow ${multiple(slow[0])}` : "");
  setVisible(badge, others);
  setText(share, slow ? `others wait ${percent(slow[1])}` : "");
  setVisible(share, Boolean(slow));
}

/**
 * @param {Parts} parts
 * @param {Row} row
 * @param {Column[]} columns
 */
function updateCells({ cells }, row, columns) {
  const shares = barOf(row);
  for (const [i, { text, bars }] of cells.entries()) {
    setText(text, columns[i].text(row));
    if (!bars) continue;
    bars.overlap.style.width = `${100 * shares.overlap}%`;
    bars.blocked.style.width = `${100 * shares.blocked}%`;
  }
}
