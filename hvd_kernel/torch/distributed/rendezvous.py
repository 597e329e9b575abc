"""Meetings of ranks on the core before they use a store of torch, in which a failed rank does not release others."""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np
import torch.distributed

from hvd_kernel.core import handles, ops, session
from hvd_kernel.core.tensor import number_of
from hvd_kernel.errors import HorovodInternalError

_NAME = "hvd.torch_store"
_NEW_GROUP = "torch.new_group"  # as the panel shows it
_DEFAULT = timedelta(minutes=30)  # torch's

NO_STORE = (
    "Rank 0 could not create the store of torch.distributed at {host}: {error}. Set MASTER_ADDR and MASTER_PORT on all "
    "ranks to an address of rank 0's host, or pass a store to init_process_group."
)


def meet(ranks: Sequence[int] = ()) -> None:
    """Block until these ranks, or all if there are none, create a group. This rank is one of them.

    All ranks meet in a barrier; some of them by messages between the first and each other rank.

    Raises
    ------
    HorovodInternalError
        A rank has failed, or calls another collective instead.
    """
    if not ranks:
        handles.enter_barrier(_NEW_GROUP)
        return
    first, *others = sorted(ranks)
    tag = -1 - zlib.crc32(repr((first, *others)).encode())  # torch's are not negative
    byte = np.zeros(1, np.uint8)
    place = (byte.ctypes.data, byte.ctypes.data, byte.shape, number_of(byte.dtype))
    is_first = session.rank() == first
    steps = (handles.recv_places, handles.send_places)  # of the first rank
    for step in steps if is_first else reversed(steps):
        for partner in others if is_first else [first]:
            memory = partial(_nothing, byte)
            handles.synchronize(step([place], partner, tag, memory, waits=True))


def _nothing(_memory: Any, _outcome: Any) -> None:
    """Keep memory alive until the core has used it."""


def agreed_store(url: str, timeout: timedelta = _DEFAULT, **_options: Any) -> tuple[Any, int, int] | None:
    """Return a store with rank and size, as a handler of ``env://`` yields them. All ranks call this together.

    None, if the caller numbers the ranks otherwise than ``hvd.init()``.

    Raises
    ------
    HorovodInternalError
        On every rank: rank 0 could not create the store.
    """
    rank, size = session.rank(), session.size()
    if (_number(url, "rank", "RANK"), _number(url, "world_size", "WORLD_SIZE")) != (rank, size):
        return None
    host = os.environ["MASTER_ADDR"]
    distributed: Any = torch.distributed  # its stubs hide the store
    store, error = None, ""
    if rank == 0:
        try:
            store = distributed.TCPStore(host, 0, size, is_master=True, timeout=timeout, wait_for_workers=False)
        except (OSError, RuntimeError) as failure:
            error = str(failure)
    port, error = ops.broadcast_object((0 if store is None else store.port, error), name=_NAME)
    if error:
        raise HorovodInternalError(NO_STORE.format(host=host, error=error))
    if store is None:
        store = distributed.TCPStore(host, port, size, is_master=False, timeout=timeout)
    return store, rank, size


def _number(url: str, key: str, variable: str) -> int:
    """Return a number of the URL's query, else of a variable; -1 without one."""
    values = parse_qs(urlsplit(url).query).get(key)
    text = values[0] if values else os.environ.get(variable, "")
    return int(text) if text.isdecimal() else -1
