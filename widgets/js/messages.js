/**
 * Messages from the kernel (widgets/board.py): a snapshot is the whole state, an increment the changes.
 *
 * A row is a list, to be short. tests/unit/widgets/test_page_modules.py checks that these tables equal those in Python.
 */

/** @import {TimelineMessage} from "./lanes/model.js" */

/** @typedef {number | string | null} Logged values that are not finite are sent as text */
/** @typedef {[rank: number, stream: string, text: string]} Line */
/** @typedef {(number | null)[]} Column one value per rank */
/** @typedef {{ t: number[], step: number[], y: Record<string, Column[]> }} Curves columns of each curve at the times `t`, in seconds, and optimizer steps */
/** @typedef {[t: number, kind: string, label: string]} Mark see widgets/board.py */
/** @typedef {[times: number, share: number]} Slow a straggler's own time as a multiple of the others', their share of time spent waiting */

/** @typedef {[n: number, target: number | null, note: string]} Size number of ranks, requested number, progress */

/**
 * One rank. Rates are per second, `comm` and `wait` shares of time, `cpu` a percentage, `rss` bytes.
 *
 * @typedef {[
 *   state: string, waitingFor: string, step: number, speed: number | null, comm: number | null, wait: number | null,
 *   bus: number | null, cpu: number | null, rss: number, gpu: (number | null)[], logged: Logged[],
 * ]} Row
 */

/**
 * @typedef {object} Totals Figures of all ranks together
 * @property {number | null} samples_per_s
 * @property {number | null} exposed
 * @property {number | null} overlapped
 * @property {number | null} bus
 * @property {number} step
 * @property {Logged[]} logged
 */

/**
 * @typedef {object} Head Figures: all of them, or the changed ones
 * @property {number} seq
 * @property {number} t
 * @property {number | null} began seconds at the first optimizer step
 * @property {string[]} names names of logged values
 * @property {number} unnamed how many more names there are
 * @property {Record<string, Slow>} slow
 * @property {string} wait why ranks wait, "" when they do not
 * @property {Size | null} size the number of ranks, if it can be changed
 * @property {Totals} totals
 * @property {Record<string, Row>} rows
 */

/**
 * @typedef {object} Whole Parts of a snapshot alone
 * @property {string} title
 * @property {number[]} ranks
 * @property {boolean} finished
 * @property {Curves} curves
 * @property {Line[]} log the last lines
 * @property {number} lines how many there were in total
 * @property {Line[]} open unfinished lines
 * @property {Mark[]} marks
 * @property {string[]} limits what limits the run, in sentences
 * @property {TimelineMessage} [timeline] of an ended cell: the last operations of its ranks
 * @property {boolean} [lost] set by the page: the kernel restarted while the cell ran
 */

/** @typedef {Head & Whole} Snapshot */
/** @typedef {Pick<Head, "seq" | "t" | "rows">} Always */
/** @typedef {Always & Partial<Omit<Snapshot, "timeline" | "lost">> & { merges?: number }} Increment `curves` and `log` have the additions; unchanged values are omitted */

/** Places in a row. */
export const ROW = /** @type {const} */ ({
  state: 0,
  waitingFor: 1,
  step: 2,
  speed: 3,
  comm: 4,
  wait: 5,
  bus: 6,
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
export const SIZE = /** @type {const} */ ({ n: 0, target: 1, note: 2 });

/** Places in a mark. */
export const MARK = /** @type {const} */ ({ t: 0, kind: 1, label: 2 });

/** Curves that exist without hvd.log. */
export const RATES = ["samples/s", "bus GB/s", "comm %"];

/** Prefixes of the curves of a logged name: its value, and the least and greatest one in each column, if they differ. */
export const LOG = "log:";
export const LOW = "low:";
export const HIGH = "high:";

/** More ranks than this are drawn as a heat map. */
export const FEW = 8;

/** Number of output lines that are kept. */
export const MAX_LINES = 200;

/** Number of logged values with a column and a figure. */
export const MAX_LOGGED = 3;

/** @type {Record<string, string>} States of a rank, as they are shown; others are shown unchanged. */
export const STATES = {
  compute: "computing",
  waiting: "waiting for data, disk or sleep",
  collective: "in collective",
  prompt: "at a prompt",
};

/** Status and state of the ranks of a cell whose kernel restarted. */
export const RESTARTED = "kernel restarted";
export const ENDED = "ended";

export const ENDED_BADLY = new Set(["failed", "dead", "interrupted"]);
