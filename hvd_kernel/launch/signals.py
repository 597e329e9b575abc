"""Forwarding of the launcher's signals to the ranks: those of a batch system before its time limit, or the user's."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType

from hvd_kernel.launch.agents import Agents
from hvd_kernel.processes.channel.messages import FORWARDED


def ignore_until_forwarded() -> None:
    """Ignore signals for the ranks before these are started; ``forwarded`` replaces the handlers."""
    for number in FORWARDED:
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _ignore)


@contextmanager
def forwarded(agents: Agents) -> Iterator[None]:
    """Forward signals to the ranks of a job, except those that the program handles or ignores itself."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in FORWARDED}
    ours = [number for number, handler in before.items() if handler in {signal.SIG_DFL, _ignore}]

    def forward(number: int, _frame: FrameType | None) -> None:
        agents.loop.call_soon_threadsafe(partial(agents.signal, number))

    for number in ours:
        signal.signal(number, forward)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, before[number])


def _ignore(_number: int, _frame: FrameType | None) -> None:
    """Do nothing; not SIG_IGN, which the ranks would inherit."""
