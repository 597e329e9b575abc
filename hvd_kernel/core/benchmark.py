"""Benchmark of this machine, asked by its ranks: ``hvd.bench()``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hvd_kernel.core import ops, session
from hvd_kernel.errors import ClusterError

if TYPE_CHECKING:
    from hvd_kernel.processes.resources.measurement import Measured

_FEWEST = 2
_NAME = "hvd.bench"


def bench() -> Measured:
    """Measure what allreduce gives on rank 0's host; return it on every rank: a table, in a notebook also a picture.

    As many fresh processes as there are ranks of this job on that host, two at least, reduce tensors of 4 KiB to 64 MiB
    in turn with this package, Gloo and the MPI of this environment, beside a copy in memory, which no allreduce beats.
    It takes about half a minute, in which the ranks of the job wait. The times of this machine are kept in the user's
    cache folder, where the notebook's panel finds them.

    Before ``init`` it is this process alone that asks; afterwards every rank has to call it.

    Raises
    ------
    ClusterError
        The measurement failed; the message carries what its ranks wrote.

    Examples
    --------
    ``python train.py``, or a cell on the ranks::

        found = hvd.bench()
        print(found)                    # the table
        found.results[0]["busbw"]       # bytes per second, of the first contender at the first size

    >>> callable(hvd.bench)
    True
    """
    from hvd_kernel.processes.resources.measurement import measure  # noqa: PLC0415 - a job that asks for none goes without

    if not session.is_initialized() or session.size() == 1:
        return measure(_FEWEST)
    found: Measured | str = ""
    if session.rank() == 0:
        try:
            found = measure(max(_FEWEST, session.local_size()))
        except ClusterError as error:
            found = str(error)
    found = ops.broadcast_object(found, 0, _NAME)
    if isinstance(found, str):
        raise ClusterError(found)
    return found
