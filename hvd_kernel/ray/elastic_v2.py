"""``horovod.ray.elastic_v2``: elastic jobs of ``RayExecutor``, whose ranks join and leave with Ray's nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NoReturn

from hvd_kernel.compat.tree.hosts import HostDiscovery
from hvd_kernel.errors import ClusterError
from hvd_kernel.launch.elastic.options import ElasticOptions
from hvd_kernel.launch.job_run import Job
from hvd_kernel.launch.run.call import pack_call
from hvd_kernel.launch.run.execution import in_processes
from hvd_kernel.ray import ray_logger
from hvd_kernel.ray.adapter import NOT_STARTED, Adapter, BaseParams
from hvd_kernel.ray.nodes import Nodes, slots
from hvd_kernel.ray.ray_logger import Forwarding

_EPHEMERAL = "ObjectRefs cannot be returned from Elastic runs as the workers are ephemeral"
_SINGLE = "Elastic mode does not support execute_single. Please use the execute method instead"


class RayHostDiscovery(HostDiscovery):
    """Discovery of all alive nodes, by id, with room for ranks with these resources."""

    def __init__(self, use_gpu: bool = False, cpus_per_worker: int = 1, gpus_per_worker: int = 1) -> None:
        self.use_gpu, self.cpus_per_worker, self.gpus_per_worker = use_gpu, cpus_per_worker, gpus_per_worker

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """Return the number of ranks that fit on each alive node."""
        return slots(self.use_gpu, self.cpus_per_worker, self.gpus_per_worker)


@dataclass
class ElasticParams(BaseParams):
    """Arguments of ``RayExecutor`` for an elastic job."""

    min_workers: int = 1
    max_workers: int | None = None
    reset_limit: int | None = None
    cooldown_range: tuple[int, int] | None = None
    elastic_timeout: int = 600
    override_discovery: bool = True

    @property
    def elastic(self) -> bool:
        """True: ranks join and leave while the job runs."""
        return True

    @property
    def adapter(self) -> Callable[..., Adapter]:
        """The adapter of elastic jobs."""
        return ElasticAdapter


class ElasticAdapter(Adapter):
    """An elastic job; the parameters are those of ``RayExecutor``."""

    def __init__(  # noqa: PLR0917 - Horovod's signature
        self,
        settings: Any,
        min_workers: int,
        max_workers: int | None = None,
        use_gpu: bool = False,
        cpus_per_worker: int = 1,
        gpus_per_worker: int | None = None,
        override_discovery: bool = True,
        reset_limit: int | None = None,
        cooldown_range: tuple[int, int] | None = None,
        elastic_timeout: int = 600,
    ) -> None:
        self.settings = settings
        if override_discovery:
            settings.discovery = RayHostDiscovery(use_gpu, cpus_per_worker, gpus_per_worker or 1)
        self.min_workers, self.max_workers = min_workers, max_workers
        self.use_gpu, self.cpus_per_worker, self.gpus_per_worker = use_gpu, cpus_per_worker, gpus_per_worker or 1
        self.reset_limit, self.cooldown_range, self.elastic_timeout = reset_limit, cooldown_range, elastic_timeout
        self._executable: tuple[type | None, Sequence[Any], Mapping[str, Any]] | None = None
        self._env: dict[str, str] = {}

    def start(
        self,
        executable_cls: type | None = None,
        executable_args: Sequence[Any] | None = None,
        executable_kwargs: Mapping[str, Any] | None = None,
        extra_env_vars: Mapping[str, str] | None = None,
    ) -> None:
        """Store the executable that each rank creates when it starts, and the environment variables."""
        self._executable = (executable_cls, tuple(executable_args or ()), dict(executable_kwargs or {}))
        self._env = {name: str(value) for name, value in (extra_env_vars or {}).items()}

    def execute(self, fn: Callable[[Any], Any], queue: Any = None, *, samples: bool = False) -> list[Any]:
        """Call ``fn(executable)`` on each rank that starts; return the values of those that finish, in rank order.

        Raises
        ------
        RankFailed
            The function raised; ``__cause__`` is its exception.
        RankDied
            A rank died after the limit of failures was reached.
        ClusterError
            There were not enough ranks, with the reason in the message; or ``start`` was not called; or the queue of
            the callbacks failed.
        """
        if self._executable is None:
            raise ClusterError(NOT_STARTED)
        cooldown_s = self.cooldown_range
        options = ElasticOptions(
            self.min_workers,
            self.min_workers,
            self.max_workers,
            by_engine=True,
            timeout_s=self.elastic_timeout,
            reset_limit=self.reset_limit,
            cooldown_s=cooldown_s,
        )
        gpus = self.gpus_per_worker * int(self.use_gpu)
        engine = Nodes(
            self.settings.discovery,
            self.max_workers,
            self.cpus_per_worker,
            gpus,
            None if cooldown_s is None else cooldown_s[0],
        )
        nics = self.settings.nics
        job = Job(
            command=[""],
            np=self.min_workers,
            env=self._env,
            network_interface=nics if isinstance(nics, str) else next(iter(nics or ()), ""),
            start_timeout_s=float(self.elastic_timeout),
            engine=engine,
        )
        call = pack_call(partial(_on_rank, fn, self._executable), (), {}, ())
        with Forwarding(queue) as forwarding:
            job = replace(job, on_logged=forwarding.put, on_sample=forwarding.show if samples else None)
            return in_processes(call, job, stdout=None, stderr=None, elastic=options)

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        queue: Any = None,
        *,
        samples: bool = False,
    ) -> list[Any]:
        """Call ``fn(*args, **kwargs)`` on each rank that starts; otherwise like ``execute``."""
        positional, named = tuple(args or ()), dict(kwargs or {})
        return self.execute(lambda _: fn(*positional, **named), queue, samples=samples)

    def run_remote(
        self, fn: Callable[..., Any], args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None
    ) -> NoReturn:
        """Raise NotImplementedError: values of ranks that may leave cannot be referenced."""
        raise NotImplementedError(_EPHEMERAL)

    def execute_single(self, fn: Callable[[Any], Any]) -> NoReturn:
        """Raise NotImplementedError: rank 0 may change while the job runs."""
        raise NotImplementedError(_SINGLE)

    def shutdown(self) -> None:
        """Require ``start`` before the next call. No rank runs: they exit at the end of ``run``."""
        self._executable = None


def _on_rank(fn: Callable[[Any], Any], executable: tuple[type | None, Sequence[Any], Mapping[str, Any]]) -> Any:
    """Create the executable and call the function with it, in the rank's process."""
    cls, args, kwargs = executable
    ray_logger.configure(ray_logger.AgentQueue())
    return fn(None if cls is None else cls(*args, **kwargs))
