"""ipyparallel's controller as we need it: one process, no file with a key, encrypted, loopback unless hosts are far."""

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
HEARD = {"registration_request", "connection_request"}
"""Of what ipyparallel's hub can be asked: the rest, shutdown or unregistration among it, is nobody's business."""

MISSES = 100  # 10 s of silence end a rank on another host
LOOPBACK = "127.0.0.1"  # where a cluster meets that is on this host alone
NEVER = 1 << 40  # on this host a death is known at once, by pidfd; a rank that is silent is stopped, not dead


class _HeartThread(threading.Thread):
    """Stands for the heart monitor's process: one process less, and it ends with this one."""

    def __init__(self, target: Callable[..., None], kwargs: dict[str, Any], daemon: bool) -> None:
        super().__init__(target=target, kwargs=kwargs, daemon=daemon, name="hvd-heart")

    def terminate(self) -> None:
        """Do nothing: a daemon thread ends with its process."""


def _monitor_hearts(**how: Any) -> None:
    """Do as ipyparallel's start_heartmonitor in a context of ours: it would leave half-open connections 30 s."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    context.setsockopt(zmq.HANDSHAKE_IVL, HALF_OPEN_MS)
    loop = asyncio.new_event_loop()
    loop.run_until_complete(_setup_heartmonitor(ctx=context, **how))
    loop.run_forever()


class IPyparallelController(ipp_app.IPController):  # type: ignore[misc]
    """Gives its connection information to a function instead of writing it to files."""

    deliver: Deliver
    stopped: Callable[[], None]

    def save_connection_dict(self, fname: str, cdict: dict[str, Any]) -> None:
        """Keep the addresses and keys of engines or clients until every socket is bound."""
        side = "client" if fname == self.client_json_file else "engine"
        self.__dict__.setdefault("_connections", {})[side] = cdict

    def cleanup_connection_files(self) -> None:
        """Nothing was written."""

    def init_signal(self) -> None:
        """Hand out the connection information once the loop runs: all sockets are bound by then."""
        super().init_signal()
        self.loop.add_callback(self.deliver, self.__dict__["_connections"])

    def handle_signal(self, _signal: int, _frame: object) -> None:
        """End with everything below this process."""
        self.stopped()


def _let_replace(hub: Any) -> None:
    """Let a process that registers as a rank replace the one before, whether or not a heartbeat was missed."""
    free_id = hub.new_engine_id

    def take_id(rank: int | None) -> int:
        if rank in hub.engines or rank in {each.id for each in hub.incoming_registrations.values()}:
            hub.unregister_engine(None, {"content": {"id": rank}})
        taken: int = free_id(rank)
        return taken

    hub.new_engine_id = take_id


def _refuse_strangers(hub: Any) -> None:
    """Leave a registration without an answer unless it is of a process that was started as that rank.

    Who leaves is known by the end of its process, or of its heartbeat, and by nobody's word.
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
    hub.query_handlers = {kind: handler for kind, handler in hub.query_handlers.items() if kind in HEARD}


def _hear_of_deaths(hub: Any, secret: str) -> None:
    """Treat the kernel's message that a rank has ended as a missed heartbeat: ordinary clients are told.

    On this host hearts are never missed, because a rank that is stopped is not dead.
    """

    def lost(_client: Any, message: dict[str, Any]) -> None:
        told = message["content"]
        there = hub.engines.get(told["id"])
        if (
            secrets.compare_digest(told[registration.SECRET], secret)
            and there is not None
            and there.uuid == told["uuid"]
        ):
            hub.unregister_engine(None, message)

    hub.query_handlers[registration.LOST] = lost


def _hear_of_numbers(hub: Any, secret: str) -> None:
    """Take from the kernel which engine is which rank after a resize; an engine that it does not name has left."""

    def renumber(_client: Any, message: dict[str, Any]) -> None:
        told = message["content"]
        if secrets.compare_digest(told[registration.SECRET], secret):
            hub.incoming_registrations.clear()
            _move(hub, told["ranks"])

    hub.query_handlers[registration.NUMBERS] = renumber


def _move(hub: Any, ranks: Mapping[str, int]) -> None:
    """Give engines other ids. Clients hear that those ids end, with what they wait for there, and begin anew."""
    moved = {eid: each for eid, each in hub.engines.items() if ranks.get(each.uuid) != eid}
    for eid, each in moved.items():
        del hub.engines[eid]
        hub.ids.discard(eid)
        hub.by_ident.pop(each.ident, None)
        hub.hearts.pop(each.ident, None)
        _notify(hub, "unregistration_notification", eid, each.uuid)
    for each in moved.values():
        if each.uuid in ranks:
            each.id = eid = ranks[each.uuid]
            hub.ids.add(eid)
            hub.engines[eid] = each
            hub.by_ident[each.ident] = hub.hearts[each.ident] = eid
            hub.queues[eid], hub.tasks[eid], hub.completed[eid] = [], [], []
            _notify(hub, "registration_notification", eid, each.uuid)
        else:
            hub.expect_stopped_hearts.append(each.ident)


def _notify(hub: Any, kind: str, eid: int, uuid: str) -> None:
    hub.session.send(hub.notifier, kind, content={"id": eid, "uuid": uuid})


def misses(address: str) -> int:
    """Return after how many missed heartbeats a rank counts as dead, in a cluster that meets at this address."""
    return NEVER if address == LOOPBACK else MISSES


def serve(deliver: Deliver, stopped: Callable[[], None], address: str, key: str) -> None:
    """Run the controller in this thread, the main one, for ever; ``key``: of its messages."""
    ipp_app.Process = _HeartThread
    ipp_app.start_heartmonitor = _monitor_hearts
    ipp_app.util.select_random_ports = ports.reserve
    zmq.Context.instance().setsockopt(zmq.HANDSHAKE_IVL, HALF_OPEN_MS)  # of every socket made from here on
    config = Config()
    config.IPController.engine_ip = address
    config.IPController.use_threads = True
    config.IPController.enable_curve = True
    config.Session.key = key.encode()  # Curve hides and the key admits: ipyparallel would do without
    config.Session.digest_history_size = REMEMBERED_MESSAGES
    config.IPController.db_class = "ipyparallel.controller.dictdb.NoDB"  # else it keeps every request of the session
    config.IPController.log_level = logging.ERROR
    config.HeartMonitor.period = HEARTBEAT_MS
    config.HeartMonitor.max_heartmonitor_misses = misses(address)
    controller = IPyparallelController.instance(config=config)
    secret = secrets.token_hex(32)
    controller.deliver = lambda known: deliver({**known, "client": {**known["client"], registration.SECRET: secret}})
    controller.stopped = stopped
    controller.initialize([])
    _let_replace(controller.hub)
    _refuse_strangers(controller.hub)
    _hear_of_deaths(controller.hub, secret)
    _hear_of_numbers(controller.hub, secret)
    controller.start()
