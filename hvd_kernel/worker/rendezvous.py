"""Rendezvous after ranks were replaced, added or removed, which MPI_COMM_WORLD cannot represent.

The notebook requests an address from rank 0 (``offer``), then sends every rank that address, all ranks and a secret
(``join``), over the encrypted channels. ``hvd.init()`` in a cell uses the same address afterwards.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hvd_kernel.core import process_sets, session
from hvd_kernel.errors import RankDied
from hvd_kernel.frameworks import torch_connections
from hvd_kernel.processes.ports import ReservedPort
from hvd_kernel.worker import communication, devices
from hvd_kernel.worker import names as frontend

if TYPE_CHECKING:
    from hvd_kernel.worker.shell.control import Control

_LOOPBACK = "127.0.0.1"


class _Held:
    """State of the latest rendezvous: a reserved port on rank 0, and process handles of the peers."""

    def __init__(self) -> None:
        self.port = ReservedPort()
        self.host = ""  # address at which other hosts reach this one, set by its agent; may be empty
        self._pidfds: dict[int, int] = {}
        self._ranks: dict[int, int] = {}  # identity -> rank, in the latest communicator
        self.names: dict[str, int] = {}  # values of the cells' names that change with the ranks

    def before(self, ranks: Mapping[int, tuple[int, str, int]]) -> list[int]:
        """Return for each rank its number in the last communicator of this rank, -1 if it was not in it.

        ``ranks``: pid, host and identity of each. The replacement of a dead rank has its identity, hence its number.
        """
        return [self._ranks.get(identity, -1) for _, (_, _, identity) in sorted(ranks.items())]

    def remember(self, ranks: dict[int, int]) -> None:
        """Record the ranks of the current communicator: identity -> rank."""
        self._ranks = ranks

    def open_peers(self, others: Mapping[int, int]) -> dict[int, int]:
        """Return process handles of other ranks, by rank, so that this rank does not wait for an ended one.

        Raises
        ------
        RankDied
            A rank has ended already.
        """
        while self._pidfds:
            os.close(self._pidfds.popitem()[1])
        for rank, pid in others.items():
            try:
                self._pidfds[rank] = os.pidfd_open(pid)
            except ProcessLookupError:
                raise RankDied(f"rank {rank} exited before the ranks could rendezvous again", rank) from None
        return dict(self._pidfds)


_held = _Held()


def _numbers() -> dict[str, int]:
    return {"rank": session.rank(), "size": session.size(), "local_rank": session.local_rank()}


def set_host(host: str) -> None:
    """Set the address of this host that ``offer`` returns."""
    _held.host = host


def started(size: int) -> None:
    """Record the first communicator, of ranks started by MPI: their identities are their numbers."""
    _held.remember({rank: rank for rank in range(size)})


def offer(_control: Control, content: Mapping[str, Any], _buffers: list[Any]) -> tuple[dict[str, Any], list[Any]]:
    """Return an address for the rendezvous: on the loopback, or reachable by other hosts."""
    host = _held.host or (socket.gethostbyname(socket.gethostname()) if content["far"] else _LOOPBACK)
    return {"host": host, "port": _held.port.take(host)}, []


def leave(_control: Control, _content: Mapping[str, Any], _buffers: list[Any]) -> tuple[dict[str, Any], list[Any]]:
    """Exit after this reply, as by SIGTERM, with the functions of atexit."""
    asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGTERM)
    return {}, []


def join(control: Control, content: Mapping[str, Any], _buffers: list[Any]) -> tuple[dict[str, Any], list[Any]]:
    """Leave the old communicator and create one with the current ranks; a new rank also gets its names."""
    here = socket.gethostname()
    ranks = {int(rank): process for rank, process in content["ranks"].items()}
    others = {rank: pid for rank, (pid, host, _) in ranks.items() if host == here}
    control.become(next(rank for rank, pid in others.items() if pid == os.getpid()))
    others.pop(control.rank)
    if not _held.names and session.is_initialized():
        _held.names = _numbers()
    size, host, port, secret = (content[key] for key in ("size", "host", "port", "secret"))
    session.set_rendezvous(session.Rendezvous(control.rank, size, host, port, secret, _held.open_peers(others)))
    fresh = control.rank in content["fresh"]
    before = _held.before(ranks)
    communication.reset_communicator(fresh=fresh, before=before)
    if content["fresh"] or before != list(range(size)):
        torch_connections.discard_groups()  # of other ranks
    _held.remember({identity: rank for rank, (_, _, identity) in ranks.items()})
    if fresh:
        control.names.update(frontend.ready(control.rank, size))
    _rename(control)
    return {"device": devices.described(control.names.get("device", "cpu"))}, []


def _rename(control: Control) -> None:
    """Set the cells' names to the current numbers of this rank."""
    before, _held.names = _held.names, _numbers()
    unchanged = [name for name, value in before.items() if control.names.get(name) == value]  # not assigned by the user
    control.names.update({name: _held.names[name] for name in unchanged})


def alone(control: Control, _content: Mapping[str, Any], _buffers: list[Any]) -> tuple[dict[str, Any], list[Any]]:
    """Reset to a communicator of this rank alone, until ``together``; answer the reason for a refusal, or ""."""
    _held.names = _held.names or _numbers()
    try:
        process_sets.reset_to_this_rank()
    except ValueError as error:
        return {"refused": str(error)}, []
    _rename(control)
    return {"refused": ""}, []


def together(control: Control, _content: Mapping[str, Any], _buffers: list[Any]) -> tuple[dict[str, Any], list[Any]]:
    """Reset communication with all current ranks, in any state. All ranks do this together."""
    communication.reset_communicator()
    if _held.names:
        _rename(control)
    return {}, []
