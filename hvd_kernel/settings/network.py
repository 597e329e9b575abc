"""IPv4 addresses of this host, and the one at which all other hosts reach it.

Terms.
  network  an interface's address with its network, as in "10.0.0.7/24"
  card     description of a process's host: {"machine": ..., "networks": {interface: network}}; an agent's hello is one

Hosts compare their cards because the first interface of a host may exist on other hosts too, with the same address
(docker0, virbr0). A connection to that address reaches the caller's own host, or hangs.
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
    of_interfaces: dict[str, str] = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for _, name in socket.if_nameindex():
            try:
                address, mask = (_query(control, name, request) for request in (_SIOCGIFADDR, _SIOCGIFNETMASK))
            except OSError:
                continue  # no IPv4 address
            of_interfaces[name] = IPv4Interface(f"{address}/{mask}").with_prefixlen
    return of_interfaces


def addresses(card: Card | None = None) -> dict[str, str]:
    """Return the IPv4 address of each interface that has one, on this host or on a card's host."""
    of_interfaces = networks() if card is None else card["networks"]
    return {name: network.partition("/")[0] for name, network in of_interfaces.items()}


def machine() -> str:
    """Return an identifier of this host or container, distinct also on the same hardware (the core uses the same)."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return f"{boot.read_text().strip() if boot.exists() else socket.gethostname()}/{_network_space()}"


def common(card: Card, cards: Sequence[Card]) -> IPv4Interface | None:
    """Return the first network in which this and every other machine have distinct addresses, if any."""
    others = _others(card, cards)
    return next((net for net in _distinct(card, others) if all(_lies_in(other, net) for other in others)), None)


def reached(card: Card, cards: Sequence[Card]) -> str:
    """Return the address at which other machines reach this one: in a common network, else one that may be routed.

    Returns "" if there is no other machine, or if others have all addresses of this one.
    """
    network = common(card, cards) or next(iter(_distinct(card, _others(card, cards))), None)
    return "" if network is None else str(network.ip)


def _query(control: socket.socket, name: str, request: int) -> IPv4Address:
    answer = fcntl.ioctl(control, request, struct.pack(f"{_IFNAMSIZ}s24x", name.encode()[: _IFNAMSIZ - 1]))
    return IPv4Address(answer[20:24])


def _network_space() -> str:
    try:
        return str(Path("/proc/self/ns/net").readlink())
    except OSError:
        return ""


def _others(card: Card, cards: Sequence[Card]) -> list[Card]:
    return [other for other in cards if other["machine"] != card["machine"]]


def _distinct(card: Card, others: Sequence[Card]) -> list[IPv4Interface]:
    """Return the networks in which no other machine has this one's address."""
    return [network for network in _outward(card) if others and all(network.ip not in _addresses(o) for o in others)]


def _outward(card: Card) -> list[IPv4Interface]:
    return [network for text in card["networks"].values() if not (network := IPv4Interface(text)).is_loopback]


def _addresses(card: Card) -> set[IPv4Address]:
    return {network.ip for network in _outward(card)}


def _lies_in(card: Card, network: IPv4Interface) -> bool:
    return any(address in network.network for address in _addresses(card))
