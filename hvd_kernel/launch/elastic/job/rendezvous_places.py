"""Rendezvous of each generation of an elastic job: at which address its ranks meet, and with which secret."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import msgspec

from hvd_kernel.launch.elastic.events import Action, SendTo
from hvd_kernel.launch.elastic.job.workers import Workers
from hvd_kernel.launch.environment import rendezvous
from hvd_kernel.protocol.elastic import Place


class RendezvousPlaces:
    """Fills places with what the driver does not know. ``interface``: the user's choice."""

    def __init__(self, interface: str) -> None:
        self._interface = interface
        self._generation = 0
        self._address, self._secret = "", ""

    def expect(self, actions: Sequence[Action], workers: Workers) -> None:
        """Look at what is to be done next: the places of a new generation come together."""
        places = [
            (action.message, workers[action.worker].host)
            for action in actions
            if isinstance(action, SendTo) and isinstance(action.message, Place)
        ]
        if not places or places[0][0].generation == self._generation:
            return
        places.sort(key=lambda place: place[0].rank)
        hosts = list(dict.fromkeys(host for _, host in places))
        self._generation = places[0][0].generation
        self._secret = secrets.token_hex(32)
        self._address, _ = rendezvous(
            [host.card for host in hosts], [host.handle.remote for host in hosts], self._interface
        )

    def filled(self, place: Place) -> Place:
        """Return a place with its address and secret."""
        return msgspec.structs.replace(place, address=self._address, secret=self._secret)
