"""ipyparallel's ordinary clients of a cluster: ``hvd_kernel.client()`` makes them, the session ends them with itself.

A client has connections of its own beside the session's and knows nothing of cells: see docs/ipyparallel.md. The keys
come from the kernel's memory; no file has them.
"""
# ruff: noqa: SLF001 - ipyparallel offers no other way to hear what a client hears, and to end what it waits for

from __future__ import annotations

import threading
import time
import weakref
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any

import ipyparallel as ipp

from hvd_kernel.errors import ClusterError
from hvd_kernel.protocol.messages import REMEMBERED_MESSAGES

_HEARD_S = 10.0
_TRY_S = 0.1
_ENDED_S = 5.0
_STOPPED = "the cluster was stopped"


class Clients:
    """The clients that are open."""

    def __init__(self, connection: dict[str, Any]) -> None:
        self._connection = connection
        self._open: weakref.WeakSet[Any] = weakref.WeakSet()

    def open(self) -> Any:
        """Return a client that hears the ranks.

        Raises
        ------
        ClusterError
            No rank was heard.
        """
        client = ipp.Client(self._connection)
        client.session.digest_history_size = REMEMBERED_MESSAGES
        self._open.add(client)
        _await_output(client)
        return client

    def end(self) -> None:
        """Close them; what they wait for ends with an error."""
        for client in [each for each in self._open if not each._closed]:
            ended = threading.Event()
            client._io_loop.add_callback(_strand, client, ended)
            ended.wait(_ENDED_S)
            client.close(linger=0)


def _await_output(client: Any) -> None:
    """Wait until the client hears what ranks publish: ZeroMQ drops what is said before a subscription has arrived."""
    deadline = time.monotonic() + _HEARD_S
    while time.monotonic() < deadline:
        heard = dict(_hello(client, client._engines[rank]) for rank in client.ids)
        answered = wait(heard.values(), _TRY_S, FIRST_COMPLETED).done
        for message_id in heard:
            client.metadata.pop(message_id, None)
            client._output_futures.pop(message_id, None)
        if answered:
            return
    client.close(linger=0)
    raise ClusterError(f"no rank answered within {_HEARD_S:g} s: `%hvd status` says which live")


def _hello(client: Any, uuid: str) -> tuple[str, Future[None]]:
    """Have a rank publish that it is busy and idle, also while a cell runs."""
    heard: Future[None] = Future()
    message = client.session.msg("hvd_request", content={"handler": "hello", "channel": "control"})
    message_id = message["header"]["msg_id"]
    client.metadata[message_id] = ipp.client.client.Metadata()
    client._output_futures[message_id] = heard
    client._io_loop.add_callback(client.session.send, client._control_stream, message, ident=uuid.encode())
    return message_id, heard


def _strand(client: Any, ended: threading.Event) -> None:
    """Give every outstanding task an error, as ipyparallel does where an engine dies. The client's own thread."""
    content = {"status": "error", "ename": "EngineError", "evalue": _STOPPED, "traceback": [], "engine_info": {}}
    try:
        for message_id in list(client.outstanding):
            reply = client.session.msg("apply_reply", content=content)
            reply["parent_header"]["msg_id"] = message_id
            client._handle_apply_reply(reply)
    finally:
        ended.set()
