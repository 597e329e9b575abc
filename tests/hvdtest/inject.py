"""Injects the fault of a sentence into a rank. Imported by the ranks; standard library only."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import sys
from typing import Any


class Injected(RuntimeError):
    """What "raise" raises."""


def at(step: int, rank: int, plan: list[dict[str, Any]], kernel: int) -> None:
    """Inject the planned faults of this rank and step."""
    for fault in plan:
        if (fault["rank"], fault["step"]) == (rank, step):
            _DO[fault["kind"]](fault, kernel)


def _kill(_fault: dict[str, Any], _kernel: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _exit(_fault: dict[str, Any], _kernel: int) -> None:
    os._exit(0)


def _segfault(_fault: dict[str, Any], _kernel: int) -> None:
    ctypes.string_at(0)


def _raise(fault: dict[str, Any], _kernel: int) -> None:
    raise Injected(f"rank {fault['rank']} was told to raise at step {fault['step']}")


def _stop(fault: dict[str, Any], _kernel: int) -> None:
    # By one process, so that it is woken after it was stopped however slow the machine is.
    nap = f"kill -STOP {os.getpid()}; sleep {fault['amount']}; kill -CONT {os.getpid()}"
    subprocess.run(["/bin/sh", "-c", nap], start_new_session=True, stdin=subprocess.DEVNULL, check=True)


def _interrupt(_fault: dict[str, Any], kernel: int) -> None:
    os.kill(kernel, signal.SIGINT)


def _exhaust(_fault: dict[str, Any], _kernel: int) -> None:
    limits = resource.getrlimit(resource.RLIMIT_AS)
    used = int(open("/proc/self/statm").read().split()[0]) * os.sysconf("SC_PAGESIZE")  # noqa: SIM115, PTH123 - short
    resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), limits[1]))
    try:
        bytearray(1 << 30)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


def _flood(fault: dict[str, Any], _kernel: int) -> None:
    line = "x" * 99 + "\n"
    for _ in range(int(fault["amount"] * 10_000)):
        sys.stdout.write(line)


_DO = {
    "kill": _kill,
    "exit": _exit,
    "segfault": _segfault,
    "raise": _raise,
    "stop": _stop,
    "interrupt": _interrupt,
    "exhaust": _exhaust,
    "flood": _flood,
}
