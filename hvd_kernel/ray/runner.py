"""``horovod.ray.runner``: ``RayExecutor`` runs ranks as Ray actors, with Horovod's arguments and errors."""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import cloudpickle

from hvd_kernel.compat.tree import utilities
from hvd_kernel.errors import ClusterError
from hvd_kernel.formatting.units import plural
from hvd_kernel.launch.run.execution import panel
from hvd_kernel.protocol.messages import MetricsSample, RankLeft
from hvd_kernel.ray.adapter import NOT_STARTED, STARTED, Adapter
from hvd_kernel.ray.elastic_v2 import ElasticParams
from hvd_kernel.ray.ray_logger import Callbacks, lasting_node
from hvd_kernel.ray.static import StaticAdapter, StaticParams, interrupt
from hvd_kernel.ray.utils import ray_api, reason_of

__all__ = ["MiniSettings", "RayExecutor", "StaticAdapter", "StaticParams"]

LATE = (
    "Timed out waiting for {activity}. Please check connectivity between servers. You may need to increase the "
    "--start-timeout parameter if you have too many servers."
)
MAX_WITHOUT_MIN = (
    "`max_workers` provided without any positive `min_workers`. Elastic workloads require a positive `min_workers`"
)
ELASTIC_AND_STATIC = (
    "Both `min_workers` and `num_workers` provided. "
    "Only one of the above is allowed as workloads cannot be elastic and non-elastic"
)

CONTROLLER_DIED = (
    "the actor that controls the ranks has ended, and the ranks with it: {reason} Call shutdown() and start() again."
)

_INTERRUPTED_S = 60.0
"""Time for the actor that holds a client's adapter to finish an interrupted call before it is killed."""


@dataclass
class MiniSettings:
    """Settings of a job on Ray.

    ``timeout_s`` and ``placement_group_timeout_s`` limit the time in which Ray starts the ranks and reserves their
    resources; ``nics`` names network interfaces of rank 0's node that other nodes can reach. The other settings have
    no effect.
    """

    nics: Any = None
    verbose: int = 1
    key: bytes = field(default_factory=utilities.make_secret_key, repr=False)
    ssh_port: int | None = None
    ssh_identity_file: str | None = None
    timeout_s: int = 300
    placement_group_timeout_s: int = 100
    elastic: bool = False

    @property
    def start_timeout(self) -> utilities.Timeout:
        """A deadline that starts now."""
        return utilities.Timeout(self.timeout_s, message=LATE)


class RayExecutor:
    """Ranks on a Ray cluster that run one function after another.

    Parameters
    ----------
    settings
        Settings made by ``create_settings``.
    num_workers
        Number of ranks, on as few nodes as possible; inside the caller's placement group if there is one.
    num_hosts, num_workers_per_host
        Instead of ``num_workers``: number of nodes, and of ranks on each node.
    cpus_per_worker, use_gpu, gpus_per_worker
        Resources of each rank.
    use_current_placement_group
        Use the caller's placement group if there is one. If False, always create one.
    min_workers, max_workers
        Instead of ``num_workers``: minimum and maximum number of ranks of an elastic job.
    reset_limit, cooldown_range, elastic_timeout
        For an elastic job: maximum number of resets; minimum and maximum number of seconds in which a place is not
        used after a failure; maximum wait for enough ranks, in seconds.
    override_discovery
        Use all nodes of the cluster. If False, ``settings.discovery`` lists the nodes of an elastic job, and the
        number of ranks on each.

    Raises
    ------
    ValueError
        The arguments contradict each other.

    Examples
    --------
    On a Ray cluster::

        executor = RayExecutor(RayExecutor.create_settings(), num_workers=4)
        executor.start()
        losses = executor.run(train, args=(0.1,))
        executor.shutdown()
    """

    @classmethod
    def create_settings(
        cls,
        timeout_s: int = 30,
        ssh_identity_file: str | None = None,
        ssh_str: str | None = None,
        placement_group_timeout_s: int = 100,
        nics: Any = None,
    ) -> MiniSettings:
        """Return ``MiniSettings``; write ``ssh_str`` to ``ssh_identity_file`` unless that file exists."""
        if ssh_str and ssh_identity_file and not Path(ssh_identity_file).exists():
            with os.fdopen(os.open(ssh_identity_file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:
                file.write(ssh_str)
        return MiniSettings(
            ssh_identity_file=ssh_identity_file,
            timeout_s=timeout_s,
            placement_group_timeout_s=placement_group_timeout_s,
            nics=nics,
        )

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
        min_workers: int | None = None,
        max_workers: int | None = None,
        reset_limit: int | None = None,
        cooldown_range: Sequence[int] | None = None,
        elastic_timeout: int = 600,
        override_discovery: bool = True,
    ) -> None:
        if max_workers and (not min_workers or min_workers <= 0):
            raise ValueError(MAX_WITHOUT_MIN)
        if min_workers and num_workers:
            raise ValueError(ELASTIC_AND_STATIC)
        self.params: ElasticParams | StaticParams
        if min_workers is not None:
            self.params = ElasticParams(
                cpus_per_worker,
                use_gpu,
                gpus_per_worker,
                min_workers=min_workers,
                max_workers=max_workers,
                reset_limit=reset_limit,
                cooldown_range=None if cooldown_range is None else (cooldown_range[0], cooldown_range[1]),
                elastic_timeout=elastic_timeout,
                override_discovery=override_discovery,
            )
        else:
            self.params = StaticParams(
                cpus_per_worker,
                use_gpu,
                gpus_per_worker,
                num_workers=num_workers,
                num_hosts=num_hosts,
                num_workers_per_host=num_workers_per_host,
                use_current_placement_group=use_current_placement_group,
            )
        self.settings = settings
        self.settings.elastic = self.params.elastic
        self.adapter: Any = None

    def start(
        self,
        executable_cls: type | None = None,
        executable_args: Sequence[Any] | None = None,
        executable_kwargs: Mapping[str, Any] | None = None,
        extra_env_vars: Mapping[str, str] | None = None,
    ) -> None:
        """Start the ranks; for an elastic job, store the arguments for ``run``.

        Parameters
        ----------
        executable_cls, executable_args, executable_kwargs
            Class and arguments of the object that each rank creates, which ``execute`` and ``execute_single`` pass to
            the function.
        extra_env_vars
            Environment variables of the ranks.

        Raises
        ------
        TimeoutError
            Ray did not provide the resources in time; the message lists the available ones.
        RankFailed
            The class raised on a rank; the error names the rank, and its cause is the exception.
        """
        if self.adapter is not None:
            raise ClusterError(STARTED)
        adapter = self._adapter()
        adapter.start(executable_cls, executable_args, executable_kwargs, extra_env_vars)
        self.adapter = adapter

    def _adapter(self) -> Adapter:
        """Return the job's adapter; for a client of Ray (``ray://``) it is in an actor of the cluster."""
        adapter, params = self.params.adapter, asdict(self.params)
        if ray_api().util.client.ray.is_connected():
            return RemoteAdapter(adapter, self.settings, params)
        return adapter(self.settings, **params)

    def execute(self, fn: Callable[[Any], Any], callbacks: Sequence[Callable[[Any], Any]] | None = None) -> list[Any]:
        """Call ``fn(executable)`` on all ranks; return its values in rank order. Otherwise like ``run``."""
        with self._panel() as show, Callbacks(callbacks, show) as called:
            return self._started().execute(fn, called.queue, samples=show is not None)

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        callbacks: Sequence[Callable[[Any], Any]] | None = None,
    ) -> list[Any]:
        """Call ``fn(*args, **kwargs)`` on all ranks; return its values in rank order.

        In a notebook a panel shows the ranks while they train.

        Parameters
        ----------
        fn, args, kwargs
            Function and its arguments. The function calls ``hvd.init()``, as a script does.
        callbacks
            Functions called in this process with each value passed to ``ray_logger.log`` while the ranks run.

        Raises
        ------
        RankFailed
            The function raised on a rank; the error names the rank, and its cause is the exception. The function is
            stopped on the other ranks: their collective operations fail, or they are interrupted. The ranks keep their
            objects, and the next call works.
        RankDied
            The process of a rank has exited; the cause is Ray's error.
        """
        with self._panel() as show, Callbacks(callbacks, show) as called:
            return self._started().run(fn, args, kwargs, called.queue, samples=show is not None)

    def run_remote(
        self, fn: Callable[..., Any], args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None
    ) -> list[Any]:
        """Call ``fn`` on all ranks like ``run``, without waiting; return Ray's references to the values.

        Raises
        ------
        NotImplementedError
            The job is elastic.
        RankDied
            The process of a rank has exited before the call; the cause is Ray's error. A later death is raised by
            ``ray.get``, as Ray's error.
        """
        return self._started().run_remote(fn, args, kwargs)

    def execute_single(self, fn: Callable[[Any], Any]) -> Any:
        """Call ``fn(executable)`` on rank 0; return its value.

        Raises
        ------
        NotImplementedError
            The job is elastic.
        RankDied
            The process of rank 0 has exited; the cause is Ray's error.
        """
        return self._started().execute_single(fn)

    def shutdown(self) -> None:
        """Stop the ranks and release their resources. Idempotent."""
        if self.adapter is not None:
            adapter, self.adapter = self.adapter, None
            adapter.shutdown()

    def _panel(self) -> AbstractContextManager[Callable[[MetricsSample | RankLeft], None] | None]:
        """Show a panel of the ranks in a notebook."""
        if isinstance(self.params, ElasticParams):
            return panel(self.params.min_workers, "elastic ranks on Ray")
        np = self.params.num_workers or (self.params.num_hosts or 0) * self.params.num_workers_per_host
        return panel(np, f"{plural(np, 'rank')} on Ray")

    def _started(self) -> Adapter:
        if self.adapter is None:
            raise ClusterError(NOT_STARTED)
        adapter: Adapter = self.adapter
        return adapter


class RemoteAdapter(Adapter):
    """An adapter in an actor, for a client of Ray: the client is outside the cluster, where ranks cannot reach it."""

    def __init__(self, adapter: Callable[..., Adapter], settings: Any, params: Mapping[str, Any]) -> None:
        ray = ray_api()
        self._node = lasting_node()  # the job would be lost with any other node
        strategy = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(self._node, soft=False)
        actor = ray.remote(_AdapterActor).options(num_cpus=0, scheduling_strategy=strategy)
        self._actor = actor.remote(adapter, settings, dict(params), getattr(settings, "discovery", None))
        self._pid = self._get(self._actor.pid.remote())

    def start(self, *args: Any, **kwargs: Any) -> None:
        """Call the adapter's method."""
        self._call("start", *args, **kwargs)

    def execute(self, *args: Any, **kwargs: Any) -> list[Any]:
        """Call the adapter's method."""
        return list(self._call("execute", *args, **kwargs))

    def run(self, *args: Any, **kwargs: Any) -> list[Any]:
        """Call the adapter's method."""
        return list(self._call("run", *args, **kwargs))

    def run_remote(self, *args: Any, **kwargs: Any) -> list[Any]:
        """Call the adapter's method."""
        return list(self._call("run_remote", *args, **kwargs))

    def execute_single(self, *args: Any, **kwargs: Any) -> Any:
        """Call the adapter's method."""
        return self._call("execute_single", *args, **kwargs)

    def shutdown(self) -> None:
        """Stop the ranks and the actor."""
        with suppress(ClusterError):  # the actor has exited, and the ranks with it
            self._call("shutdown")
        ray_api().kill(self._actor)

    def _call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        ray = ray_api()
        answer = self._actor.call.remote(method, args, kwargs)
        try:
            value, raised = self._get(answer)
        except KeyboardInterrupt:
            interrupt([(self._node, self._pid)])
            if not ray.wait([answer], timeout=_INTERRUPTED_S)[0]:
                ray.kill(self._actor)  # the ranks exit with it
            raise
        if raised is None:
            return value
        failure, cause = pickle.loads(raised)  # noqa: S301 - of our own actor
        raise failure from cause

    def _get(self, reference: Any) -> Any:
        ray = ray_api()
        try:
            return ray.get(reference)
        except ray.exceptions.RayActorError as error:
            raise ClusterError(CONTROLLER_DIED.format(reason=reason_of(error))) from error


class _AdapterActor:
    """The actor that holds an adapter."""

    def __init__(self, adapter: Callable[..., Adapter], settings: Any, params: dict[str, Any], discovery: Any) -> None:
        settings.discovery = discovery  # pickled settings of an elastic job do not contain it
        self._adapter, self._is_busy = adapter(settings, **params), False
        signal.signal(signal.SIGINT, self._interrupt)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # Ray blocks it in its workers

    def pid(self) -> int:
        """Return the process id of the actor."""
        return os.getpid()

    def _interrupt(self, _number: int, _frame: FrameType | None) -> None:
        if self._is_busy:
            self._is_busy = False
            raise KeyboardInterrupt

    def call(self, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, bytes | None]:
        """Call a method of the adapter; return its value and None, or None and the pickled error with its cause.

        Ray's own pickle of an error drops the cause.
        """
        try:
            self._is_busy = True
            value = getattr(self._adapter, method)(*args, **kwargs)
            self._is_busy = False
        except BaseException as error:  # noqa: BLE001 - raised in the client
            self._is_busy = False
            return None, _packed(error)
        return value, None


def _packed(error: BaseException) -> bytes:
    try:
        packed: bytes = cloudpickle.dumps((error, error.__cause__))
    except Exception:  # noqa: BLE001 - the cause cannot be pickled; the error's message contains its text
        packed = cloudpickle.dumps((error, None))
    return packed
