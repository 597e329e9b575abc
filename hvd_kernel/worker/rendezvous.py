"""Rendezvous once ranks were replaced, came or left: MPI_COMM_WORLD holds the dead for ever, and not who is new.

The notebook asks rank 0 for an address (``offer``), then tells every rank the address, who the others are and a secret
(``join``), all over the encrypted channels. What a cell's own ``hvd.init()`` finds afterwards is the same address.
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
from hvd_kernel.processes.ports import ReservedPort
from hvd_kernel.worker import communication, devices
from hvd_kernel.worker.frontend import names as frontend

if TYPE_CHECKING:
    from hvd_kernel.worker.shell.control import Control

_LOOPBACK = "127.0.0.1"


class _Held:
    """What this rank holds for the latest rendezvous: rank 0 a port, each one handles of its peers."""

    def __init__(self) -> None:
        self.port = ReservedPort()
        self.host = ""  # where others reach this one, as its agent has been told; empty: nobody has said it
        self._pidfds: dict[int, int] = {}
        self._ranks: dict[int, int] = {}  # identity -> rank, in the latest communicator
        self.names: dict[str, int] = {}  # what cells find under the names that change with the ranks

    def before(self, ranks: Mapping[int, tuple[int, str, int]]) -> list[int]:
        """Return of each rank its number in the communicator in which this rank was last, -1: it was not there.

        ``ranks``: pid, host and identity of each. Who replaces a dead rank has its identity, and with it the number.
        """
        return [self._ranks.get(identity, -1) for _, (_, _, identity) in sorted(ranks.items())]

    def remember(self, ranks: dict[int, int]) -> None:
        """Take note of who is in the communicator that there is now: identity -> rank."""
        self._ranks = ranks

    def look_at(self, others: Mapping[int, int]) -> dict[int, int]:
        """Return handles of the others' processes, by rank, so that nobody waits for one that has ended.

        Raises
        ------
        RankDied
            One has ended already.
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


def rendezvous_at(host: str) -> None:
    """Offer this address from here on."""
    _held.host = host


def started(size: int) -> None:
    """Take note of the first communicator, where MPI has started all ranks: their identities are their numbers."""
    _held.remember({rank: rank for rank in range(size)})


def offer(_control: Control, content: Mapping[str, Any], _buffers: list[Any]) -> tuple[dict[str, Any], list[Any]]:
    """Offer an address for the rendezvous: on the loopback, or where other hosts reach it."""
    host = _held.host or (socket.gethostbyname(socket.gethostname()) if content["far"] else _LOOPBACK)
    return {"host": host, "port": _held.port.take(host)}, []


def leave(_control: Control, _content: Mapping[str, Any], _buffers: list[Any]) -> tuple[dict[str, Any], list[Any]]:
    """End as a process that is done: as SIGTERM ends it, with what atexit has to do, once this is answered."""
    asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGTERM)
    return {}, []


def join(control: Control, content: Mapping[str, Any], _buffers: list[Any]) -> tuple[dict[str, Any], list[Any]]:
    """Leave the old communicator and make one with the ranks that there are now; a fresh rank gets its names too."""
    here = socket.gethostname()
    ranks = {int(rank): who for rank, who in content["ranks"].items()}
    others = {rank: pid for rank, (pid, host, _) in ranks.items() if host == here}
    control.become(next(rank for rank, pid in others.items() if pid == os.getpid()))
    others.pop(control.rank)
    if not _held.names and session.is_initialized():
        _held.names = _numbers()
    size, host, port, secret = (content[word] for word in ("size", "host", "port", "secret"))
    session.set_rendezvous(session.Rendezvous(control.rank, size, host, port, secret, _held.look_at(others)))
    fresh = control.rank in content["fresh"]
    communication.reset_communicator(fresh=fresh, before=_held.before(ranks))
    _held.remember({identity: rank for rank, (_, _, identity) in ranks.items()})
    if fresh:
        control.names.update(frontend.ready(control.rank, size))
    _rename(control)
    return {"device": devices.described(control.names.get("device", "cpu"))}, []


def _rename(control: Control) -> None:
    """Give the cells' names the numbers that this rank has now."""
    before, _held.names = _held.names, _numbers()
    ours = [name for name, value in before.items() if control.names.get(name) == value]  # else it is the user's
    control.names.update({name: _held.names[name] for name in ours})


def alone(control: Control, _content: Mapping[str, Any], _buffers: list[Any]) -> tuple[dict[str, Any], list[Any]]:
    """Have a communicator of this rank alone, until ``together``; answer why not, "" if so."""
    _held.names = _held.names or _numbers()
    try:
        process_sets.reset_to_this_rank()
    except ValueError as error:
        return {"refused": str(error)}, []
    _rename(control)
    return {"refused": ""}, []


def together(control: Control, _content: Mapping[str, Any], _buffers: list[Any]) -> tuple[dict[str, Any], list[Any]]:
    """Make communication anew with all ranks that there are, whatever has become of it. All ranks do this together."""
    communication.reset_communicator()
    if _held.names:
        _rename(control)
    return {}, []
