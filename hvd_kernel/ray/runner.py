"""``horovod.ray.runner``: ``RayExecutor``, ranks that are actors of Ray, with Horovod's arguments and its errors."""

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

from hvd_kernel.compat.tree.runner.common.util import secret, timeout
from hvd_kernel.errors import ClusterError
from hvd_kernel.launch.run.in_notebook import panel
from hvd_kernel.protocol.messages import MetricsSample, RankLeft
from hvd_kernel.ray.adapter import Adapter
from hvd_kernel.ray.answers import interrupt
from hvd_kernel.ray.callbacks import Callbacks, lasting_node
from hvd_kernel.ray.elastic_v2 import ElasticParams
from hvd_kernel.ray.static import StaticAdapter, StaticParams
from hvd_kernel.ray.utils import ray_api

__all__ = ["MiniSettings", "RayExecutor", "StaticAdapter", "StaticParams"]

_LATE = (
    "Timed out waiting for {activity}. Please check connectivity between servers. You may need to increase the "
    "--start-timeout parameter if you have too many servers."
)

_INTERRUPTED_S = 60.0
"""What leads the ranks of a client may take so long to end a call; it is killed then."""


@dataclass
class MiniSettings:
    """Settings of a job on Ray.

    ``timeout_s`` and ``placement_group_timeout_s`` are how long Ray may take to start the ranks, and to find the
    resources for them; ``nics`` names network interfaces of rank 0's node that the others reach. The rest is accepted.
    """

    nics: Any = None
    verbose: int = 1
    key: bytes = field(default_factory=secret.make_secret_key, repr=False)
    ssh_port: int | None = None
    ssh_identity_file: str | None = None
    timeout_s: int = 300
    placement_group_timeout_s: int = 100
    elastic: bool = False

    @property
    def start_timeout(self) -> timeout.Timeout:
        """A deadline from now on."""
        return timeout.Timeout(self.timeout_s, message=_LATE)


class RayExecutor:
    """Ranks on a Ray cluster, for one function after the other.

    Parameters
    ----------
    settings
        Of ``create_settings``.
    num_workers
        Ranks, on as few nodes as possible; within the caller's placement group, where it has one.
    num_hosts, num_workers_per_host
        Instead: so many nodes, and ranks on each.
    cpus_per_worker, use_gpu, gpus_per_worker
        Resources of each rank.
    use_current_placement_group
        False: a placement group of its own, also where the caller runs in one.
    min_workers, max_workers
        Instead: an elastic job, which goes on with ``min_workers`` ranks and takes ``max_workers`` at most.
    reset_limit, cooldown_range, elastic_timeout
        Of an elastic job: how often the ranks may meet again; how many seconds, least and most, a place is left out
        after a failure; the longest wait for enough ranks, in seconds.
    override_discovery
        False: ``settings.discovery`` says which nodes an elastic job may use, and how many ranks on each.

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
        """Return settings, see ``MiniSettings``; ``ssh_str`` is written to ``ssh_identity_file`` where that is new."""
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
            raise ValueError(
                "`max_workers` provided without any positive `min_workers`"
                "Elastic workloads require a positive `min_workers`"
            )
        if min_workers and num_workers:
            raise ValueError(
                "Both `min_workers` and `num_workers` provided."
                "Only one of the above is allowed as workloads cannot be elastic and non-elastic."
            )
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
        """Start the ranks; of an elastic job, take note of what they are to be.

        Parameters
        ----------
        executable_cls, executable_args, executable_kwargs
            Each rank makes an object of this class, on which ``execute`` and ``execute_single`` work.
        extra_env_vars
            Variables of the ranks.

        Raises
        ------
        TimeoutError
            Ray does not have the resources in time; the text names those that there are.
        RankFailed
            The class raised on a rank, which is named; its exception is the cause.
        """
        if self.adapter is not None:
            raise ClusterError("the ranks have been started already: call shutdown() first.")
        adapter = self._adapter()
        adapter.start(executable_cls, executable_args, executable_kwargs, extra_env_vars)
        self.adapter = adapter

    def _adapter(self) -> Adapter:
        """Return the job's adapter; a client of Ray's (``ray://``) has it in an actor of the cluster."""
        kind, told = self.params.adapter, asdict(self.params)
        if ray_api().util.client.ray.is_connected():
            return RemoteAdapter(kind, self.settings, told)
        return kind(self.settings, **told)

    def execute(self, fn: Callable[[Any], Any], callbacks: Sequence[Callable[[Any], Any]] | None = None) -> list[Any]:
        """Call ``fn(executable)`` on all ranks; return what it returned, by rank. As ``run`` otherwise."""
        with self._panel() as show, Callbacks(callbacks, show) as called:
            return self._started().execute(fn, called.queue, samples=show is not None)

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        callbacks: Sequence[Callable[[Any], Any]] | None = None,
    ) -> list[Any]:
        """Call ``fn(*args, **kwargs)`` on all ranks; return what it returned, by rank.

        In a notebook a panel shows the ranks while they train.

        Parameters
        ----------
        fn, args, kwargs
            What is called; it says ``hvd.init()`` itself, as a script does.
        callbacks
            Are called in this process with each value of ``ray_logger.log``, while the ranks run.

        Raises
        ------
        RankFailed
            The function raised on a rank, which is named; its exception is the cause. The others are ended: released
            from what they wait in, or interrupted. The ranks keep their objects, and the next call works.
        RankDied
            The process of a rank has ended; the cause is Ray's error.
        """
        with self._panel() as show, Callbacks(callbacks, show) as called:
            return self._started().run(fn, args, kwargs, called.queue, samples=show is not None)

    def run_remote(
        self, fn: Callable[..., Any], args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None
    ) -> list[Any]:
        """Begin what ``run`` does; return the references of Ray's to what comes of it.

        Raises
        ------
        NotImplementedError
            The job is elastic.
        """
        return self._started().run_remote(fn, args, kwargs)

    def execute_single(self, fn: Callable[[Any], Any]) -> Any:
        """Call ``fn(executable)`` on rank 0; return what it returned.

        Raises
        ------
        NotImplementedError
            The job is elastic.
        """
        return self._started().execute_single(fn)

    def shutdown(self) -> None:
        """End the ranks, and give their resources back. Idempotent."""
        if self.adapter is not None:
            adapter, self.adapter = self.adapter, None
            adapter.shutdown()

    def _panel(self) -> AbstractContextManager[Callable[[MetricsSample | RankLeft], None] | None]:
        """Show what the ranks do, in a notebook."""
        if isinstance(self.params, ElasticParams):
            return panel(self.params.min_workers, "elastic ranks on Ray")
        np = self.params.num_workers or (self.params.num_hosts or 0) * self.params.num_workers_per_host
        return panel(np, f"{np} rank{'s' * (np != 1)} on Ray")

    def _started(self) -> Adapter:
        if self.adapter is None:
            raise ClusterError("there are no ranks: call start() first.")
        adapter: Adapter = self.adapter
        return adapter


class RemoteAdapter(Adapter):
    """An adapter in an actor: a client of Ray's is not on the cluster, and the ranks could not reach it."""

    def __init__(self, kind: Callable[..., Adapter], settings: Any, told: Mapping[str, Any]) -> None:
        ray = ray_api()
        self._node = lasting_node()  # on another one that is lost the job would be too
        at = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(self._node, soft=False)
        held = ray.remote(_Held).options(num_cpus=0, scheduling_strategy=at)
        self._actor = held.remote(kind, settings, dict(told), getattr(settings, "discovery", None))
        self._pid = ray.get(self._actor.pid.remote())

    def start(self, *args: Any, **kwargs: Any) -> None:
        """As of the adapter there."""
        self._call("start", *args, **kwargs)

    def execute(self, *args: Any, **kwargs: Any) -> list[Any]:
        """As of the adapter there."""
        return list(self._call("execute", *args, **kwargs))

    def run(self, *args: Any, **kwargs: Any) -> list[Any]:
        """As of the adapter there."""
        return list(self._call("run", *args, **kwargs))

    def run_remote(self, *args: Any, **kwargs: Any) -> list[Any]:
        """As of the adapter there."""
        return list(self._call("run_remote", *args, **kwargs))

    def execute_single(self, *args: Any, **kwargs: Any) -> Any:
        """As of the adapter there."""
        return self._call("execute_single", *args, **kwargs)

    def shutdown(self) -> None:
        """End the ranks, and the actor."""
        with suppress(ClusterError):  # it has ended, and the ranks with it
            self._call("shutdown")
        ray_api().kill(self._actor)

    def _call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        ray = ray_api()
        answer = self._actor.call.remote(method, args, kwargs)
        try:
            value, raised = ray.get(answer)
        except KeyboardInterrupt:
            interrupt([(self._node, self._pid)])
            if not ray.wait([answer], timeout=_INTERRUPTED_S)[0]:
                ray.kill(self._actor)  # the ranks end with it
            raise
        except ray.exceptions.RayActorError as error:
            said = str(error).partition("\n")[0]
            raise ClusterError(
                f"the actor that leads the ranks has ended, and they with it: {said} Call shutdown() and start() again."
            ) from error
        if raised is None:
            return value
        failure, cause = pickle.loads(raised)  # noqa: S301 - of our own actor
        raise failure from cause


class _Held:
    """The actor."""

    def __init__(self, kind: Callable[..., Adapter], settings: Any, told: dict[str, Any], discovery: Any) -> None:
        settings.discovery = discovery  # settings of an elastic job leave theirs behind when they travel
        self._adapter, self._is_busy = kind(settings, **told), False
        signal.signal(signal.SIGINT, self._interrupt)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # Ray blocks it in its workers

    def pid(self) -> int:
        """Return its process."""
        return os.getpid()

    def _interrupt(self, _number: int, _frame: FrameType | None) -> None:
        if self._is_busy:
            self._is_busy = False
            raise KeyboardInterrupt

    def call(self, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, bytes | None]:
        """Return what a method returns, and None; or None, and what it raises with its cause, which no wire keeps."""
        try:
            self._is_busy = True
            value = getattr(self._adapter, method)(*args, **kwargs)
            self._is_busy = False
        except BaseException as error:  # noqa: BLE001 - it is raised where the method was wanted
            self._is_busy = False
            return None, _packed(error)
        return value, None


def _packed(error: BaseException) -> bytes:
    try:
        packed: bytes = cloudpickle.dumps((error, error.__cause__))
    except Exception:  # noqa: BLE001 - a cause that cannot travel: its text does, in the error's
        packed = cloudpickle.dumps((error, None))
    return packed
