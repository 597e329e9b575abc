/**
 * Messages from the kernel, as widgets/board.py makes them: a snapshot is everything, an increment is what is new.
 *
 * A row is a list, to be short. tests/unit/widgets/test_page_modules.py holds these tables equal to those in Python.
 */

/** @import {TimelineMessage} from "./lanes/model.js" */

/** @typedef {number | string | null} Logged "nan" and "inf" come as text */
/** @typedef {[rank: number, stream: string, text: string]} Line */
/** @typedef {(number | null)[]} Column one value per rank */
/** @typedef {{ t: number[], y: Record<string, Column[]> }} Curves columns of each curve at the times `t`, in seconds */
/** @typedef {[t: number, kind: string, label: string]} Mark a moment of the cell: see widgets/marks.py */
/** @typedef {[times: number, share: number]} Slow a straggler's own time as a multiple of the others', what they wait */

/** @typedef {[n: number, wanted: number | null, note: string]} Size ranks that there are, that are wanted, how far that is */

/**
 * One rank. Rates are per second, `comm` and `wait` shares of time, `cpu` a percentage, `rss` bytes.
 *
 * @typedef {[
 *   state: string, waitingFor: string, step: number, speed: number | null, comm: number | null, wait: number | null,
 *   gbps: number | null, cpu: number | null, rss: number, gpu: (number | null)[], logged: Logged[],
 * ]} Row
 */

/**
 * @typedef {object} Totals Figures of all ranks together
 * @property {number | null} samples_per_s
 * @property {number | null} comm
 * @property {number | null} gbps
 * @property {number} step
 * @property {Logged[]} logged
 */

/**
 * @typedef {object} Head Figures: all of them, or those that have changed
 * @property {number} seq
 * @property {number} t
 * @property {string[]} names names of logged values
 * @property {number} unnamed how many more there are
 * @property {Record<string, Slow>} slow
 * @property {string} wait why ranks wait, "" when they do not
 * @property {Size | null} size the number of ranks, where it can be changed
 * @property {Totals} totals
 * @property {Record<string, Row>} rows
 */

/**
 * @typedef {object} Whole What only a snapshot has
 * @property {string} title
 * @property {number[]} ranks
 * @property {boolean} finished
 * @property {Curves} curves
 * @property {Line[]} log the last lines
 * @property {number} lines how many there were
 * @property {Line[]} open lines without their end yet
 * @property {Mark[]} marks
 * @property {string[]} limits what limits the run, in sentences
 * @property {TimelineMessage} [timeline] of a cell that has ended: what its ranks did at last
 */

/** @typedef {Head & Whole} Snapshot */
/** @typedef {Pick<Head, "seq" | "t" | "rows">} Always */
/** @typedef {Always & Partial<Omit<Snapshot, "timeline">> & { merges?: number }} Increment `curves` and `log` are what is new; what has not changed is not there */

/** Places in a row. */
export const ROW = /** @type {const} */ ({
  state: 0,
  waitingFor: 1,
  step: 2,
  speed: 3,
  comm: 4,
  wait: 5,
  gbps: 6,
  cpu: 7,
  rss: 8,
  gpu: 9,
  logged: 10,
});

/** Places in a row's figures of its GPU. */
export const GPU = /** @type {const} */ ({
  util: 0,
  memory: 1,
  power: 2,
  temperature: 3,
  nvlinkTx: 4,
  nvlinkRx: 5,
  pcieTx: 6,
  pcieRx: 7,
});

/** Places in a size. */
export const SIZE = /** @type {const} */ ({ n: 0, wanted: 1, note: 2 });

/** Places in a mark. */
export const MARK = /** @type {const} */ ({ t: 0, kind: 1, label: 2 });

/** Curves that are there without hvd.log. */
export const RATES = ["samples/s", "allreduce GB/s", "communication %"];

/** Curves of logged values are called this and the name. */
export const LOG = "log:";

/** More ranks than this are drawn as a heat map. */
export const FEW = 8;

/** How many lines of output are kept. */
export const MAX_LINES = 200;

/** How many logged values have a column, and a figure. */
export const MAX_LOGGED = 3;

/** @type {Record<string, string>} States of a rank, as people read them; others are shown as they are. */
export const STATES = { compute: "computing", collective: "in collective", prompt: "at a prompt" };

export const ENDED_BADLY = new Set(["failed", "dead", "interrupted"]);
