"""Rows of a panel, as a kernel sends them to a page while a cell still runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hvdtest.kernel import Kernel

PATIENT_S = 400.0

TRAIN = """
def train(folder):
    import os
    import numpy as np
    import hvd_kernel.numpy as hvd
    from hvd_kernel.core import metrics
    hvd.init()

    @hvd.elastic.run
    def steps(state):
        while hvd.allreduce(np.array([float(os.path.exists(f"{folder}/seen"))]), name="seen", op=hvd.Sum)[0] == 0:
            metrics.step(samples=8)
            hvd.log(rank_loss=hvd.rank() + 0.5)
            state.commit()
    steps(hvd.elastic.ObjectState(step=0))
    return hvd.rank()
"""
"""Code of a function for a job's ranks, which train, elastic or not, until the file ``seen`` is in a folder."""


def rows_of(content: dict[str, Any]) -> dict[str, list[Any]]:
    """Return the rows of the ranks in a message of a kernel to a panel."""
    data = content["data"]
    news = data.get("content") or data.get("state", {}).get("snapshot") or {}
    found: dict[str, list[Any]] = news.get("rows", {}) if isinstance(news, dict) else {}
    return found


def run_and_seen(kernel: Kernel, folder: Path, code: str) -> dict[str, list[Any]]:
    """Run a cell whose two ranks train until a file reports that they were seen; return each one's row."""
    begun = kernel.start(code, prompts=True)
    rows: dict[str, list[Any]] = {}
    while not all(rows.get(rank, [0] * 3)[2] > 1 and rows[rank][-1][:1] not in ([], [None]) for rank in "01"):
        rows |= rows_of(kernel.wait_for("comm_open", "comm_msg", timeout=PATIENT_S))
    (folder / "seen").touch()
    kernel.finish_rest(begun, timeout=PATIENT_S)
    return rows


def panel(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return all messages to a dashboard in order."""
    found: list[dict[str, Any]] = []
    for message in messages:
        data = message["content"].get("data", {}) if message["msg_type"] in {"comm_open", "comm_msg"} else {}
        parts = (data.get("content"), data.get("state", {}).get("snapshot"))
        found += [part for part in parts if isinstance(part, dict)]
    return found


def waits(messages: list[dict[str, Any]]) -> list[str]:
    """Return all sentences about waits that a dashboard received, in order."""
    found: list[str] = []
    for part in panel(messages):
        if "wait" in part and part["wait"] not in found[-1:]:
            found.append(part["wait"])
    return found


def ranks_with_line(messages: list[dict[str, Any]], line: str) -> set[int]:
    """Return the ranks whose output line a dashboard received."""
    return {rank for part in panel(messages) for rank, _stream, text in part.get("log", []) if text == line}
