/** Section of the panel with the lanes: on a canvas, moved by mouse and keys, saved as files. */

import { h, setText, setVisible } from "../dom.js";
import { describe, describeOpen } from "./describe.js";
import { chromeTrace, PLACES, svgOf } from "./files.js";
import { neighbour, operationAt, panned, zoomed } from "./layout.js";
import { beginOf } from "./model.js";
import { paint } from "./paint.js";
import { download, makeTools, obeyKeys } from "./tools.js";

/** @import {View} from "./layout.js" */
/** @import {Timeline} from "./model.js" */
/** @import {Chosen} from "./paint.js" */

const FIRST = 5e6; // microseconds of the initial view
const NEAR = 4; // pixels between the pointer and an operation
const DRAGGED = 3; // pixels: less is a click
const KEYS =
  "Arrow keys move and choose a rank, + and - zoom, Shift with an arrow chooses an operation, Home shows all, End follows";

/** @param {() => Record<string, string>} theme colours by kind, and of ink, soft, grid, paper; and the font */
export function makeLanes(theme) {
  const canvas = h("canvas", {
    class: "hvd-lanes-canvas",
    tabindex: "0",
    role: "application",
    "aria-label": `Timeline. ${KEYS}`,
  });
  const said = h("p", { class: "hvd-lanes-said", role: "status" });
  const tools = makeTools();
  const body = h("div", { class: "hvd-lanes-body" }, tools.root, canvas, said);
  const root = h(
    "details",
    { class: "hvd-lanes", hidden: "" },
    h("summary", { class: "hvd-log-head" }, h("span", {}, "timeline")),
    body,
  );
  /** @type {Timeline | null} */
  let timeline = null;
  /** @type {View} */
  let view = { from: 0, to: FIRST };
  let following = true;
  let title = "";
  /** @type {Chosen | null} */
  let chosen = null;
  /** @type {{ x: number, view: View, moved: boolean } | null} */
  let drag = null;

  const inner = () => Math.max(1, canvas.clientWidth - PLACES.left - PLACES.right);
  const extent = () => ({ from: timeline ? beginOf(timeline) : 0, to: timeline?.now ?? FIRST });

  /** @param {View} next */
  function show(next) {
    const { from, to } = extent();
    following = next.to >= to - (next.to - next.from) * 0.01;
    view = panned(next, 0, { from, to });
    draw();
  }
  /** @param {number} factor */
  const zoom = (factor, at = 0.5) => show(zoomed(view, factor, at, extent().to - extent().from));
  function all() {
    show(extent());
  }
  function newest() {
    const length = view.to - view.from;
    show({ from: extent().to - length, to: extent().to });
  }
  function draw() {
    if (!timeline || !root.open || !canvas.clientWidth) return;
    const ratio = devicePixelRatio;
    const [wide, tall] = [canvas.clientWidth, PLACES.lane * timeline.lanes.size + PLACES.axis];
    canvas.style.height = `${tall}px`;
    canvas.width = wide * ratio;
    canvas.height = tall * ratio;
    const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
    context.scale(ratio, ratio);
    paint(context, { timeline, view, chosen, width: wide, colours: theme() });
    tools.press("follow", following);
  }
  /** @param {Chosen | null} next */
  function choose(next) {
    chosen = next;
    setText(said, next ? textOf(next) : "");
    draw();
  }
  /** @param {Chosen} one */
  function textOf({ rank, operation }) {
    if (operation) return describe(rank, operation);
    const open = timeline?.lanes.get(rank)?.open[0];
    return open && timeline ? describeOpen(rank, open, timeline.now) : `rank ${rank}`;
  }
  /** @param {MouseEvent} event */
  function at(event) {
    const box = canvas.getBoundingClientRect();
    const x = event.clientX - box.left - PLACES.left;
    const time = view.from + (x / inner()) * (view.to - view.from);
    const rank = [...(timeline?.lanes.keys() ?? [])][Math.floor((event.clientY - box.top) / PLACES.lane)];
    const lane = timeline?.lanes.get(rank);
    const slack = (NEAR / inner()) * (view.to - view.from);
    return { place: x / inner(), rank, operation: lane ? operationAt(lane, time, slack) : null };
  }
  /** @param {number} by */
  function chooseRank(by) {
    const ranks = [...(timeline?.lanes.keys() ?? [])];
    const place = chosen ? ranks.indexOf(chosen.rank) + by : 0;
    const rank = ranks[Math.min(Math.max(place, 0), ranks.length - 1)];
    if (rank !== undefined) choose({ rank, operation: null });
  }
  /** @param {1 | -1} by */
  function chooseOperation(by) {
    const rank = chosen?.rank ?? [...(timeline?.lanes.keys() ?? [])][0];
    const lane = timeline?.lanes.get(rank);
    const operation = lane ? neighbour(lane, chosen?.operation ?? null, by, view) : null;
    if (!operation) return;
    following = false;
    const middle = (operation.asked + operation.end) / 2;
    if (middle < view.from || middle > view.to)
      show({ from: middle - (view.to - view.from) / 2, to: middle + (view.to - view.from) / 2 });
    choose({ rank, operation });
  }
  /** @type {Record<string, (event: KeyboardEvent) => void>} */
  const keys = {
    ArrowLeft: ({ shiftKey }) => (shiftKey ? chooseOperation(-1) : show(panned(view, -0.2, extent()))),
    ArrowRight: ({ shiftKey }) => (shiftKey ? chooseOperation(1) : show(panned(view, 0.2, extent()))),
    ArrowUp: () => chooseRank(-1),
    ArrowDown: () => chooseRank(1),
    "+": () => zoom(0.5),
    "-": () => zoom(2),
    Home: all,
    End: newest,
    Escape: () => choose(null),
  };
  obeyKeys(canvas, keys);
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey && !canvas.matches(":focus")) return; // the page scrolls
    event.preventDefault();
    zoom(event.deltaY > 0 ? 1.25 : 0.8, Math.min(Math.max(at(event).place, 0), 1));
  });
  canvas.addEventListener("pointerdown", (event) => {
    drag = { x: event.clientX, view, moved: false };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!drag) {
      const { rank, operation } = at(event);
      if (!chosen?.operation) setText(said, operation ? describe(rank, operation) : "");
      return;
    }
    drag.moved ||= Math.abs(event.clientX - drag.x) > DRAGGED;
    if (drag.moved) show(panned(drag.view, (drag.x - event.clientX) / inner(), extent()));
  });
  canvas.addEventListener("pointerup", (event) => {
    const { rank, operation } = at(event);
    if (drag && !drag.moved) choose(operation ? { rank, operation } : null);
    drag = null;
  });
  root.addEventListener("toggle", draw);

  tools.fill([
    ["follow", "show the newest operations, and follow them", newest],
    ["+", "closer", () => zoom(0.5)],
    ["−", "further away", () => zoom(2)],
    ["all", "show all that is kept", all],
    ["JSON", "save as a trace for Perfetto and chrome://tracing", () => save("json", chromeTrace)],
    ["SVG", "save what is seen as a picture", () => save("svg", (shown) => svgOf(shown, view, 1100, theme(), title))],
    ["PNG", "save what is seen as a picture of pixels", () => canvas.toBlob((blob) => download(fileName("png"), blob))],
  ]);

  /** @param {string} ending */
  const fileName = (ending) => `${title.replaceAll(/\W+/g, "-")}-timeline.${ending}`;
  /** @param {string} ending @param {(shown: Timeline) => string} write */
  function save(ending, write) {
    if (timeline) download(fileName(ending), new Blob([write(timeline)]));
  }
  return {
    root,
    draw,
    get open() {
      return root.open && !root.hidden;
    },
    /**
     * @param {Timeline | null} next
     * @param {string} name of the cell
     * @param {boolean} present whether there is anything to show
     */
    update(next, name, present) {
      setVisible(root, present || !root.hidden);
      title = name;
      if (next === timeline) return;
      const length = view.to - view.from;
      timeline = next;
      if (following && next) view = { from: Math.max(beginOf(next), next.now - length), to: 0 };
      view.to = following ? view.from + length : view.to;
      if (chosen && !chosen.operation) setText(said, textOf(chosen));
      draw();
    },
  };
}
