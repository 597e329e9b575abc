"""A cell in numbers, for metadata, ``make demo`` and tests. Pure."""

from __future__ import annotations

from typing import Any

from hvd_kernel.widgets.board import Board, logged_value
from hvd_kernel.widgets.series import mean


def summary(board: Board) -> dict[str, Any]:
    """Means over the cell, JSON-able; None where nothing was measured.

    Returns
    -------
    dict
        ``ranks``; ``seconds``; ``steps`` (of the rank that made most);
        ``samples_per_s`` {"total": ..., "per_rank": {"0": ...}};
        ``allreduce_gbps`` (bytes per second spent in collectives) and ``comm_share`` (0..1), means of the ranks;
        ``logged`` {name: mean of the ranks' last values}; ``logged_per_rank`` {name: {"0": ...}}.
    """
    rates = [track.overall() for track in board.tracks.values()]
    last = {rank: track.last for rank, track in board.tracks.items() if track.last}
    speeds = [r.samples_per_s for r in rates]
    there = [speed for speed in speeds if speed is not None]
    return {
        "ranks": list(board.ranks),
        "seconds": board.seconds,
        "steps": max((sample.step for sample in last.values()), default=0),
        "samples_per_s": {
            "total": sum(there) if there else None,
            "per_rank": {str(rank): speed for rank, speed in zip(board.ranks, speeds, strict=True)},
        },
        "allreduce_gbps": mean([r.gbps for r in rates]),
        "comm_share": mean([r.comm for r in rates]),
        "logged": dict(zip(board.names, board.totals()["logged"], strict=True)),
        "logged_per_rank": {
            name: {str(rank): logged_value(s.logged[name]) for rank, s in last.items() if name in s.logged}
            for name in board.names
        },
    }
