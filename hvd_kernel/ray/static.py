"""Jobs of a fixed number of ranks on Ray: each rank is an actor that keeps its state between calls."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from hvd_kernel.errors import ClusterError, ConfigError, RankDied
from hvd_kernel.launch.placement import common_variables, rank_variables, rendezvous_address
from hvd_kernel.launch.run.call import Answer
from hvd_kernel.launch.run.execution import failure, first_failure
from hvd_kernel.ray.adapter import NOT_STARTED, STARTED, Adapter, BaseParams
from hvd_kernel.ray.strategy import BaseStrategy, ColocatedStrategy, PGStrategy, current_placement_group
from hvd_kernel.ray.utils import map_blocking, ray_api, reason_of
from hvd_kernel.ray.worker import ABORTED, NONE


@dataclass
class StaticParams(BaseParams):
    """Arguments of ``RayExecutor`` for a job of a fixed number of ranks."""

    num_workers: int | None = None
    num_hosts: int | None = None
    num_workers_per_host: int = 1
    use_current_placement_group: bool = True

    @property
    def elastic(self) -> bool:
        """False: the ranks are the same during the whole job."""
        return False

    @property
    def adapter(self) -> Callable[..., Adapter]:
        """The adapter of jobs of a fixed number of ranks."""
        return StaticAdapter


class StaticAdapter(Adapter):
    """A job of a fixed number of ranks; the parameters are those of ``RayExecutor``."""

    def __init__(  # noqa: PLR0917 - Horovod's signature
        self,
        settings: Any,
        num_workers: int | None = None,
        num_hosts: int | None = None,
        num_workers_per_host: int = 1,
        cpus_per_worker: int = 1,
        use_gpu: bool = False,
        gpus_per_worker: int | None = None,
        use_current_placement_group: bool = True,
    ) -> None:
        self.settings = settings
        self.num_workers, self.num_hosts, self.num_workers_per_host = num_workers, num_hosts, num_workers_per_host
        self.cpus_per_worker, self.use_gpu, self.gpus_per_worker = cpus_per_worker, use_gpu, gpus_per_worker or 1
        self.use_current_placement_group = use_current_placement_group
        self.workers: list[Any] = []
        self.strategy: BaseStrategy | None = None
        self._ranks: RankActors | None = None

    def start(
        self,
        executable_cls: type | None = None,
        executable_args: Sequence[Any] | None = None,
        executable_kwargs: Mapping[str, Any] | None = None,
        extra_env_vars: Mapping[str, str] | None = None,
    ) -> None:
        """Start the ranks and create their executables.

        Raises
        ------
        TimeoutError
            Ray did not provide the resources in time.
        RankFailed
            The class raised on a rank; the error names the rank, and its cause is the exception.
        ClusterError
            The process of a rank exited before the ranks were numbered; the cause is Ray's error.
        """
        if self._ranks is not None:
            raise ClusterError(STARTED)
        self.strategy = self._create_strategy()
        try:
            started, _ = self.strategy.create_workers()
            self._ranks = self._assign_ranks(started, extra_env_vars or {})
            self.workers = self._ranks.workers
            if executable_cls is not None:
                self._ranks.answers_to("make", executable_cls, executable_args, executable_kwargs)
        except BaseException as error:
            self.shutdown()
            if isinstance(error, ray_api().exceptions.RayActorError):
                raise ClusterError(NOT_UP.format(reason=reason_of(error))) from error
            raise

    def _create_strategy(self) -> BaseStrategy:
        if self.num_workers is not None and self.num_hosts is not None:
            raise ConfigError("num_workers and num_hosts both set the number of ranks: keep one of them.")
        np = self.num_workers or (self.num_hosts or 0) * self.num_workers_per_host
        if np < 1:
            raise ConfigError("the number of ranks is missing: pass num_workers or num_hosts, e.g. num_workers=4.")
        resources = {
            "settings": self.settings,
            "use_gpu": self.use_gpu,
            "cpus_per_worker": self.cpus_per_worker,
            "gpus_per_worker": self.gpus_per_worker,
        }
        if self.num_hosts is not None and not (self.use_current_placement_group and current_placement_group()):
            return ColocatedStrategy(
                num_hosts=self.num_hosts, num_workers_per_host=self.num_workers_per_host, **resources
            )
        creates_group = not self.use_current_placement_group
        return PGStrategy(num_workers=np, force_create_placement_group=creates_group, **resources)

    def _assign_ranks(self, started: Sequence[Any], extra: Mapping[str, str]) -> RankActors:
        """Assign ranks node by node, first to the node of the first actor; set the environment of each rank."""
        ids = map_blocking(lambda worker: worker.node_id.remote(), started)
        order = sorted(range(len(started)), key=lambda index: ids.index(ids[index]))
        workers, nodes = [started[index] for index in order], [ids[index] for index in order]
        cards = map_blocking(lambda worker: worker.card.remote(), workers)
        nics = self.settings.nics
        interface = nics if isinstance(nics, str) else next(iter(nics or ()), "")
        address = rendezvous_address(cards, [False] * len(cards), interface)
        common = common_variables(len(workers), address, secrets.token_hex(32), cards[0]["torch_port"])
        variables = rank_variables(nodes, nodes)
        ray_api().get(
            [
                worker.update_env_vars.remote(common | of_rank | dict(extra))
                for worker, of_rank in zip(workers, variables, strict=True)
            ]
        )
        pids = map_blocking(lambda worker: worker.pid.remote(), workers)
        return RankActors(workers, nodes, pids, [card["name"] for card in cards])

    def execute(self, fn: Callable[[Any], Any], queue: Any = None, *, samples: bool = False) -> list[Any]:
        """Call ``fn(executable)`` on all ranks; return its values in rank order."""
        ranks = self._started_ranks()
        ranks.call("set_queue", queue, samples=samples)
        return ranks.answers_to("answer", fn)

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        queue: Any = None,
        *,
        samples: bool = False,
    ) -> list[Any]:
        """Call ``fn(*args, **kwargs)`` on all ranks; return its values in rank order."""
        return self.execute(_call(fn, args, kwargs), queue, samples=samples)

    def run_remote(
        self, fn: Callable[..., Any], args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None
    ) -> list[Any]:
        """Call ``fn`` on all ranks like ``run``, without waiting; return Ray's references to the values."""
        ranks = self._started_ranks()
        ranks.check_alive()
        ranks.expect_failures()
        return [worker.execute.remote(_call(fn, args, kwargs)) for worker in ranks.workers]

    def execute_single(self, fn: Callable[[Any], Any]) -> Any:
        """Call ``fn(executable)`` on rank 0; an exception is raised as Ray's error, which is also of its class.

        Raises
        ------
        RankDied
            The process of rank 0 has exited; the cause is Ray's error.
        """
        ranks = self._started_ranks()
        ranks.expect_failures()
        return ranks.value(0, ranks.workers[0].execute.remote(fn))

    def shutdown(self) -> None:
        """Stop the ranks and release their resources. Idempotent."""
        for worker in [*self.workers] or (self.strategy.workers if self.strategy is not None else []):
            ray_api().kill(worker)
        if self.strategy is not None:
            self.strategy.shutdown()
        self.workers, self.strategy, self._ranks = [], None, None

    def _started_ranks(self) -> RankActors:
        if self._ranks is None:
            raise ClusterError(NOT_STARTED)
        return self._ranks


def _call(fn: Callable[..., Any], args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None) -> Callable[[Any], Any]:
    positional, named = tuple(args or ()), dict(kwargs or {})
    return lambda _: fn(*positional, **named)


# Answers of all ranks, and the cause if some have failed


_RELEASED_S = 2.0
"""After a failure, ranks that wait for the failed rank are released by their communication. The rest is interrupted
after this time."""

_ENDED_S = 10.0
"""Time for an interrupted rank to finish before it is killed."""

_REPORTED_S = 60.0
"""Time for Ray to report that a rank's node is lost; 15 s by its defaults."""

_ALIVE_S = 0.5
"""Maximum wait of ``check_alive``. An idle rank answers within milliseconds, a busy rank not before it is idle."""

DIED = "the process of rank {rank} of {np} on host {host} has ended: {reason} Call shutdown() and start() again."
"""Message of ``RankDied``: ``reason`` is Ray's."""

NOT_UP = "the process of a rank ended while the ranks were started: {reason} Call start() again."
"""Message for a rank that ends before it has a number."""


@dataclass
class _Results:
    values: dict[int, Any] = field(default_factory=dict)
    failures: dict[int, Answer] = field(default_factory=dict)
    dead: dict[int, RankDied] = field(default_factory=dict)

    @property
    def has_failed(self) -> bool:
        return bool(self.failures or self.dead)


class RankActors:
    """Actors in rank order, with the ids of their nodes, their process ids, and the names of their hosts."""

    def __init__(self, workers: Sequence[Any], nodes: Sequence[str], pids: Sequence[int], hosts: Sequence[str]) -> None:
        self.workers = [*workers]
        self._nodes, self._pids, self._hosts = nodes, pids, hosts
        self._is_connected = True

    def value(self, rank: int, reference: Any) -> Any:
        """Wait for the value of a rank's method.

        Raises
        ------
        RankDied
            The process of the rank has exited; the cause is Ray's error.
        """
        ray = ray_api()
        try:
            return ray.get(reference)
        except ray.exceptions.RayActorError as error:
            if isinstance(error, ray.exceptions.RayTaskError):  # the user's function raised it: of another actor
                raise
            np, host = len(self.workers), self._hosts[rank]
            raise RankDied(DIED.format(rank=rank, np=np, host=host, reason=reason_of(error)), rank) from error

    def call(self, method: str, *args: Any, **kwargs: Any) -> list[Any]:
        """Call a method on all workers; return the values in rank order.

        Raises
        ------
        RankDied
            The process of a rank has exited, whether or not the others have answered; the cause is Ray's error.
        """
        ray = ray_api()
        pending = {getattr(worker, method).remote(*args, **kwargs): rank for rank, worker in enumerate(self.workers)}
        values: dict[int, Any] = {}
        while pending:
            for reference in ray.wait([*pending], num_returns=1)[0]:
                rank = pending.pop(reference)
                values[rank] = self.value(rank, reference)
        return [values[rank] for rank in range(len(self.workers))]

    def check_alive(self) -> None:
        """Check that no idle rank has died; of a rank that executes a function nothing is known.

        Raises
        ------
        RankDied
            The process of a rank has exited; the cause is Ray's error.
        """
        answers = {worker.pid.remote(): rank for rank, worker in enumerate(self.workers)}
        for reference in ray_api().wait([*answers], num_returns=len(answers), timeout=_ALIVE_S)[0]:
            self.value(answers[reference], reference)

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
        states = self.call("communication")
        if ABORTED in states:
            self.call("disconnect" if NONE in states else "reconnect")
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
        for reference in done:
            rank = pending.pop(reference)
            try:
                value, failure = self.value(rank, reference)
            except RankDied as error:
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
            raise next(iter(results.dead.values()))


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
