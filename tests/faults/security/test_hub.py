"""Requests of a client with the ranks' keys to the controller, and how long a stranger may keep a port busy.

Rows S5, S13, I4. Every test prints what it tried.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import zmq
from hvdtest.place import Place
from hvdtest.surface import ask, listeners
from jupyter_client.session import Session as Wire

from hvd_kernel.cluster.controller import ALLOWED_REQUESTS

pytestmark = [pytest.mark.jupyter, pytest.mark.mp, pytest.mark.timeout(240)]

HANDLED = {  # by ipyparallel's hub
    *("queue_request", "result_request", "history_request", "db_request", "purge_request", "load_request"),
    *("resubmit_request", "shutdown_request", "registration_request", "unregistration_request", "connection_request"),
    *("become_dask_request", "stop_distributed_request"),
}


def test_s13_client_with_the_keys_cannot_unregister_ranks(place: Place) -> None:
    before = place.run("%hvd status").text()
    for kind in sorted(HANDLED - ALLOWED_REQUESTS):
        answer = request(place, kind, {"id": 1, "targets": [0, 1], "restart": False, "msg_ids": "all"})
        print(kind, answer["header"]["msg_type"], answer["content"].get("evalue"))
        assert answer["header"]["msg_type"] == "hub_error"
        assert answer["content"]["evalue"] == repr(f"Bad Message Type: {kind!r}")
        assert place.run("%%hvdrun\nimport torch\nhvd.allreduce(torch.ones(1), op=hvd.Sum).item()").shown == [
            "[0-1] 2.0"
        ]
    assert place.run("%hvd status").text() == before


def request(place: Place, kind: str, content: dict[str, Any]) -> dict[str, Any]:
    """Ask the hub, signed and encrypted as a rank would, and return the answer."""
    wire = Wire(key=place.client["key"].encode())
    with zmq.Context() as context, context.socket(zmq.DEALER) as asking:
        asking.linger = 0
        asking.curve_serverkey = place.client["curve_serverkey"].encode()
        asking.curve_publickey, asking.curve_secretkey = zmq.curve_keypair()
        asking.connect(place.client["registration"])
        wire.send(asking, kind, content)
        assert asking.poll(60_000), f"no answer to {kind}"
        _, frames = wire.feed_identities(asking.recv_multipart())
        return dict(wire.deserialize(frames))


def test_i4_s5_ports_close_keyless_connections_in_time(place: Place) -> None:
    where = [each for each in listeners(place.family()) if each.room == "supervisor"]
    answers = ask(where, b"\xff", seconds=20)
    print(Counter(answer.closed for answer in answers))
    assert [answer.listener for answer in answers if not answer.closed] == []
