"""torchrun's variables on ranks that are numbered again while they run: a new address for each generation.

Rank 0 reserves a port, and all ranks learn it by one sum: rank 0 adds its address, the others zeros.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence

import numpy as np

from hvd_kernel.core import ops, session
from hvd_kernel.processes.ports import ReservedPort
from hvd_kernel.settings import torchrun

_LOOPBACK = "127.0.0.1"
_NAME = "hvd.torch_address"


class _Reserved:
    """The port that this rank offers while it is rank 0, and its host's address for other hosts if that is known."""

    def __init__(self) -> None:
        self.port = ReservedPort()
        self.host = ""


_reserved = _Reserved()


def set_host(host: str) -> None:
    """Set the address at which other hosts reach this one; "" if only the host's name is known."""
    _reserved.host = host


def offered() -> list[int]:
    """Return this rank's part of the sum: on rank 0 its address and a free port, else zeros.

    Zeros also if the host has no IPv4 address: the ranks then get no variables.
    """
    if session.rank() != 0:
        _reserved.port.release()
        return [0, 0]
    try:
        address = int.from_bytes(socket.inet_aton(_host()), "big")
    except OSError:
        return [0, 0]
    return [address, _reserved.port.take()]


def _host() -> str:
    if session.local_size() == session.size():
        return _LOOPBACK
    return socket.gethostbyname(_reserved.host or socket.gethostname())


def adopt(total: Sequence[int]) -> None:
    """Set the variables to this rank's numbers and the address in the sum; ranks of torchrun keep theirs."""
    address, port = map(int, total)
    if not port or torchrun.is_launched(os.environ) or not torchrun.is_enabled(os.environ):
        return
    numbers = session.rank(), session.size(), session.local_rank(), session.local_size()
    os.environ.update(torchrun.variables(numbers, socket.inet_ntoa(address.to_bytes(4, "big")), port))


def update() -> None:
    """Set the variables for the current ranks. All ranks call this together."""
    adopt(ops.allreduce(np.array(offered()), name=_NAME, op=ops.Sum).tolist())
