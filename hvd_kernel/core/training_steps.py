"""Optimizer steps of this process, for the guard against training apart (hvd_kernel.diagnosis.training_apart).

A framework tracks each optimizer from its first step in a run (a cell, or a script): the number of its steps, and after
a few of them a digest of its parameters. Telemetry reads both. One writer thread at a time, as in ``metrics``.

Terms.
  exchanged   the ranks have moved at least a hundredth of the parameters' bytes since the optimizer's first step, or
              another library of the process connects them
"""

from __future__ import annotations

import logging
import math
import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from hvd_kernel.core import session
from hvd_kernel.errors import ConfigError
from hvd_kernel.formatting.rank_labels import rank_list
from hvd_kernel.protocol.messages import OptimizerSteps, ParameterDigest
from hvd_kernel.protocol.training_apart import KEPT, nothing_exchanged, steps_allowed
from hvd_kernel.settings import lookup

MOST_OPTIMIZERS = 4
"""Number of optimizers of a run that are compared: the first ones that take a step."""

EVERY = 256
"""Steps between two digests, after the first EVERY steps; before that, a digest is taken at powers of two."""

_SHARE = 100
Run = tuple[int, int]
Read = Callable[[], tuple[float, float] | None]
"""Returns a digest's value and scale; None while a device still computes it."""

_LOG = logging.getLogger("hvd_kernel")
_tracked: list[TrackedOptimizer] = []
_run = _bytes_at_start = _bytes_before_run = 0
_announces = True  # a script: nothing else compares its ranks


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
        if _announces:
            _announce(self.report(0))

    def report(self, number: int) -> OptimizerSteps:
        """Return the steps and digests as a message. Any thread."""
        with self._lock:
            while self._pending and (digest := self._pending[0][1]()) is not None:
                value, scale = (number if math.isfinite(number) else None for number in digest)
                self._digests.append(ParameterDigest(self._pending.popleft()[0], value, scale))
            digests = tuple(self._digests)
        least = max(1, self._nbytes // _SHARE)
        shared = self._began - _bytes_before_run >= least, self._began - _bytes_at_start >= least
        exchanged = _bytes() - self._began >= least or self._connected()
        return OptimizerSteps(number, self._model, self.steps, self._reduced, exchanged, *shared, digests)


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
    if len(_tracked) >= MOST_OPTIMIZERS or not is_on() or not session.is_initialized() or session.size() == 1:
        return None
    tracked = TrackedOptimizer(f"{model} {session.generation()}", nbytes, reduced=reduced, connected=connected)
    _tracked.append(tracked)
    return tracked


def is_on() -> bool:
    """Return whether HVD_GUARD is on, which a cell may change in ``os.environ``."""
    try:
        return lookup.value("HVD_GUARD", os.environ) == "on"
    except ConfigError:  # of any variable; init() has reported it
        return True


def reports() -> tuple[OptimizerSteps, ...]:
    """Return the reports of all optimizers of this run. Any thread."""
    tracked = list(_tracked)
    return tuple(optimizer.report(number) for number, optimizer in enumerate(tracked)) if tracked and is_on() else ()


def begin_cell() -> None:
    """Forget the optimizers of earlier cells, and announce nothing here: the notebook compares its ranks."""
    global _run, _bytes_at_start, _bytes_before_run, _announces  # noqa: PLW0603 - of the process
    if not _run:  # the bytes that ranks exchange at start-up are not the user's training
        _bytes_at_start = _bytes()
    _run, _bytes_before_run, _announces = _run + 1, _bytes(), False
    _tracked.clear()


def run_number() -> Run:
    """Return an identifier of this run, which an elastic recovery changes too: steps are repeated after it."""
    return _run, session.generation()


def _bytes() -> int:
    return session.counters().get("bytes", 0)


def _announce(steps: OptimizerSteps) -> None:
    """Log once, on rank 0, that the ranks of a script have exchanged nothing, unless other ranks wait for this one."""
    global _announces  # noqa: PLW0603 - of the process
    if steps.reduced or steps.exchanged or steps.steps < steps_allowed(steps, over=False) or not is_on():
        return
    waited_for = any(session.rank() in operation["missing"] for operation in _pending())
    if session.rank() == 0 and not waited_for:
        _LOG.warning("%s", nothing_exchanged(rank_list(range(session.size())), steps.steps))
    _announces = waited_for


def _pending() -> Any:
    return session.engine().pending()
