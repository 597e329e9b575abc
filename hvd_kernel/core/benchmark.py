"""Benchmark of this machine, run by its ranks: ``hvd.bench()``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hvd_kernel.core import ops, session
from hvd_kernel.errors import ClusterError

if TYPE_CHECKING:
    from hvd_kernel.processes.bandwidth import Measured

_FEWEST = 2
_NAME = "hvd.bench"


def bench() -> Measured:
    """Measure the bandwidth of allreduce on rank 0's host; return a table, in a notebook with a picture, on every rank.

    New processes, one per rank of this job on that host and at least two, reduce tensors of 4 KiB to 64 MiB in turn
    with this package, Gloo and the MPI of this environment, and measure a copy in memory as the upper bound. It takes
    about half a minute, in which the ranks of the job wait. The results are stored in the user's cache folder, where
    the notebook's panel reads them.

    Before ``init`` this process measures alone; afterwards every rank has to call it.

    Raises
    ------
    ClusterError
        The measurement failed; the message contains the output of its processes.

    Examples
    --------
    ``python train.py``, or a cell on the ranks::

        measured = hvd.bench()
        print(measured)                 # the table
        measured.results[0]["busbw"]    # bytes per second, of the first contender at the first size

    >>> callable(hvd.bench)
    True
    """
    from hvd_kernel.processes.bandwidth import measure  # noqa: PLC0415 - most jobs do not measure

    if not session.is_initialized() or session.size() == 1:
        return measure(_FEWEST)
    measured: Measured | str = ""
    if session.rank() == 0:
        try:
            measured = measure(max(_FEWEST, session.local_size()))
        except ClusterError as error:
            measured = str(error)
    measured = ops.broadcast_object(measured, 0, _NAME)
    if isinstance(measured, str):
        raise ClusterError(measured)
    return measured
