"""The cluster as the notebook sees it: start ranks, run a cell on them, read one stream of events, stop.

ipyparallel and MPI are hidden behind a few methods. Controller side: no torch, no mpi4py, no extension;
ipyparallel itself is imported only when a cluster starts, and nothing for those who want ``cluster.processes`` alone.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hvd_kernel.cluster.ranks.status import RankStatus
    from hvd_kernel.cluster.requests.cell_run import CellRun
    from hvd_kernel.cluster.session import Session

__all__ = ["CellRun", "RankStatus", "Session"]

_WHERE = {"CellRun": "requests.cell_run", "RankStatus": "ranks.status", "Session": "session"}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
