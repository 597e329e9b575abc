"""Answers of ranks that are actors: wait for all of them, and find the cause if some have failed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from hvd_kernel.errors import RankDied
from hvd_kernel.launch.run.call import Answer
from hvd_kernel.launch.run.execution import failure, first_failure
from hvd_kernel.ray.utils import map_blocking, ray_api
from hvd_kernel.ray.worker import ABORTED, NONE

_RELEASED_S = 2.0
"""After a failure, ranks that wait for the failed rank are released by their communication. The rest is interrupted
after this time."""

_ENDED_S = 10.0
"""Time for an interrupted rank to finish before it is killed."""

_REPORTED_S = 60.0
"""Time for Ray to report that a rank's node is lost; 15 s by its defaults."""


@dataclass
class _Results:
    values: dict[int, Any] = field(default_factory=dict)
    failures: dict[int, Answer] = field(default_factory=dict)
    dead: dict[int, BaseException] = field(default_factory=dict)  # Ray's errors

    @property
    def has_failed(self) -> bool:
        return bool(self.failures or self.dead)


class RankActors:
    """Actors in rank order, with their nodes and process ids."""

    def __init__(self, workers: Sequence[Any], nodes: Sequence[str], pids: Sequence[int]) -> None:
        self.workers = [*workers]
        self._nodes, self._pids = nodes, pids
        self._is_connected = True

    def expect_failures(self) -> None:
        """Check the ranks' communication before the next call: a call is made whose failures are not seen here."""
        self._is_connected = False

    def answers_to(self, method: str, *args: Any) -> list[Any]:
        """Call a method on all workers that returns a value and an ``Answer``; return the values in rank order.

        Raises
        ------
        RankFailed
            The call raised on a rank; the error names the rank, and its cause is the exception.
        RankDied
            The process of a rank has exited; the cause is Ray's error.
        """
        self._reconnect()
        pending = {getattr(worker, method).remote(*args): rank for rank, worker in enumerate(self.workers)}
        try:
            results = self._wait_all(pending)
        except BaseException:
            self._is_connected = False
            raise
        self._is_connected = not results.has_failed
        self._raise(results)
        return [results.values[rank] for rank in range(len(self.workers))]

    def _reconnect(self) -> None:
        """Reconnect ranks whose communication was aborted by a failure in an earlier call."""
        if self._is_connected:
            return
        states = map_blocking(lambda worker: worker.communication.remote(), self.workers)
        if ABORTED in states:
            method = "disconnect" if NONE in states else "reconnect"
            map_blocking(lambda worker: getattr(worker, method).remote(), self.workers)
        self._is_connected = True

    def _wait_all(self, pending: dict[Any, int]) -> _Results:
        """Wait for all answers. After a failure or Ctrl-C, stop the ranks that do not finish on their own."""
        results, ray = _Results(), ray_api()
        try:
            while pending and not results.has_failed:
                self._collect(ray.wait([*pending], num_returns=1)[0], pending, results)
        except BaseException:
            self._interrupt(pending)
            self._wait_for(_ENDED_S, pending, results)
            self._kill(pending)
            raise
        self._wait_for(_RELEASED_S, pending, results)
        if pending:
            interrupted = [*pending.values()]
            self._interrupt(pending)
            self._wait_for(_ENDED_S, pending, results)
            self._kill(pending)
            self._wait_for(_REPORTED_S, pending, results)
            for rank in interrupted:  # a KeyboardInterrupt that was sent from here is not the cause
                failure = results.failures.get(rank)
                if failure is not None and failure.kind == KeyboardInterrupt.__name__:
                    results.failures[rank] = replace(failure, secondary=True)
        return results

    def _wait_for(self, seconds: float, pending: dict[Any, int], results: _Results) -> None:
        """Collect the answers that arrive within a number of seconds."""
        end = time.monotonic() + seconds
        while pending and (left := end - time.monotonic()) > 0:
            self._collect(ray_api().wait([*pending], num_returns=1, timeout=left)[0], pending, results)

    def _collect(self, done: Sequence[Any], pending: dict[Any, int], results: _Results) -> None:
        """Move finished calls from ``pending`` to ``results``."""
        ray = ray_api()
        for reference in done:
            rank = pending.pop(reference)
            try:
                value, failure = ray.get(reference)
            except ray.exceptions.RayActorError as error:
                results.dead[rank] = error
            else:
                if failure is None:
                    results.values[rank] = value
                else:
                    results.failures[rank] = failure

    def _interrupt(self, pending: dict[Any, int]) -> None:
        interrupt([(self._nodes[rank], self._pids[rank]) for rank in pending.values()])

    def _kill(self, pending: dict[Any, int]) -> None:
        for rank in pending.values():
            ray_api().kill(self.workers[rank])

    def _raise(self, results: _Results) -> None:
        np, culprit = len(self.workers), first_failure(results.failures)
        if culprit is not None and not (results.dead and results.failures[culprit].secondary):
            answer = results.failures[culprit]
            raise failure(culprit, np, answer) from answer.exception()
        if results.dead:
            rank, error = next(iter(results.dead.items()))
            reason = str(error).partition("\n")[0]
            raise RankDied(
                f"rank {rank} of {np} ended before its function returned: {reason} Call shutdown() and start() again.",
                rank,
            ) from error


def interrupt(processes: Sequence[tuple[str, int]]) -> None:
    """Send SIGINT to processes, given as node and process id, by a task on each node: a busy actor runs no method."""
    ray = ray_api()
    affinity = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
    tasks = []
    for node, pid in processes:
        task = ray.remote(_interrupt).options(num_cpus=0, max_retries=0, scheduling_strategy=affinity(node, soft=False))
        tasks.append(task.remote(pid))
    ray.wait(tasks, num_returns=len(tasks), timeout=_ENDED_S)


def _interrupt(pid: int) -> None:
    import os  # noqa: PLC0415 - Ray pickles this function without its module
    import signal  # noqa: PLC0415

    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGINT)
