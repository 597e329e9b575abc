"""By which address a host is reached: never one that another host has too, as Docker's bridge gives to all of them."""

from __future__ import annotations

import json
import socket
from ipaddress import IPv4Interface

import pytest

from hvd_kernel.core import topology
from hvd_kernel.core.topology import Peers
from hvd_kernel.settings import network as routes

LO, DOCKER = {"lo": "127.0.0.1/8"}, {"docker0": "172.17.0.1/16"}


def card(machine: str, **networks: str) -> dict[str, object]:
    return {"machine": machine, "networks": LO | DOCKER | networks}


ONE, TWO = card("m", eth0="10.0.0.1/24", ib0="10.1.0.1/16"), card("n", eth0="10.0.0.2/24", ib0="10.1.9.2/16")


@pytest.mark.parametrize(
    ("own", "others", "address", "network"),
    [
        (ONE, [], "", None),
        (ONE, [ONE], "", None),
        (ONE, [TWO], "10.0.0.1", "10.0.0.0/24"),
        (TWO, [ONE, TWO], "10.0.0.2", "10.0.0.0/24"),
        (ONE, [TWO, card("o", ib0="10.1.9.3/16")], "10.1.0.1", "10.1.0.0/16"),  # the one in which all three are
        (ONE, [card("o", eth0="10.9.0.3/24")], "10.0.0.1", None),  # routers may know the way
        (card("m"), [TWO], "", None),  # nothing but what the other has too
        (card("m", eth0="10.0.0.2/24"), [TWO], "", None),
    ],
)
def test_address_that_other_hosts_reach(own: dict, others: list[dict], address: str, network: str | None) -> None:
    assert routes.reached(own, [own, *others]) == address
    found = routes.common(own, [own, *others])
    assert (found and str(found.network)) == network


def test_this_host() -> None:
    networks = routes.networks()
    assert networks["lo"] == "127.0.0.1/8"
    assert routes.addresses() == {name: str(IPv4Interface(network).ip) for name, network in networks.items()}
    assert set(networks) <= {name for _, name in socket.if_nameindex()}


def test_ranks_exchange_their_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "machine", lambda: "m")
    monkeypatch.setattr(routes, "networks", lambda: ONE["networks"])
    peers = Peers(0, 2, "test", lambda mine: [mine, json.dumps(TWO).encode()])
    assert topology.exchange_cards(peers) == [ONE | {"name": socket.gethostname()}, TWO]
