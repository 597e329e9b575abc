"""Answers of ranks that are actors: waited for together, and told apart where some of them have failed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from hvd_kernel.errors import RankDied
from hvd_kernel.launch.run.call import Answer
from hvd_kernel.launch.run.in_processes import failure, first_failure
from hvd_kernel.ray.utils import map_blocking, ray_api
from hvd_kernel.ray.worker import ABORTED, NONE

_RELEASED_S = 2.0
"""Ranks that wait for one that has failed are released by their own communication; the others are interrupted then."""

_ENDED_S = 10.0
"""A rank that was interrupted may take so long; it is killed then."""

_TOLD_S = 60.0
"""Ray may take so long to say that the node of a rank is lost: by its defaults 15 s."""


@dataclass
class _Seen:
    values: dict[int, Any] = field(default_factory=dict)
    failures: dict[int, Answer] = field(default_factory=dict)
    dead: dict[int, BaseException] = field(default_factory=dict)  # with Ray's error

    @property
    def has_failed(self) -> bool:
        return bool(self.failures or self.dead)


class RankActors:
    """Actors by their ranks, with the node and the process of each."""

    def __init__(self, workers: Sequence[Any], nodes: Sequence[str], pids: Sequence[int]) -> None:
        self.workers = [*workers]
        self._nodes, self._pids = nodes, pids
        self._is_settled = True

    def unsettle(self) -> None:
        """Take note that something runs on the ranks that nobody here waits for."""
        self._is_settled = False

    def answers_to(self, method: str, *args: Any) -> list[Any]:
        """Call a method of each worker's that returns a value and an ``Answer``; return the values in rank order.

        Raises
        ------
        RankFailed
            The call raised on a rank, which is named; its exception is the cause.
        RankDied
            The process of a rank has ended; the cause is Ray's error.
        """
        self._settle()
        try:
            seen = self._wait({getattr(worker, method).remote(*args): rank for rank, worker in enumerate(self.workers)})
        except BaseException:
            self._is_settled = False
            raise
        self._is_settled = not seen.has_failed
        self._raise(seen)
        return [seen.values[rank] for rank in range(len(self.workers))]

    def _settle(self) -> None:
        """Have ranks meet again whose communication has ended with the call before."""
        if self._is_settled:
            return
        found = map_blocking(lambda worker: worker.communication.remote(), self.workers)
        if ABORTED in found:
            method = "disconnect" if NONE in found else "reconnect"
            map_blocking(lambda worker: getattr(worker, method).remote(), self.workers)
        self._is_settled = True

    def _wait(self, pending: dict[Any, int]) -> _Seen:
        """Wait for all of them. Those that do not end by themselves when one has failed, or at Ctrl-C, are ended."""
        seen, ray = _Seen(), ray_api()
        try:
            while pending and not seen.has_failed:
                self._take(ray.wait([*pending], num_returns=1)[0], pending, seen)
        except BaseException:
            self._interrupt(pending)
            self._within(_ENDED_S, pending, seen)
            self._kill(pending)
            raise
        self._within(_RELEASED_S, pending, seen)
        if pending:
            others = dict(pending)
            self._interrupt(pending)
            self._within(_ENDED_S, pending, seen)
            self._kill(pending)
            self._within(_TOLD_S, pending, seen)
            for rank in others.values():  # what they say of the interrupt is not the cause
                if (said := seen.failures.get(rank)) is not None and said.kind == KeyboardInterrupt.__name__:
                    seen.failures[rank] = replace(said, secondary=True)
        return seen

    def _within(self, seconds: float, pending: dict[Any, int], seen: _Seen) -> None:
        end = time.monotonic() + seconds
        while pending and (left := end - time.monotonic()) > 0:
            self._take(ray_api().wait([*pending], num_returns=1, timeout=left)[0], pending, seen)

    def _take(self, done: Sequence[Any], pending: dict[Any, int], seen: _Seen) -> None:
        ray = ray_api()
        for reference in done:
            rank = pending.pop(reference)
            try:
                value, failed = ray.get(reference)
            except ray.exceptions.RayActorError as error:
                seen.dead[rank] = error
            else:
                if failed is None:
                    seen.values[rank] = value
                else:
                    seen.failures[rank] = failed

    def _interrupt(self, pending: dict[Any, int]) -> None:
        interrupt([(self._nodes[rank], self._pids[rank]) for rank in pending.values()])

    def _kill(self, pending: dict[Any, int]) -> None:
        for rank in pending.values():
            ray_api().kill(self.workers[rank])

    def _raise(self, seen: _Seen) -> None:
        np, culprit = len(self.workers), first_failure(seen.failures)
        if culprit is not None and not (seen.dead and seen.failures[culprit].secondary):
            answer = seen.failures[culprit]
            raise failure(culprit, np, answer) from answer.exception()
        if seen.dead:
            rank, error = next(iter(seen.dead.items()))
            said = str(error).partition("\n")[0]
            raise RankDied(
                f"rank {rank} of {np} ended before its function returned: {said} Call shutdown() and start() again.",
                rank,
            ) from error


def interrupt(processes: Sequence[tuple[str, int]]) -> None:
    """Interrupt processes, by node and number: a task on each node, as an actor that is busy hears of nothing."""
    ray = ray_api()
    at = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
    sent = []
    for node, pid in processes:
        task = ray.remote(_send).options(num_cpus=0, max_retries=0, scheduling_strategy=at(node, soft=False))
        sent.append(task.remote(pid))
    ray.wait(sent, num_returns=len(sent), timeout=_ENDED_S)


def _send(pid: int) -> None:
    import os  # noqa: PLC0415 - this function travels alone
    import signal  # noqa: PLC0415

    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGINT)
