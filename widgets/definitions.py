"""Definitions of the panel's figures: one each, shown as its tooltip (widgets/js/definitions.js has the same table).

docs/guides/notebook/panel.md lists them too; tests compare the three.

Terms.
  window   while the cell runs, its last ten seconds; afterwards, the time from its first to its last training step, or
           the whole cell if it has none
"""

from __future__ import annotations

from typing import Final

SAMPLES: Final = "samples/s"
STEP: Final = "step"
EXPOSED: Final = "exposed comm"
OVERLAPPED: Final = "overlapped comm"
BUS: Final = "bus GB/s"
COMM: Final = "comm %"

DEFINITIONS: Final = {
    SAMPLES: (
        "training samples per second: over the last second; after the cell, from its first to its last training step, "
        "without start and imports. All ranks: the sum"
    ),
    STEP: "optimizer steps in this cell. All ranks: the most of any rank",
    EXPOSED: (
        "share of the time for which operations block the code of the rank that they block least: communication that "
        "no computation hides. Over the last ten seconds; after the cell, from its first to its last training step"
    ),
    OVERLAPPED: (
        "share of the time for which operations run while a rank's code continues, mean of the ranks. Over the same "
        "time as exposed comm"
    ),
    BUS: (
        "2 (n - 1) / n times the bytes of the ranks' tensors, divided by the seconds in which the ranks execute their "
        "operations: for allreduce the busbw of nccl-tests. Bytes are not counted by operation, so each counts as an "
        "allreduce. All ranks: over the same time as exposed comm. One rank: over the last second"
    ),
    COMM: (
        "share of a rank's time in operations: over the last second, after the cell as exposed comm. Dark: blocked; "
        "light: overlapped with computation"
    ),
}
"""Name of a figure -> what exactly it is."""
