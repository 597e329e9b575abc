"""``horovod.runner.common.util.safe_shell_exec``: run a shell command and terminate its children with it."""

from __future__ import annotations

import io
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from threading import Event
from typing import Any

import psutil

from hvd_kernel.compat.tree.utilities import in_thread, on_event

GRACEFUL_TERMINATION_TIME_S = 5
_SIGNALLED = 128


def execute(  # noqa: PLR0917 - Horovod's signature
    command: str,
    env: Mapping[str, str] | None = None,
    stdout: Any = None,
    stderr: Any = None,
    index: int | None = None,
    events: Iterable[Event] | None = None,
    prefix_output_with_timestamp: bool = False,
) -> int:
    """Run a command; return its exit status, 128 + N for signal N.

    Each line of output is written to ``stdout`` or ``stderr``, objects with ``write``, with the prefix
    ``[index]<stdout>:`` if there is an index. Setting one of the events terminates the command.
    """
    shell = subprocess.Popen(  # noqa: S602 - Horovod's callers pass a shell command
        command,
        shell=True,
        env=None if env is None else dict(env),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    done = Event()
    streams = (("stdout", shell.stdout, stdout or sys.stdout), ("stderr", shell.stderr, stderr or sys.stderr))
    readers = [
        in_thread(_forward, (source, target, _prefix(index, name), prefix_output_with_timestamp))
        for name, source, target in streams
    ]
    for event in events or ():
        on_event(event, terminate_executor_shell_and_children, (shell.pid,), stop=done, check_stop_interval_s=0.1)
    try:
        status = shell.wait()
    except BaseException:
        terminate_executor_shell_and_children(shell.pid)
        raise
    finally:
        done.set()
        for reader in readers:
            reader.join()
    return status if status >= 0 else _SIGNALLED - status


def terminate_executor_shell_and_children(pid: int) -> None:
    """Terminate a shell and its descendants: SIGTERM, then SIGKILL for those that are left after some seconds."""
    with ExitStack() as opened:
        # Not with psutil's wait, which would reap the shell: execute() needs its exit status.
        left = list(_opened(_family(pid), opened))
        for number in (signal.SIGTERM, signal.SIGKILL):
            for process in left:
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(process, number)
            end = time.monotonic() + GRACEFUL_TERMINATION_TIME_S
            left = [process for process in left if not _has_ended(process, end)]


def _family(pid: int) -> list[int]:
    try:
        return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
    except psutil.NoSuchProcess:
        return []


def _opened(pids: Iterable[int], opened: ExitStack) -> Iterator[int]:
    for pid in pids:
        with suppress(ProcessLookupError):
            descriptor = os.pidfd_open(pid)
            opened.callback(os.close, descriptor)
            yield descriptor


def _has_ended(process: int, end: float) -> bool:
    poll = select.poll()
    poll.register(process, select.POLLIN)
    return bool(poll.poll(1000 * max(0.0, end - time.monotonic())))


def _prefix(index: int | None, name: str) -> str:
    return "" if index is None else f"[{index}]<{name}>:"


def _forward(source: Any, target: Any, prefix: str, timestamp: bool) -> None:
    # Lines of a progress bar end with a carriage return and must be forwarded at once: no newline translation.
    with io.TextIOWrapper(source, encoding="utf-8", errors="replace", newline="") as lines:
        for line in lines:
            when = time.asctime() if timestamp and prefix else ""
            target.write(f"{when}{prefix}{line}")
            target.flush()
