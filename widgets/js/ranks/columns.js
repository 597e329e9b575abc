/** Columns of the table of ranks: their heads, and their text of a row. */

import { GPU, MAX_LOGGED, ROW } from "../messages.js";
import { grouped, metric, missing, NONE, number, percent, rate, size } from "../units.js";

/** @import {Row, Snapshot} from "../messages.js" */
/** @import {Value} from "../units.js" */

/** @typedef {{ head: string, text: (row: Row) => string, bar?: boolean }} Column bar: with a bar of the shares of time before its text */

/**
 * @param {Value} value
 * @param {string} unit
 */
const whole = (value, unit) => (missing(value) ? "" : `${Math.round(value)} ${unit}`);

/** @param {...string} texts */
const joined = (...texts) => texts.filter(Boolean).join(", ") || NONE;

/** @type {[head: string, text: (gpu: Row[9]) => string, figure: number][]} omitted if no GPU has the figure */
const GPU_COLUMNS = [
  ["GPU", (gpu) => joined(whole(gpu[GPU.util], "%")), GPU.util],
  ["GPU memory", (gpu) => size(gpu[GPU.memory]), GPU.memory],
  ["power", (gpu) => joined(whole(gpu[GPU.power], "W"), whole(gpu[GPU.temperature], "°C")), GPU.power],
  ["NVLink", (gpu) => rate(gpu[GPU.nvlinkTx], gpu[GPU.nvlinkRx]), GPU.nvlinkTx],
  ["PCIe", (gpu) => rate(gpu[GPU.pcieTx], gpu[GPU.pcieRx]), GPU.pcieTx],
];

/**
 * Return the columns after rank and state: with one for each of the first logged values, and those of GPUs, if any.
 *
 * @param {Pick<Snapshot, "names" | "rows">} state
 * @returns {Column[]}
 */
export function columnsOf({ names, rows }) {
  const gpus = Object.values(rows).map((row) => row[ROW.gpu]);
  return [
    { head: "step", text: (row) => grouped(row[ROW.step]) },
    ...names.slice(0, MAX_LOGGED).map((name, i) => ({ head: name, text: loggedText(i) })),
    { head: "samples/s", text: (row) => number(row[ROW.speed]) },
    { head: "comm %", text: (row) => percent(row[ROW.comm]), bar: true },
    { head: "bus GB/s", text: (row) => number(row[ROW.bus]) },
    { head: "CPU", text: (row) => joined(whole(row[ROW.cpu], "%")) },
    { head: "memory", text: (row) => size(row[ROW.rss]) },
    ...GPU_COLUMNS.filter(([, , figure]) => gpus.some((gpu) => !missing(gpu[figure]))).map(([head, text]) => ({
      head,
      text: gpuText(text),
    })),
  ];
}

/**
 * @param {number} index
 * @returns {Column["text"]}
 */
const loggedText = (index) => (row) => metric(row[ROW.logged][index]);

/**
 * @param {(gpu: Row[9]) => string} text
 * @returns {Column["text"]}
 */
const gpuText = (text) => (row) => text(row[ROW.gpu]);

/**
 * Return the shares of a rank's time for its bar: in collectives, and the part of it in which its code is blocked.
 *
 * @param {Row} row
 */
export function barOf(row) {
  const [comm, wait] = [row[ROW.comm], row[ROW.wait] ?? 0];
  return { overlap: comm ?? 0, blocked: Math.min(wait, comm ?? wait) };
}
