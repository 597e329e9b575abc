"""A notebook's cluster: start ranks, run cells on them, read one stream of events, stop.

``Session`` hides ipyparallel and MPI. Controller side: no torch, no mpi4py, no extension; ipyparallel is imported only
when a cluster starts. Names are imported lazily, so that a module of this package can be imported without ``Session``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hvd_kernel.cluster.ranks.rank_table import RankStatus
    from hvd_kernel.cluster.requests.cell_execution import CellExecution
    from hvd_kernel.cluster.session import Session

__all__ = ["CellExecution", "RankStatus", "Session"]

_WHERE = {"CellExecution": "requests.cell_execution", "RankStatus": "ranks.rank_table", "Session": "session"}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
