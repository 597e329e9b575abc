/** Definitions of the figures, shown as tooltips; hvd_kernel/widgets/definitions.py has the same table. */

/** @type {Record<string, string>} Name of a figure: what exactly it is. */
export const DEFINITIONS = {
  "samples/s":
    "training samples per second: over the last second; after the cell, from its first to its last training step, without start and imports. All ranks: the sum",
  step: "optimizer steps in this cell. All ranks: the most of any rank",
  "exposed comm":
    "share of the time for which operations block the code of the rank that they block least: communication that no computation hides. Over the last ten seconds; after the cell, from its first to its last training step",
  "overlapped comm":
    "share of the time for which operations run while a rank's code continues, mean of the ranks. Over the same time as exposed comm",
  "bus GB/s":
    "2 (n - 1) / n times the bytes of the ranks' tensors, divided by the seconds in which the ranks execute their operations: for allreduce the busbw of nccl-tests. Bytes are not counted by operation, so each counts as an allreduce. All ranks: over the same time as exposed comm. One rank: over the last second",
  "comm %":
    "share of a rank's time in operations: over the last second, after the cell as exposed comm. Dark: blocked; light: overlapped with computation",
};
