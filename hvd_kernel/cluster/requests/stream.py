"""Connections to the ranks: ``Stream`` is the kernel's own, ``Clients`` are ipyparallel's ordinary ones for users.

ipyparallel's client stores the whole text of a cell and repeats it with every update (quadratic in the output); in a
``Stream`` each message is passed once, unchanged, to its sink. An ordinary client, which ``hvd_kernel.client()``
creates and the session closes, has its own connections and knows nothing of cells: see docs/ipyparallel.md. Its keys
come from the kernel's memory; no file contains them.

Terms.
  sink       receives the replies to one request on some ranks: reply, outputs, death
  uuid       the socket identity of a rank's engine; the rank is its engine id

Threads: everything below "I/O thread" runs on the client's own thread, the only one that uses the sockets.
"""

# ruff: noqa: SLF001 - ipyparallel has no public API to detect a client's subscription, and to fail its pending tasks

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any, Protocol

import ipyparallel as ipp

from hvd_kernel.errors import ClusterError
from hvd_kernel.protocol.messages import BROKEN_TYPE, REMEMBERED_MESSAGES, Failure

_SOONEST_S, _LATEST_S = 0.25, 64.0  # between two queries of the registered engines, with exponential backoff


class ReplySink(Protocol):
    """Receives the replies to one request, on the I/O thread."""

    def on_reply(self, rank: int, content: Mapping[str, Any], buffers: list[Any]) -> bool:
        """Handle the rank's reply; return True if the request is complete on this rank."""

    def on_output(self, rank: int, kind: str, content: Mapping[str, Any]) -> bool:
        """Handle a publication of the rank; return True if the request is complete on this rank."""

    def on_dead(self, rank: int, failure: Failure) -> None:
        """Handle the death of the rank: no reply will arrive."""


class Stream(ipp.Client):  # type: ignore[misc]
    """A client that sends requests to ranks and routes their replies to sinks."""

    def __init__(
        self,
        connection: dict[str, Any],
        on_lost: Callable[[int, int], None],
        on_registered: Callable[[int], None],
        on_broken: Callable[[], None],
    ) -> None:
        self.sinks: dict[str, tuple[int, ReplySink]] = {}
        self.uuids: dict[int, str] = {}
        self._gone: set[str] = set()  # uuids of engines that are no longer a rank; the hub may still list them
        self._forgotten: dict[int, Failure] = {}  # dead ranks, and the failure of requests to them
        self._on_lost = on_lost
        self._on_registered = on_registered
        self._on_broken = on_broken
        super().__init__(connection)
        self.session.digest_history_size = REMEMBERED_MESSAGES
        for rank, uuid in dict(self._engines).items():
            self._admit(rank, uuid)
        self.soon(self._query_again, _SOONEST_S)

    def activate(self, *_args: Any, **_kwargs: Any) -> None:
        """Do nothing: ipyparallel would install its magics (%px) in the notebook."""

    def request(
        self,
        ranks: Sequence[int],
        kind: str,
        content: dict[str, Any],
        sink: ReplySink,
        *,
        buffers: Sequence[Any] = (),
        urgent: bool = False,
    ) -> None:
        """Send a request to some ranks; they answer urgent ones while a cell runs. Any thread."""
        stream = self._control_stream if urgent else self._mux_stream

        def send() -> None:
            for rank in ranks:
                if rank in self._forgotten:  # it has died since the caller checked
                    sink.on_dead(rank, self._forgotten[rank])
                    continue
                if rank not in self.uuids:  # dead too: the caller is notified elsewhere
                    continue
                message = self.session.msg(kind, content=content)
                self.sinks[message["header"]["msg_id"]] = (rank, sink)
                # Through the stream: a send on its socket would swallow the event of a message that has just arrived.
                self.session.send(stream, message, ident=self.uuids[rank].encode(), buffers=list(buffers))

        self._io_loop.add_callback(send)

    def watch(self, rank: int, pid: int) -> None:
        """Report the exit of a rank on this host within milliseconds, by a pidfd."""
        descriptor = os.pidfd_open(pid)
        self._io_loop.add_callback(self._io_loop.add_handler, descriptor, self._on_exit(rank, pid), self._io_loop.READ)

    def listen(self, descriptor: int, handler: Callable[[], None]) -> None:
        """Call the handler, on the I/O thread, whenever the descriptor can be read."""
        self._io_loop.add_callback(
            self._io_loop.add_handler, descriptor, lambda _fd, _events: handler(), self._io_loop.READ
        )

    def unlisten(self, descriptor: int) -> None:
        """Undo ``listen``. I/O thread."""
        self._io_loop.remove_handler(descriptor)

    def later(self, seconds: float, function: Callable[..., None], *args: Any) -> None:
        """Call a function after ``seconds``. I/O thread."""
        self._io_loop.call_later(seconds, function, *args)

    def soon(self, function: Callable[..., None], *args: Any) -> None:
        """Call a function on the I/O thread. Any thread."""
        self._io_loop.add_callback(function, *args)

    def stop(self, descriptor: int) -> None:
        """Close every socket and stop the I/O thread; the descriptor passed to ``listen`` stays open."""
        self._io_loop.add_callback(self.unlisten, descriptor)
        self.close(linger=0)

    def forget(self, rank: int, failure: Failure) -> None:
        """Fail all current requests to this rank, and future ones until another process is the rank. I/O thread."""
        self._forgotten[rank] = failure
        for message_id, (other, sink) in list(self.sinks.items()):
            if other == rank:
                del self.sinks[message_id]
                sink.on_dead(rank, failure)

    def drop(self, rank: int, failure: Failure) -> None:
        """Like ``forget``, and ignore the rank's engine from now on, even if the hub still lists it. I/O thread."""
        if rank in self.uuids:
            self._gone.add(self.uuids.pop(rank))
        self.forget(rank, failure)

    def renumber(self, numbers: Mapping[int, int]) -> None:
        """Renumber surviving ranks (old -> new) and drop all others. I/O thread."""
        self._gone |= {uuid for rank, uuid in self.uuids.items() if rank not in numbers}
        self.uuids = {numbers[rank]: uuid for rank, uuid in self.uuids.items() if rank in numbers}
        self.sinks = {key: (numbers[rank], sink) for key, (rank, sink) in self.sinks.items() if rank in numbers}
        self._forgotten.clear()

    def notify_hub(self, kind: str, content: dict[str, Any]) -> None:
        """Send the controller a message without waiting for an answer. I/O thread."""
        self.session.send(self._query_stream, kind, content)

    # I/O thread from here on.

    def _on_exit(self, rank: int, pid: int) -> Callable[[int, int], None]:
        def handler(descriptor: int, _events: int) -> None:
            self._io_loop.remove_handler(descriptor)
            os.close(descriptor)
            self._on_lost(rank, pid)

        return handler

    def _admit(self, rank: int, uuid: str) -> None:
        self.uuids[int(rank)] = uuid
        self._forgotten.pop(int(rank), None)

    def _query_again(self, pause: float) -> None:
        """Query the hub again: engines that registered before we subscribed were never announced to us."""
        self.notify_hub("connection_request", {})
        if pause < _LATEST_S:
            self.later(2 * pause, self._query_again, 2 * pause)

    def _register_engine(self, msg: dict[str, Any]) -> None:
        rank, uuid = int(msg["content"]["id"]), msg["content"]["uuid"]
        ranks = {uuid: rank for rank, uuid in self.uuids.items()}
        is_stale = uuid in self._gone or self.uuids.get(rank, uuid) != uuid or ranks.get(uuid, rank) != rank
        if not is_stale:  # a stale message was sent before a respawn, or a resize
            self._admit(rank, uuid)
            self._on_registered(rank)

    def _unregister_engine(self, msg: dict[str, Any]) -> None:
        rank = int(msg["content"]["id"])
        if self.uuids.get(rank) == msg["content"]["uuid"]:  # else it has been replaced already
            self._on_lost(rank, 0)

    def _dispatch_iopub(self, msg_parts: list[Any]) -> None:
        message = self._unpack(msg_parts)
        if message["header"]["msg_type"] == BROKEN_TYPE:
            self._on_broken()
        self._route(message, lambda rank, sink: sink.on_output(rank, message["header"]["msg_type"], message["content"]))

    def _dispatch_reply(self, msg_parts: list[Any]) -> None:
        self._reply(self._unpack(msg_parts))

    def _dispatch_single_reply(self, msg_parts: list[Any]) -> None:
        message = self._unpack(msg_parts)
        if message["header"]["msg_type"] != "connection_reply":
            self._reply(message)
            return
        for rank, uuid in message["content"]["engines"].items():
            if int(rank) not in self.uuids:
                self._register_engine({"content": {"id": rank, "uuid": uuid}})

    def _reply(self, message: dict[str, Any]) -> None:
        self._route(message, lambda rank, sink: sink.on_reply(rank, message["content"], message["buffers"]))

    def _unpack(self, msg_parts: list[Any]) -> dict[str, Any]:
        _idents, frames = self.session.feed_identities(msg_parts, copy=False)
        message: dict[str, Any] = self.session.deserialize(frames, content=True, copy=False)
        return message

    def _route(self, message: dict[str, Any], deliver: Callable[[int, ReplySink], bool]) -> None:
        message_id = message["parent_header"].get("msg_id", "")
        if message_id in self.sinks and deliver(*self.sinks[message_id]):
            del self.sinks[message_id]


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
