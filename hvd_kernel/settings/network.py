"""The IPv4 addresses of this host, and the one by which all other hosts reach it. A shared leaf.

Terms.
  network  an interface's address with the network it lies in, as in "10.0.0.7/24"
  card     what a process tells of its host: {"machine": ..., "networks": {interface: network}}; an agent's hello is one

Why hosts compare their cards: the first interface of a host may be one that others have too, with the same address
(docker0, virbr0). Who calls there reaches himself, or nobody, and waits.
"""

from __future__ import annotations

import fcntl
import socket
import struct
from collections.abc import Mapping, Sequence
from ipaddress import IPv4Address, IPv4Interface
from pathlib import Path
from typing import Any

Card = Mapping[str, Any]

_SIOCGIFADDR, _SIOCGIFNETMASK = 0x8915, 0x891B
_IFNAMSIZ = 16


def networks() -> dict[str, str]:
    """Return the network of each interface that has an IPv4 address."""
    found: dict[str, str] = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
        for _, name in socket.if_nameindex():
            try:
                address, mask = (_asked(asker, name, what) for what in (_SIOCGIFADDR, _SIOCGIFNETMASK))
            except OSError:
                continue  # no IPv4 address
            found[name] = IPv4Interface(f"{address}/{mask}").with_prefixlen
    return found


def addresses(card: Card | None = None) -> dict[str, str]:
    """Return the IPv4 address of each interface that has one, on this host or on a card's."""
    found = networks() if card is None else card["networks"]
    return {name: network.partition("/")[0] for name, network in found.items()}


def machine() -> str:
    """Return what tells this host from others, also from a container on the same hardware (the core does the same)."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return f"{boot.read_text().strip() if boot.exists() else socket.gethostname()}/{_network_space()}"


def common(card: Card, cards: Sequence[Card]) -> IPv4Interface | None:
    """Return the first network in which this and every other machine have an address of their own, if there is one."""
    others = _others(card, cards)
    return next((net for net in _own(card, others) if all(_lies_in(other, net) for other in others)), None)


def reached(card: Card, cards: Sequence[Card]) -> str:
    """Return the address at which other machines reach this one: in a common network, else one that routers may know.

    Empty: there is no other machine, or they have all of this one's addresses too.
    """
    found = common(card, cards) or next(iter(_own(card, _others(card, cards))), None)
    return "" if found is None else str(found.ip)


def _asked(asker: socket.socket, name: str, what: int) -> IPv4Address:
    answer = fcntl.ioctl(asker, what, struct.pack(f"{_IFNAMSIZ}s24x", name.encode()[: _IFNAMSIZ - 1]))
    return IPv4Address(answer[20:24])


def _network_space() -> str:
    try:
        return str(Path("/proc/self/ns/net").readlink())
    except OSError:
        return ""


def _others(card: Card, cards: Sequence[Card]) -> list[Card]:
    return [other for other in cards if other["machine"] != card["machine"]]


def _own(card: Card, others: Sequence[Card]) -> list[IPv4Interface]:
    """Return the networks where no other machine has this one's address."""
    return [network for network in _outward(card) if others and all(network.ip not in _addresses(o) for o in others)]


def _outward(card: Card) -> list[IPv4Interface]:
    return [network for text in card["networks"].values() if not (network := IPv4Interface(text)).is_loopback]


def _addresses(card: Card) -> set[IPv4Address]:
    return {network.ip for network in _outward(card)}


def _lies_in(card: Card, network: IPv4Interface) -> bool:
    return any(address in network.network for address in _addresses(card))
