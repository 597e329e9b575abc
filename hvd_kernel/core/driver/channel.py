"""Driver channel of a rank whose places an elastic driver gives: it asks for its place, and hears what changes.

The agent of the host carries the messages (core/agent_channel.py). What they mean: protocol/elastic.py.

Terms.
  answer   a Place, or that the worker is Removed
  pushed   said of an answer that comes without a question: the generation that was to be is not, or is no more
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from contextlib import suppress

import msgspec

from hvd_kernel.core import agent_channel
from hvd_kernel.errors import HorovodInternalError, HvdTimeout
from hvd_kernel.processes import rank_channel
from hvd_kernel.protocol import elastic
from hvd_kernel.protocol.elastic import FromWorker, HostsUpdated, Lost, Place, Ready, Removed

Answer = Place | Removed

_GONE = (
    f"the driver of this elastic job cannot be reached ({rank_channel.VARIABLE} names its agent on this host): it has "
    "ended, or this process is a child of a rank. Start the job with hvdrun."
)


class DriverChannel:
    """What the driver has told this process."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._answer: Answer | None = None  # the newest, until it is taken
        self._taken = 0  # the generation of the newest that was
        self._lost = 0  # the newest generation that has lost a worker
        self._is_asking = False
        self._is_gone = False
        self._pushed: list[Callable[[str], None]] = []
        self._placed: list[Callable[[], None]] = []
        self._hosts_updated: list[Callable[[HostsUpdated], None]] = []
        self._readable = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def on_hosts_updated(self, call: Callable[[HostsUpdated], None]) -> None:
        """Call this, in a thread, whenever the driver says that hosts have come or gone."""
        self._hosts_updated.append(call)

    def on_placed(self, call: Callable[[], None]) -> None:
        """Call this, in a thread, whenever a place comes: in it all is considered that the driver has told before."""
        self._placed.append(call)

    def on_pushed(self, call: Callable[[str], None]) -> None:
        """Call this with the reason, in a thread, when the generation is over; an answer is taken after it returns."""
        self._pushed.append(call)

    def fileno(self) -> int:
        """Return a descriptor that is readable while there is no use in waiting: see ``is_over``."""
        return self._readable

    def is_over(self) -> bool:
        """Tell whether the generation is over that was given last: it has lost a worker, or another answer waits."""
        return self._answer is not None or 0 < self._taken <= self._lost

    def ask_place(self, ready: Ready, patience_s: float) -> Answer:
        """Say that this worker is ready, and wait for its place; one that was pushed is taken without a question.

        Raises
        ------
        HvdTimeout
            No answer has come in time.
        HorovodInternalError
            The driver is gone.
        """
        with self._changed:
            if self._answer is None:
                self.send(ready)
            self._is_asking = True
            try:
                self._changed.wait_for(lambda: self._answer is not None or self._is_gone, patience_s)
            finally:
                self._is_asking = False
            answer, self._answer = self._answer, None
            if answer is None:
                raise HorovodInternalError(_GONE) if self._is_gone else _late(patience_s)
            self._rest()
            if isinstance(answer, Place):
                self._taken = answer.generation
                if self.is_over():
                    os.eventfd_write(self._readable, 1)
            return answer

    def send(self, message: FromWorker) -> None:
        """Tell the driver. Any thread."""
        if not agent_channel.is_connected():
            self._is_gone = True
        agent_channel.send(elastic.encode(message))

    def hear(self, data: bytes) -> None:
        """Take what the agent has passed on; nothing: its end."""
        match elastic.to_worker(data) if data else None:
            case HostsUpdated() as update:
                for call in [*self._hosts_updated]:
                    call(update)
            case Place(generation=generation) if generation <= self._taken:
                return  # of a generation that is over
            case Place() | Removed() as answer:
                self._keep(answer)
            case Lost() as lost:
                self._lose(lost)
            case None:
                with self._changed:
                    self._is_gone = True
                    self._changed.notify_all()

    def _rest(self) -> None:
        with suppress(BlockingIOError):
            os.eventfd_read(self._readable)

    def _lose(self, lost: Lost) -> None:
        with self._changed:
            was_over = self.is_over()
            self._lost = max(self._lost, lost.generation)
            if self.is_over() and not (was_over or self._is_asking):
                os.eventfd_write(self._readable, 1)
                for call in self._pushed:
                    call(f"a rank has failed: {lost.why}")

    def _keep(self, answer: Answer) -> None:
        for placed in self._placed if isinstance(answer, Place) else ():
            placed()
        with self._changed:
            if self._answer is None:
                os.eventfd_write(self._readable, 1)
            self._answer = since(self._answer, answer)
            self._changed.notify_all()
            for call in () if self._is_asking else self._pushed:
                call("it has been given a place in another generation of the job")


def since(older: Answer | None, newer: Answer) -> Answer:
    """Return the newer of two places, with ranks ``before`` that are of the generation before the older one.

    Examples
    --------
    Rank 1 of a generation that never was had been rank 3 before; one more came with it, and another one later.

    >>> of = lambda generation, *before: Place(generation, 0, 3, 0, 3, 0, 1, "", "", 1, "", before=before)
    >>> since(of(2, 0, 3, -1), of(3, 1, 2, -1)).before
    (3, -1, -1)
    """
    if not isinstance(older, Place) or not isinstance(newer, Place):
        return newer
    ranks = tuple(older.before[rank] if 0 <= rank < len(older.before) else -1 for rank in newer.before)
    return msgspec.structs.replace(newer, before=ranks)


def _late(patience_s: float) -> HvdTimeout:
    return HvdTimeout(
        f"the driver of this elastic job has given this rank no place within {patience_s:g} s. HVD_ELASTIC_TIMEOUT (or "
        "HOROVOD_ELASTIC_TIMEOUT) sets the time."
    )


@functools.cache
def driver() -> DriverChannel:
    """Return the one of this process."""
    return DriverChannel()
