"""torchrun's variables on ranks: each ``init`` sets those that neither the user nor the launcher has set.

Rank 0 reserves a port, which its card brings to the other ranks at the rendezvous.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from hvd_kernel.frameworks import torch_backend
from hvd_kernel.processes.ports import ReservedPort
from hvd_kernel.settings import network, torchrun

_LOOPBACK = "127.0.0.1"
_ENTRY = "torch"


class _State:
    """The port that this rank offers while it is rank 0, and the variables that this process has set."""

    def __init__(self) -> None:
        self.port = ReservedPort()
        self.variables: dict[str, str] = {}


_state = _State()


def card(rank: int) -> dict[str, Any]:
    """Return the entry of this rank's card: on rank 0 a reserved port."""
    if rank == 0:
        return {_ENTRY: _state.port.take()}
    _state.port.release()
    return {}


def adopt(numbers: tuple[int, int, int, int], cards: Sequence[network.Card], rendezvous: str) -> None:
    """Set the variables, and offer torch the backend, unless this process is to keep torch's defaults.

    Parameters
    ----------
    numbers
        Rank, size, local rank and local size.
    cards
        Cards of all ranks.
    rendezvous
        Address of rank 0 at which the ranks have met; "" if MPI or Slurm has connected them.
    """
    if not torch_backend.is_offered():
        return
    values = torchrun.variables(numbers, _host(cards, rendezvous), cards[0][_ENTRY])
    before, env = _state.variables, os.environ
    _state.variables = {name: value for name, value in values.items() if env.get(name) == before.get(name)}
    env.update(_state.variables)
    torch_backend.offer()


def _host(cards: Sequence[network.Card], rendezvous: str) -> str:
    """Return the address at which all ranks reach rank 0."""
    first = cards[0]
    if all(card["machine"] == first["machine"] for card in cards):
        return _LOOPBACK
    return str(rendezvous or network.reached(first, cards) or first["name"])
