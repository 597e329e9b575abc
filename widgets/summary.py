"""Summary of a cell in numbers, for metadata, ``make demo`` and tests. Pure."""

from __future__ import annotations

from typing import Any

from hvd_kernel.widgets.board import Board, logged_value
from hvd_kernel.widgets.series import mean


def curves_of(board: Board, most: int = 60) -> dict[str, tuple[list[float], list[float | None]]]:
    """Return each curve's seconds and the means of its ranks, ``most`` points at most.

    Example: ``curves_of(board)["log:loss"]`` is ``([0.2, 0.4], [0.7, 0.5])``.
    """
    every = max(1, -(-len(board.grid.t) // most))
    return {
        name: (board.grid.t[::every], [mean(column) for column in columns[::every]])
        for name, columns in board.grid.curves.items()
        if any(value is not None for column in columns for value in column)
    }


def summary(board: Board) -> dict[str, Any]:
    """Means over the cell, JSON-able; None where nothing was measured.

    Returns
    -------
    dict
        ``ranks``; ``seconds``; ``steps`` (of the rank that made most);
        ``samples_per_s`` {"total": ..., "per_rank": {"0": ...}};
        ``allreduce_gbps`` (bytes per second spent in collectives) and ``comm_share`` (0..1), means of the ranks;
        ``slow`` {"2": [how many times as slow as others, share of their time that they waited]}, as of the end;
        ``marks`` [[seconds, kind, label], ...]: ranks that died, came or left, and the steps that were lost;
        ``logged`` {name: mean of the ranks' last values}; ``logged_per_rank`` {name: {"0": ...}}.
    """
    rates = [track.overall() for track in board.tracks.values()]
    speeds = [r.samples_per_s for r in rates]
    there = [speed for speed in speeds if speed is not None]
    return {
        "ranks": list(board.ranks),
        "seconds": board.seconds,
        "steps": board.totals()["step"],
        "samples_per_s": {
            "total": sum(there) if there else None,
            "per_rank": {str(rank): speed for rank, speed in zip(board.ranks, speeds, strict=True)},
        },
        "allreduce_gbps": mean([r.gbps for r in rates]),
        "comm_share": mean([r.comm for r in rates]),
        "slow": board.slow,
        "marks": board.marks.wire(),
        "logged": dict(zip(board.names, board.totals()["logged"], strict=True)),
        "logged_per_rank": {
            name: {str(rank): logged_value(values[name]) for rank, values in board.logged.items() if name in values}
            for name in board.names
        },
    }
