"""ipyparallel's ordinary clients of a cluster: ``hvd_kernel.client()`` creates them, and the session closes them.

A client has its own connections and knows nothing of cells: see docs/ipyparallel.md. Its keys come from the kernel's
memory; no file contains them.
"""
# ruff: noqa: SLF001 - ipyparallel has no public API to detect a client's subscription, and to fail its pending tasks

from __future__ import annotations

import threading
import time
import weakref
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any

import ipyparallel as ipp

from hvd_kernel.errors import ClusterError
from hvd_kernel.protocol.messages import REMEMBERED_MESSAGES

_SUBSCRIBED_S = 10.0
_TRY_S = 0.1
_ENDED_S = 5.0
_STOPPED = "the cluster was stopped"


class Clients:
    """The open clients of a cluster."""

    def __init__(self, connection: dict[str, Any]) -> None:
        self._connection = connection
        self._open: weakref.WeakSet[Any] = weakref.WeakSet()

    def open(self) -> Any:
        """Return a client that receives the ranks' publications.

        Raises
        ------
        ClusterError
            If no rank answers.
        """
        client = ipp.Client(self._connection)
        client.session.digest_history_size = REMEMBERED_MESSAGES
        self._open.add(client)
        _await_output(client)
        return client

    def end(self) -> None:
        """Fail the pending tasks of all clients, and close them."""
        for client in [client for client in self._open if not client._closed]:
            ended = threading.Event()
            client._io_loop.add_callback(_fail_pending, client, ended)
            ended.wait(_ENDED_S)
            client.close(linger=0)


def _await_output(client: Any) -> None:
    """Wait until the client receives publications: ZeroMQ drops messages sent before a subscription is established."""
    deadline = time.monotonic() + _SUBSCRIBED_S
    while time.monotonic() < deadline:
        outputs = dict(_hello(client, client._engines[rank]) for rank in client.ids)
        answered = wait(outputs.values(), _TRY_S, FIRST_COMPLETED).done
        for message_id in outputs:
            client.metadata.pop(message_id, None)
            client._output_futures.pop(message_id, None)
        if answered:
            return
    client.close(linger=0)
    raise ClusterError(f"no rank answered within {_SUBSCRIBED_S:g} s: `%hvd status` shows which ranks live")


def _hello(client: Any, uuid: str) -> tuple[str, Future[None]]:
    """Send a hello, at which a rank publishes its status, also while a cell runs; return its id and its output."""
    output: Future[None] = Future()
    message = client.session.msg("hvd_request", content={"handler": "hello", "channel": "control"})
    message_id = message["header"]["msg_id"]
    client.metadata[message_id] = ipp.client.client.Metadata()
    client._output_futures[message_id] = output
    client._io_loop.add_callback(client.session.send, client._control_stream, message, ident=uuid.encode())
    return message_id, output


def _fail_pending(client: Any, ended: threading.Event) -> None:
    """Fail every pending task, as ipyparallel does when an engine dies. The client's own thread."""
    content = {"status": "error", "ename": "EngineError", "evalue": _STOPPED, "traceback": [], "engine_info": {}}
    try:
        for message_id in list(client.outstanding):
            reply = client.session.msg("apply_reply", content=content)
            reply["parent_header"]["msg_id"] = message_id
            client._handle_apply_reply(reply)
    finally:
        ended.set()
