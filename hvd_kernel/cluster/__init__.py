"""The cluster as the notebook sees it: start ranks, run a cell on them, read one stream of events, stop.

ipyparallel and MPI are hidden behind a handful of verbs. Controller world: no torch, no mpi4py, no extension;
ipyparallel itself is imported only when a cluster starts.
"""

from hvd_kernel.cluster.run import Run
from hvd_kernel.cluster.session import RankStatus, Session

__all__ = ["RankStatus", "Run", "Session"]
