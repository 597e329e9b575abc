"""ipyparallel's controller, adapted: one process, no file with a key, encrypted, loopback unless hosts are remote."""

from __future__ import annotations

import asyncio
import logging
import secrets
import threading
from collections.abc import Callable, Mapping
from typing import Any

import ipyparallel.controller.app as ipp_app
import zmq
from ipyparallel.controller.heartmonitor import _setup_heartmonitor
from traitlets.config import Config

from hvd_kernel.cluster import registration
from hvd_kernel.processes import ports
from hvd_kernel.protocol.messages import HALF_OPEN_MS, REMEMBERED_MESSAGES

Deliver = Callable[[dict[str, dict[str, Any]]], None]

HEARTBEAT_MS = 100  # a rank's registration completes with its first heartbeat; the default 3000 would delay the start
ALLOWED_REQUESTS = {"registration_request", "connection_request"}
"""Requests that ipyparallel's hub answers; it ignores all others, such as shutdown or unregistration."""

MISSES = 100  # a rank on another host counts as dead after 10 s of silence
LOOPBACK = "127.0.0.1"  # address of the controller of a cluster on this host only
NEVER = 1 << 40  # a pidfd reports a death on this host at once; a rank that is silent is stopped, not dead


class _HeartThread(threading.Thread):
    """Runs the heart monitor as a thread in place of a process, so that it ends with this process."""

    def __init__(self, target: Callable[..., None], kwargs: dict[str, Any], daemon: bool) -> None:
        super().__init__(target=target, kwargs=kwargs, daemon=daemon, name="hvd-heart")

    def terminate(self) -> None:
        """Do nothing: a daemon thread ends with its process."""


def _monitor_hearts(**how: Any) -> None:
    """Run ipyparallel's heart monitor in a context of ours: the default keeps half-open connections for 30 s."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    context.setsockopt(zmq.HANDSHAKE_IVL, HALF_OPEN_MS)
    loop = asyncio.new_event_loop()
    loop.run_until_complete(_setup_heartmonitor(ctx=context, **how))
    loop.run_forever()


class IPyparallelController(ipp_app.IPController):  # type: ignore[misc]
    """A controller that passes its connection information to a function instead of writing it to files."""

    deliver: Deliver
    stopped: Callable[[], None]

    def save_connection_dict(self, fname: str, cdict: dict[str, Any]) -> None:
        """Store the addresses and keys of engines or clients until every socket is bound."""
        side = "client" if fname == self.client_json_file else "engine"
        self.__dict__.setdefault("_connections", {})[side] = cdict

    def cleanup_connection_files(self) -> None:
        """Do nothing: no file was written."""

    def init_signal(self) -> None:
        """Deliver the connection information once the loop runs: all sockets are bound by then."""
        super().init_signal()
        self.loop.add_callback(self.deliver, self.__dict__["_connections"])

    def handle_signal(self, _signal: int, _frame: object) -> None:
        """Stop this process and all its children."""
        self.stopped()


def _allow_replacement(hub: Any) -> None:
    """Let a process that registers as a rank replace the previous one, whether or not a heartbeat was missed."""
    free_id = hub.new_engine_id

    def claim_id(rank: int | None) -> int:
        if rank in hub.engines or rank in {engine.id for engine in hub.incoming_registrations.values()}:
            hub.unregister_engine(None, {"content": {"id": rank}})
        claimed: int = free_id(rank)
        return claimed

    hub.new_engine_id = claim_id


def _refuse_strangers(hub: Any) -> None:
    """Ignore every registration except those of processes that were started as the claimed rank.

    Unregistration requests are ignored too: only the end of a process, or of its heartbeat, removes an engine.
    """
    register = hub.register_engine

    def register_expected(sender: Any, message: dict[str, Any]) -> None:
        rank = message["content"].get("id")
        if registration.admit(rank):
            register(sender, message)
        else:
            hub.log.error(
                "a connection claimed to be rank %r and was refused: no process was started as that rank", rank
            )

    hub.register_engine = hub.query_handlers["registration_request"] = register_expected
    hub.query_handlers = {kind: handler for kind, handler in hub.query_handlers.items() if kind in ALLOWED_REQUESTS}


def _accept_deaths(hub: Any, secret: str) -> None:
    """Treat the kernel's message that a rank has died like a missed heartbeat: the hub notifies ordinary clients.

    On this host heartbeats are never missed, because a rank that is stopped is not dead.
    """

    def lost(_client: Any, message: dict[str, Any]) -> None:
        content = message["content"]
        engine = hub.engines.get(content["id"])
        if (
            secrets.compare_digest(content[registration.SECRET], secret)
            and engine is not None
            and engine.uuid == content["uuid"]
        ):
            hub.unregister_engine(None, message)

    hub.query_handlers[registration.LOST] = lost


def _accept_renumbering(hub: Any, secret: str) -> None:
    """Apply the kernel's ranks of all engines after a resize; an engine that it does not list has left."""

    def renumber(_client: Any, message: dict[str, Any]) -> None:
        content = message["content"]
        if secrets.compare_digest(content[registration.SECRET], secret):
            hub.incoming_registrations.clear()
            _move(hub, content["ranks"])

    hub.query_handlers[registration.NUMBERS] = renumber


def _move(hub: Any, ranks: Mapping[str, int]) -> None:
    """Change the ids of engines. Clients see the old ids end, with their pending requests, and new ones register."""
    moved = {eid: engine for eid, engine in hub.engines.items() if ranks.get(engine.uuid) != eid}
    for eid, engine in moved.items():
        del hub.engines[eid]
        hub.ids.discard(eid)
        hub.by_ident.pop(engine.ident, None)
        hub.hearts.pop(engine.ident, None)
        _notify(hub, "unregistration_notification", eid, engine.uuid)
    for engine in moved.values():
        if engine.uuid in ranks:
            engine.id = eid = ranks[engine.uuid]
            hub.ids.add(eid)
            hub.engines[eid] = engine
            hub.by_ident[engine.ident] = hub.hearts[engine.ident] = eid
            hub.queues[eid], hub.tasks[eid], hub.completed[eid] = [], [], []
            _notify(hub, "registration_notification", eid, engine.uuid)
        else:
            hub.expect_stopped_hearts.append(engine.ident)


def _notify(hub: Any, kind: str, eid: int, uuid: str) -> None:
    hub.session.send(hub.notifier, kind, content={"id": eid, "uuid": uuid})


def misses(address: str) -> int:
    """Return the number of missed heartbeats after which a rank is dead, for a controller at this address."""
    return NEVER if address == LOOPBACK else MISSES


def serve(deliver: Deliver, stopped: Callable[[], None], address: str, key: str) -> None:
    """Run the controller in this thread, the main one, forever; ``key`` authenticates its messages."""
    ipp_app.Process = _HeartThread
    ipp_app.start_heartmonitor = _monitor_hearts
    ipp_app.util.select_random_ports = ports.reserve
    zmq.Context.instance().setsockopt(zmq.HANDSHAKE_IVL, HALF_OPEN_MS)  # for every socket created from here on
    config = Config()
    config.IPController.engine_ip = address
    config.IPController.use_threads = True
    config.IPController.enable_curve = True
    config.Session.key = key.encode()  # Curve encrypts and the key authenticates: ipyparallel would omit the key
    config.Session.digest_history_size = REMEMBERED_MESSAGES
    config.IPController.db_class = "ipyparallel.controller.dictdb.NoDB"  # the default stores all requests
    config.IPController.log_level = logging.ERROR
    config.HeartMonitor.period = HEARTBEAT_MS
    config.HeartMonitor.max_heartmonitor_misses = misses(address)
    controller = IPyparallelController.instance(config=config)
    secret = secrets.token_hex(32)
    controller.deliver = lambda sides: deliver({**sides, "client": {**sides["client"], registration.SECRET: secret}})
    controller.stopped = stopped
    controller.initialize([])
    _allow_replacement(controller.hub)
    _refuse_strangers(controller.hub)
    _accept_deaths(controller.hub, secret)
    _accept_renumbering(controller.hub, secret)
    controller.start()
