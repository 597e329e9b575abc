"""Standby of a spare process: it imports at low priority, reports that it is ready, and waits for its task.

The parent's side is processes/spares.py. A spare of an elastic job is ``python -P -m hvd_kernel.worker.standby train.py
...``, started by the agent: it imports the modules that ranks of the job have imported, and on request runs the job's
program as if it had been started with it: ``__main__``, arguments, environment.
"""

from __future__ import annotations

import gc
import importlib
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from hvd_kernel.processes import program
from hvd_kernel.processes.channel.control_channel import ControlChannel
from hvd_kernel.processes.channel.messages import ChannelClosed, Message, Preload, Preloaded, RunProgram

M = TypeVar("M", bound=Message)


class Standby:
    """Connection of a spare to its parent, until it gets its task. Its stdin is the parent's socket."""

    def __init__(self) -> None:
        parent = socket.socket(fileno=os.dup(sys.stdin.fileno()))
        self._parent = ControlChannel(parent, parent, is_agent=True)
        self._received: list[Message] = []

    def next_message(self, kind: type[M]) -> M | None:
        """Wait for the next message, of this type; return None if the parent has closed the connection.

        Raises
        ------
        TypeError
            The message has another type.
        """
        while not self._received:
            self._received += self._parent.receive()
        message = self._received.pop(0)
        if isinstance(message, ChannelClosed):
            return None
        if not isinstance(message, kind):
            raise TypeError(f"a spare waits for {kind.__name__}, not {type(message).__name__}")
        return message

    def report_ready(self) -> None:
        """Report that all imports are complete."""
        self._parent.send(Preloaded())

    def close(self) -> None:
        """Close the socket; stdin is empty afterwards."""
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, sys.stdin.fileno())
        os.close(null)
        self._parent.close()


@contextmanager
def without_collection() -> Iterator[None]:
    """Import without the garbage collector, which takes a sixth of the time to scan objects that are never freed.

    They are frozen, so that later collections, during a cell or a step, do not scan them either.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def at_low_priority(work: Callable[[], None], lower_priority: Callable[[], None]) -> None:
    """Import on a thread with low priority: a process that has lowered its own priority may not raise it again.

    Parameters
    ----------
    work
        The imports.
    lower_priority
        Lowers the priority of the calling thread.
    """
    importlib.import_module("numpy")  # first: the threads of its pools inherit the importing thread's priority

    def run() -> None:
        lower_priority()
        work()

    thread = threading.Thread(target=run, name="hvd-import")
    thread.start()
    thread.join()


_NICE = 10
_MACHINERY = (__file__, program.__file__, "<frozen runpy>")


def main() -> None:
    """Wait for a task and run it, as a spare of an elastic job; return if the parent closes the connection."""
    standby = Standby()
    imports = standby.next_message(Preload)
    if imports is None:
        return
    os.environ.update(imports.variables)
    at_low_priority(lambda: _import(imports.modules), _lower_priority)
    standby.report_ready()
    task = standby.next_message(RunProgram)
    if task is None:
        return
    standby.close()
    _run(task)


def _lower_priority() -> None:
    """Lower the priority of this thread below the ranks': a tenth of a core is enough."""
    os.setpriority(os.PRIO_PROCESS, 0, _NICE)


def _import(names: Sequence[str]) -> None:
    with without_collection():
        for name in names:
            if name not in sys.modules:
                try:
                    importlib.import_module(name)
                except Exception:  # noqa: BLE001, S112 - the import that needs it raises again
                    continue


def _run(task: RunProgram) -> None:
    """Run the program; tracebacks of its exceptions start in it."""
    os.environ.clear()
    os.environ.update(task.env)
    sys.orig_argv[:] = task.command
    target = program.program_of(task.command)
    assert target is not None
    try:
        target.run()
    except Exception as error:  # noqa: BLE001 - as Python does with its program's exceptions
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename in _MACHINERY:
            trace = trace.tb_next
        error.__traceback__ = trace
        sys.excepthook(type(error), error, trace)
        sys.exit(1)


if __name__ == "__main__":
    main()
