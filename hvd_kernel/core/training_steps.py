"""Optimizer steps of this process, for the guard against training apart (hvd_kernel.diagnosis.training_apart).

A framework tracks each optimizer from its first step in a run (a cell, or a script): the number of its steps, and after
a few of them a digest of its parameters. Optimizers that count their own steps are followed instead, from when they are
built. One writer thread at a time, as in ``metrics``.

In a cell, telemetry reads. A script reports to the launcher that has started it (launch/monitor.py), which compares
the ranks. If there is none (Slurm, mpirun), or the job is elastic, rank 0 logs what it knows on its own.

Terms.
  exchanged   the ranks have moved at least a hundredth of the parameters' bytes since the optimizer's first step, or
              another library of the process connects them
"""

from __future__ import annotations

import math
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from hvd_kernel.core import session
from hvd_kernel.core.script_reporter import ScriptReporter
from hvd_kernel.errors import ConfigError
from hvd_kernel.protocol.messages import OptimizerSteps, ParameterDigest
from hvd_kernel.protocol.training_apart import KEPT
from hvd_kernel.settings import lookup

MOST_OPTIMIZERS = 4
"""Number of optimizers of a run that are compared: the first ones that take a step."""

EVERY = 256
"""Steps between two digests, after the first EVERY steps; before that, a digest is taken at powers of two."""

MOST_FOLLOWED = 64
"""Number of optimizers that are read: the ones built last, which a search over parameters has many of."""

_SHARE = 100
Run = tuple[int, int]
Read = Callable[[], tuple[float, float] | None]
"""Returns a digest's value and scale; None while a device still computes it."""

_tracked: list[TrackedOptimizer] = []
_followed: list[FollowedOptimizer] = []
_follows = 0  # optimizers followed so far in this process
_run = _bytes_at_start = _bytes_before_run = 0


class TrackedOptimizer:
    """Steps and parameter digests of one optimizer in this run."""

    def __init__(self, model: str, nbytes: int, *, reduced: bool, connected: Callable[[], bool]) -> None:
        self.steps = 0
        self._model, self._nbytes, self._reduced, self._connected = model, nbytes, reduced, connected
        self._began = _bytes()
        self._lock = threading.Lock()
        self._pending: deque[tuple[int, Read]] = deque(maxlen=KEPT)
        self._digests: deque[ParameterDigest] = deque(maxlen=KEPT)

    def step(self) -> bool:
        """Count a step; return whether to take a digest after it."""
        self.steps = step = self.steps + 1
        return step % EVERY == 0 or (step < EVERY and not step & (step - 1))

    def add(self, read: Read) -> None:
        """Store a digest of the parameters after the latest step."""
        with self._lock:
            self._pending.append((self.steps, read))
        _script.report()

    def report(self, number: int) -> OptimizerSteps:
        """Return the steps and digests as a message. Any thread."""
        return self._message(number, self._model, self.steps, self._began)

    def _message(self, number: int, model: str, steps: int, began: int) -> OptimizerSteps:
        """Return a message; ``began`` is the number of bytes that the ranks had moved before the first step."""
        with self._lock:
            while self._pending and (digest := self._pending[0][1]()) is not None:
                value, scale = (number if math.isfinite(number) else None for number in digest)
                self._digests.append(ParameterDigest(self._pending.popleft()[0], value, scale))
            digests = tuple(self._digests)
        least = max(1, self._nbytes // _SHARE)
        shared = began - _bytes_before_run >= least, began - _bytes_at_start >= least
        exchanged = _bytes() - began >= least or self._connected()
        return OptimizerSteps(number, model, steps, self._reduced, exchanged, *shared, digests)


class _Start(NamedTuple):
    """State of a followed optimizer when its run began."""

    run: Run
    model: str
    steps_before: int
    began: int


class FollowedOptimizer(TrackedOptimizer):
    """An optimizer that counts its own steps, which are read: a step costs nothing. It is followed in all runs."""

    def __init__(
        self,
        optimizer: object,
        model: str,
        nbytes: int,
        *,
        number: int,
        count: Callable[[], int],
        connected: Callable[[], bool],
    ) -> None:
        super().__init__(model, nbytes, reduced=False, connected=connected)
        self.reference = weakref.ref(optimizer)
        self._number, self._count = number, count
        self._latest = 0
        self._start = self._start_now()

    def begin(self) -> None:
        """Count from now on: a run begins."""
        self._start = self._start_now()

    def begin_exchange(self) -> None:
        """Ignore what has been exchanged before the second step."""
        start = self._start_of_run()
        if self._read() - start.steps_before <= 1:
            self._start = start._replace(began=_bytes())

    def report(self, _number: int) -> OptimizerSteps:
        """Return all of it. Any thread."""
        start = self._start_of_run()
        return self._message(self._number, start.model, self._read() - start.steps_before, start.began)

    def _start_of_run(self) -> _Start:
        """Return the start of this run; the first call after an elastic recovery sets it, in any thread."""
        start = self._start
        if start.run != run_number():
            start = self._start_now()
            with self._lock:
                if self._start.run == start.run:
                    return self._start
                self._start = start
        return start

    def _start_now(self) -> _Start:
        return _Start(run_number(), f"{self._model} {session.generation()}", self._read(), _bytes())

    def _read(self) -> int:
        """Return the latest count that could be read: a running program may have taken the variables over."""
        with suppress(Exception):
            self._latest = self._count()
        return self._latest


def track(model: str, nbytes: int, *, reduced: bool, connected: Callable[[], bool]) -> TrackedOptimizer | None:
    """Return a record for an optimizer that takes its first step in this run; None if it is not watched.

    Parameters
    ----------
    model
        Description of optimizer and parameters: only optimizers with equal descriptions are compared.
    nbytes
        Bytes of the parameters.
    reduced
        Whether a DistributedOptimizer reduces all gradients over all ranks.
    connected
        Returns whether another library exchanges gradients.
    """
    if len(_tracked) >= MOST_OPTIMIZERS or not is_on() or not _has_peers():
        return None
    tracked = TrackedOptimizer(f"{model} {session.generation()}", nbytes, reduced=reduced, connected=connected)
    _tracked.append(tracked)
    _script.report_at_exit()
    return tracked


def follow(
    optimizer: object, model: str, nbytes: int, *, count: Callable[[], int], connected: Callable[[], bool]
) -> None:
    """Follow a plain optimizer that counts its own steps, before its first step in this run, until it is deleted.

    Parameters
    ----------
    model, nbytes, connected
        As in ``track``.
    count
        Returns the steps so far, in any thread. It does not refer to the optimizer.
    """
    global _follows  # noqa: PLW0603 - of the process
    _follows += 1
    if len(_followed) >= MOST_FOLLOWED:
        _forget_deleted()
        del _followed[: len(_followed) - MOST_FOLLOWED + 1]
    followed = FollowedOptimizer(optimizer, model, nbytes, number=_follows, count=count, connected=connected)
    _followed.append(followed)
    _script.report_at_exit()
    _script.poll()


def _forget_deleted() -> None:
    _followed[:] = [optimizer for optimizer in _followed if optimizer.reference() is not None]


def begin_exchange() -> None:
    """Ignore the broadcast of parameters that has just ended: it belongs to the start, also after the first step."""
    for optimizer in [*_followed]:
        optimizer.begin_exchange()


def _has_peers() -> bool:
    return session.is_initialized() and session.size() > 1


def is_on() -> bool:
    """Return whether HVD_GUARD is on, which a cell may change in ``os.environ``."""
    try:
        return lookup.value("HVD_GUARD", os.environ) == "on"
    except ConfigError:  # of any variable; init() has reported it
        return True


def reports() -> tuple[OptimizerSteps, ...]:
    """Return the reports of all optimizers of this run. Any thread."""
    tracked, followed = [*_tracked], [*_followed]
    if not (tracked or followed) or not is_on():
        return ()
    of_run = [optimizer.report(number) for number, optimizer in enumerate(tracked)]
    if followed and _has_peers():
        counted = [optimizer.report(0) for optimizer in followed]
        of_run += [steps for steps in counted if steps.steps > 0][:MOST_OPTIMIZERS]
    return tuple(of_run)


def begin_cell() -> None:
    """Forget the optimizers of earlier cells, and report nothing here: the notebook compares its ranks."""
    global _run, _bytes_at_start, _bytes_before_run  # noqa: PLW0603 - of the process
    if not _run:  # the bytes that ranks exchange at start-up are not the user's training
        _bytes_at_start = _bytes()
    _run, _bytes_before_run = _run + 1, _bytes()
    _script.stop()
    _tracked.clear()
    _forget_deleted()
    for optimizer in _followed:
        optimizer.begin()


def run_number() -> Run:
    """Return an identifier of this run, which an elastic recovery changes too: steps are repeated after it."""
    return _run, session.generation()


def _bytes() -> int:
    return session.counters().get("bytes", 0)


_script = ScriptReporter(reports)
