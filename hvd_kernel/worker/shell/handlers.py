"""Request handlers of a rank, by name. A new one is a row here and a function in its own file.

A request comes on the shell channel (between cells, on the main thread) or, if it is urgent, on the control channel (at
once, on a thread of its own, also while a cell runs): what may be urgent touches nothing that a cell is using.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any

from hvd_kernel import tracking
from hvd_kernel.core import session
from hvd_kernel.processes.spares import warm
from hvd_kernel.worker import devices, rendezvous
from hvd_kernel.worker.frontend import names as frontend
from hvd_kernel.worker.inspect import definitions, memory, recent_operations, replicate, value_access, variable_summary
from hvd_kernel.worker.inspect import name_lookup as names
from hvd_kernel.worker.output import log_excerpt
from hvd_kernel.worker.shell import latest, stack_report

if TYPE_CHECKING:
    from hvd_kernel.worker.shell.control import Control

Answer = tuple[dict[str, Any], list[Any]]
TOGETHER = {"rendezvous", "restore"}
"""Requests that all ranks do together: of a rank that waits in a cell, its main thread does them."""

Handler = Callable[["Control", Mapping[str, Any], list[Any]], Answer]


def answer(control: Control, content: Mapping[str, Any], buffers: list[Any]) -> Answer | Future[Answer]:
    """Do what a ``hvd_request`` says; return the reply's content and buffers, or who will have them."""
    name = content.get("handler", "")
    handler = TABLE.get(name)
    if handler is None:
        raise ValueError(f"unknown request {name!r}: notebook and ranks run different versions of hvd_kernel")
    if name in TOGETHER and threading.current_thread() is not threading.main_thread():
        return control.elastic.hand_over(partial(handler, control, content, buffers))
    return handler(control, content, buffers)


def _hello(control: Control, content: Mapping[str, Any], _buffers: list[Any]) -> Answer:
    if content["channel"] == "shell":
        frontend.begin_prefetch()  # not before: other ranks of this host were still starting
    device = devices.described(control.names.get("device", "cpu"))
    who = {"pid": os.getpid(), "host": socket.gethostname(), "device": device}
    return who | {"channel": content["channel"]}, []


def _interrupt(control: Control, content: Mapping[str, Any], _buffers: list[Any]) -> Answer:
    control.interrupt(content["run"])
    return {}, []


def _release(control: Control, _content: Mapping[str, Any], _buffers: list[Any]) -> Answer:
    control.release()
    return {}, []


def _write_log(control: Control, content: Mapping[str, Any], _buffers: list[Any]) -> Answer:
    """Write a remark of the notebook to this rank's log."""
    control.write_log(content["text"])
    return {}, []


def _typed(control: Control, content: Mapping[str, Any], _buffers: list[Any]) -> Answer:
    return {"taken": control.prompts.take(content)}, []


def _push(control: Control, content: Mapping[str, Any], buffers: list[Any]) -> Answer:
    found = value_access.receive(content, buffers)
    control.names.update(found or {})
    control.origins.pushed(found or ())
    return {"unreached": found is None}, []


def _pull(control: Control, content: Mapping[str, Any], _buffers: list[Any]) -> Answer:
    found = {name: _lookup(control.names, name) for name in content["names"]}
    return value_access.send(found, control.rank, content)


def _value(control: Control, content: Mapping[str, Any], _buffers: list[Any]) -> Answer:
    return value_access.send({content["name"]: control.value}, control.rank, content)


def _track(_control: Control, content: Mapping[str, Any], _buffers: list[Any]) -> Answer:
    if "choice" in content:
        tracking.choose(content["choice"], content["run"])
    tracker = tracking.tracker()
    choice, dropped = ("", []) if tracker is None else (str(tracker.choice), tracker.dropped)
    return {"choice": choice, "run": tracking.run_id(), "dropped": dropped}, []


def _timeline(_control: Control, content: Mapping[str, Any], _buffers: list[Any]) -> Answer:
    """Begin or end rank 0's timeline, or only tell of it; in the place where the notebook is."""
    refused = ""
    try:
        if content["do"] == "start":
            session.record_timeline(content["path"], mark_cycles=content["cycles"])
        elif content["do"] == "stop":
            session.stop_timeline()
    except (ValueError, RuntimeError) as said:  # no file, or nobody is initialised
        refused = str(said)
    path, goes_on = session.timeline()
    return {"path": path, "goes_on": goes_on, "host": socket.gethostname(), "refused": refused}, []


def _go_on(control: Control, content: Mapping[str, Any], _buffers: list[Any]) -> Answer:
    """Have ``elastic.run`` go on, which waits: all have met."""
    control.elastic.end_wait("", content["root"], tuple(content["fresh"]))
    return {}, []


def _give_up(control: Control, content: Mapping[str, Any], _buffers: list[Any]) -> Answer:
    control.elastic.end_wait(content["why"], None, ())
    return {}, []


def _quit(control: Control, _content: Mapping[str, Any], _buffers: list[Any]) -> Answer:
    """Have this rank leave the cell, in which it waits."""
    control.elastic.quit()
    return {}, []


def _prepare_resize(control: Control, content: Mapping[str, Any], _buffers: list[Any]) -> Answer:
    return {"elastic": control.elastic.expect_change(content["run"])}, []


def _resize(control: Control, content: Mapping[str, Any], _buffers: list[Any]) -> Answer:
    control.elastic.announce(content["time"], content["change"])
    return {}, []


def _move_in(_control: Control, content: Mapping[str, Any], _buffers: list[Any]) -> Answer:
    """Be where the notebook is that has taken this rank, which was started ahead."""
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
    "write_log": _write_log,
    "push": _push,
    "pull": _pull,
    "value": _value,
    "reset_communicator": rendezvous.together,
    "alone": rendezvous.alone,
    "track": _track,
    "timeline": _timeline,
    "recent": recent_operations.answer,
    "log": log_excerpt.answer,
    "latest": latest.answer,
    "rendezvous_address": rendezvous.offer,
    "rendezvous": rendezvous.join,
    "go_on": _go_on,
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
    "gc": memory.collect,
    "memory": memory.held,
    "frontend": frontend.answer,
    "complete": names.complete,
    "inspect": names.inspection,
    "known": names.known,
    "variables": variable_summary.table,
    "parts": variable_summary.parts,
    "elements": variable_summary.elements,
}
