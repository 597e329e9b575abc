"""Shared memory of the ranks of one host, in host memory or on their GPUs: collectives use it in place, without a copy.

Terms.
  region  result of one allocation: a part of the same length for every rank
  dead    without any reference in this process; a region that is dead on all ranks is released at the next allocation,
          which all ranks make together, or by ``release_shared``; all regions end with the engine
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hvd_kernel.core import ops, session
from hvd_kernel.core.tensor import Array

_regions: dict[int, weakref.ref[Any]] = {}  # region -> owner of its memoryviews; the same keys on every rank
_sizes: dict[int, int] = {}  # region -> bytes of this rank's part
_generation = 0


def allocate(nbytes: int) -> memoryview:
    """Return this rank's part of a new region. Collective over all ranks, which request the same length.

    Raises
    ------
    HorovodInternalError
        On every rank, when one of them has no shared memory, or too little.
    """
    release_shared()
    engine = session.engine()
    if engine.size == 1:
        return memoryview(bytearray(nbytes))  # no rank to share with
    outcome = engine.wait(engine.allocate_shared(max(nbytes, 1)))
    assert outcome is not None
    memory = engine.shared_memory(outcome.number)
    _regions[outcome.number] = weakref.ref(memory.obj)
    _sizes[outcome.number] = nbytes
    return memory[:nbytes]


def held() -> int:
    """Return the bytes of this rank's parts of the host's regions that it still uses."""
    alive = [region for region, used in _regions.copy().items() if used() is not None]
    return sum(_sizes.get(region, 0) for region in alive)


def allocate_on_devices(nbytes: int, device: int) -> Any:
    """Return this rank's part of a new region on its own device: a buffer of the core. Collective over all ranks.

    Raises
    ------
    HorovodInternalError
        On every rank, when one of them lacks memory, or the ranks' devices do not reach each other.
    """
    release_shared()
    engine = session.engine()
    outcome = engine.wait(engine.allocate_shared(nbytes, device))
    assert outcome is not None
    buffer = outcome.buffers[0]
    _regions[outcome.number] = weakref.ref(buffer)
    return buffer


def release_shared() -> int:
    """Release the regions of ``shared_empty`` that no rank uses any more. Collective over all ranks.

    Returns
    -------
    int
        Number of released regions.

    Raises
    ------
    ValueError
        Before ``init``.
    HorovodInternalError
        A rank has failed.

    Examples
    --------
    >>> hvd.release_shared()  # no region exists
    0
    """
    global _generation  # noqa: PLW0603 - of the process, as the engine
    engine = session.engine()
    if _generation != session.generation():
        _generation = session.generation()
        _regions.clear()
        _sizes.clear()
    if not _regions:
        return 0
    dead = np.array([owner() is None for owner in _regions.values()], np.uint8)
    everywhere = ops.allreduce(dead, "shared.dead", ops.Min)
    released = [region for region, is_dead in zip(_regions, everywhere, strict=True) if is_dead]
    for region in released:
        engine.wait(engine.release_shared(region))
        del _regions[region]
        _sizes.pop(region, None)
    return len(released)


def shared_empty(shape: int | Sequence[int], dtype: npt.DTypeLike = np.float32) -> Array:
    """Return an array in memory that the ranks of a host reduce in place, without a copy. Collective over all ranks.

    Each rank gets a part of its own, which is freed when it has no references any more (see ``release_shared``).

    Parameters
    ----------
    shape
        Shape of the array, the same on every rank.
    dtype
        Type of its elements, float32 by default.

    Returns
    -------
    Array
        The array; its elements are uninitialised.

    Raises
    ------
    ValueError
        Before ``init``.
    HorovodInternalError
        On every rank, when one of them has no shared memory, or too little.

    Examples
    --------
    >>> gradients = hvd.shared_empty((2, 3))
    >>> gradients[:] = 1.0
    >>> hvd.allreduce(gradients, op=hvd.Max)
    array([[1., 1., 1.],
           [1., 1., 1.]], dtype=float32)
    """
    extents = (shape,) if isinstance(shape, int) else tuple(shape)
    memory = allocate(math.prod(extents) * np.dtype(dtype).itemsize)
    return np.frombuffer(memory, np.uint8).view(dtype).reshape(extents)
