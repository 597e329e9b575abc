"""Request handlers of a rank, by name. A new handler is a row here and a function in the file of its concept.

A request arrives on the shell channel (handled between cells, on the main thread) or, if it is urgent, on the control
channel (handled immediately on another thread, also while a cell runs). A handler of urgent requests must not use
anything that a cell uses.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from hvd_kernel import tracking
from hvd_kernel.core import session
from hvd_kernel.frameworks import torch_connections
from hvd_kernel.processes import warm
from hvd_kernel.protocol import distributed_tensors, rank_log, serialization
from hvd_kernel.worker import communication, devices, rendezvous
from hvd_kernel.worker import names as frontend
from hvd_kernel.worker.inspect import definitions, digest, recent_operations, replicate, variables
from hvd_kernel.worker.inspect import name_lookup as names
from hvd_kernel.worker.shell import stack_report

if TYPE_CHECKING:
    from hvd_kernel.worker.shell.control import Control

Answer = tuple[dict[str, Any], list[Any]]
TOGETHER = {"rendezvous", "restore"}
"""Collective requests; on a rank that waits in a cell, its main thread handles them."""

Handler = Callable[["Control", Mapping[str, Any], list[Any]], Answer]


def answer(control: Control, content: Mapping[str, Any], buffers: list[Any]) -> Answer | Future[Answer]:
    """Handle a ``hvd_request``; return the reply's content and buffers, or a future of them."""
    name = content.get("handler", "")
    handler = TABLE.get(name)
    if handler is None:
        raise ValueError(f"unknown request {name!r}: notebook and ranks run different versions of hvd_kernel")
    if name in TOGETHER and threading.current_thread() is not threading.main_thread():
        return control.elastic.run_in_main_thread(partial(handler, control, content, buffers))
    return handler(control, content, buffers)


def _hello(control: Control, content: Mapping[str, Any], _buffers: list[Any]) -> Answer:
    if content["channel"] == "shell":
        frontend.begin_prefetch()  # only now: until then other ranks of this host are starting
    device = devices.described(control.names.get("device", "cpu"))
    identity = {"pid": os.getpid(), "host": socket.gethostname(), "device": device}
    return identity | {"channel": content["channel"]}, []


def _interrupt(control: Control, content: Mapping[str, Any], _buffers: list[Any]) -> Answer:
    control.interrupt(content["run"])
    return {}, []


def _release(control: Control, _content: Mapping[str, Any], _buffers: list[Any]) -> Answer:
    control.release()
    return {}, []


def _release_torch(_control: Control, _content: Mapping[str, Any], _buffers: list[Any]) -> Answer:
    """Release the ranks that wait in torch's own groups, for this one or for another that has failed."""
    torch_connections.close()
    return {}, []


def _write_log(control: Control, content: Mapping[str, Any], _buffers: list[Any]) -> Answer:
    """Write a remark of the notebook to this rank's log."""
    control.write_log(content["text"])
    return {}, []


def _typed(control: Control, content: Mapping[str, Any], _buffers: list[Any]) -> Answer:
    return {"taken": control.prompts.deliver(content)}, []


def _push(control: Control, content: Mapping[str, Any], buffers: list[Any]) -> Answer:
    values = receive_values(content, buffers)
    control.names.update(values or {})
    control.origins.pushed(values or ())
    return {"unreached": values is None}, []


def _pull(control: Control, content: Mapping[str, Any], _buffers: list[Any]) -> Answer:
    values = {name: _lookup(control.names, name) for name in content["names"]}
    return send_values(values, control.rank, content)


def _value(control: Control, content: Mapping[str, Any], _buffers: list[Any]) -> Answer:
    return send_values({content["name"]: control.value}, control.rank, content)


def send_values(values: Mapping[str, Any], rank: int, content: Mapping[str, Any]) -> Answer:
    """Answer with values, DTensors in parts, or with the size of each in bytes if together they exceed ``at_most``."""
    at_most = content["at_most"]
    sizes = {name: digest.weigh(value) for name, value in values.items()}
    if at_most is not None and sum(sizes.values()) > at_most:  # before any copy
        return {"sizes": sizes}, []
    values, is_divided = distributed_tensors.divided(dict(values))
    parts = serialization.pack_variables(values)
    if at_most is not None and serialization.size(parts) > at_most:
        return {"sizes": {name: serialization.size(serialization.pack(value)) for name, value in values.items()}}, []
    with serialization.reached(content["buffers"].get(str(rank))) as descriptor:
        wire, placed = serialization.put(parts, descriptor)
    return {"placed": placed, "divided": is_divided}, wire


def receive_values(content: Mapping[str, Any], buffers: list[Any]) -> dict[str, Any] | None:
    """Return the values that the notebook sends; None if its shared buffer cannot be reached from here."""
    with serialization.reached(content["buffer"]) as descriptor:
        if content["placed"] and descriptor is None:
            return None
        values: dict[str, Any] = serialization.unpack(serialization.collect(buffers, content["placed"], descriptor))
        return values


def _log(control: Control, content: Mapping[str, Any], _buffers: list[Any]) -> Answer:
    """Return this rank's log path and an excerpt, for a notebook on another host. Only reads files."""
    logs = rank_log.folder(os.environ["IPYTHONDIR"])
    stream = content["stream"]
    text = rank_log.excerpt(logs, control.rank, stream, content["cell"], content["lines"])
    return {"text": text, "path": str(rank_log.path(logs, control.rank, stream))}, []


def _latest(control: Control, _content: Mapping[str, Any], _buffers: list[Any]) -> Answer:
    """Return the latest cell, and whether communication needs a reset, for a kernel that attaches. Only reads."""
    latest = control.latest
    broken = communication.aborted() or bool(latest.ended and latest.ended["aborted"])
    state = {"busy": control.busy, "broken": broken, "prompts": control.prompts.unanswered}
    return asdict(latest) | state, []


def _track(_control: Control, content: Mapping[str, Any], _buffers: list[Any]) -> Answer:
    if "choice" in content:
        tracking.choose(content["choice"], content["run"])
    tracker = tracking.tracker()
    choice, dropped = ("", []) if tracker is None else (str(tracker.choice), tracker.dropped)
    return {"choice": choice, "run": tracking.run_id(), "dropped": dropped}, []


def _timeline(_control: Control, content: Mapping[str, Any], _buffers: list[Any]) -> Answer:
    """Start or stop rank 0's timeline, or only report it."""
    refused = ""
    try:
        if content["do"] == "start":
            session.record_timeline(content["path"], mark_cycles=content["cycles"])
        elif content["do"] == "stop":
            session.stop_timeline()
    except (ValueError, RuntimeError) as error:  # the file cannot be written, or the rank is not initialised
        refused = str(error)
    path, is_running = session.timeline()
    return {"path": path, "goes_on": is_running, "host": socket.gethostname(), "refused": refused}, []


def _continue(control: Control, content: Mapping[str, Any], _buffers: list[Any]) -> Answer:
    """Let a waiting ``elastic.run`` continue: all ranks have joined."""
    control.elastic.end_wait("", content["root"], tuple(content["fresh"]))
    return {}, []


def _give_up(control: Control, content: Mapping[str, Any], _buffers: list[Any]) -> Answer:
    control.elastic.end_wait(content["why"], None, ())
    return {}, []


def _quit(control: Control, _content: Mapping[str, Any], _buffers: list[Any]) -> Answer:
    """Make this rank leave the cell in which it waits."""
    control.elastic.quit()
    return {}, []


def _prepare_resize(control: Control, content: Mapping[str, Any], _buffers: list[Any]) -> Answer:
    return {"elastic": control.elastic.expect_change(content["run"])}, []


def _resize(control: Control, content: Mapping[str, Any], _buffers: list[Any]) -> Answer:
    control.elastic.announce(content["time"], content["change"])
    return {}, []


def _move_in(_control: Control, content: Mapping[str, Any], _buffers: list[Any]) -> Answer:
    """Move this warm rank to the folder and variables of the notebook that uses it."""
    warm.move_in(content["folder"], content["variables"])
    return {}, []


def _lookup(names: dict[str, Any], name: str) -> Any:
    if name not in names:
        raise NameError(f"name {name!r} is not defined there")
    return names[name]


TABLE: dict[str, Handler] = {
    "hello": _hello,
    "interrupt": _interrupt,
    "release": _release,
    "release_torch": _release_torch,
    "write_log": _write_log,
    "push": _push,
    "pull": _pull,
    "value": _value,
    "reset_communicator": rendezvous.together,
    "alone": rendezvous.alone,
    "track": _track,
    "timeline": _timeline,
    "recent": recent_operations.answer,
    "log": _log,
    "latest": _latest,
    "rendezvous_address": rendezvous.offer,
    "rendezvous": rendezvous.join,
    "go_on": _continue,
    "give_up": _give_up,
    "quit": _quit,
    "prepare_resize": _prepare_resize,
    "resize": _resize,
    "leave": rendezvous.leave,
    "move_in": _move_in,
    "define": definitions.define,
    "replicated": replicate.replicated_names,
    "restore": replicate.restore,
    "held": replicate.held,
    "pack": replicate.pack,
    "unpack": replicate.unpack,
    "typed": _typed,
    "stacks": stack_report.answer,
    "gc": variables.collect,
    "memory": variables.held,
    "frontend": frontend.answer,
    "complete": names.complete,
    "inspect": names.inspection,
    "known": names.known,
    "variables": variables.table,
    "parts": variables.parts,
    "elements": variables.elements,
}
