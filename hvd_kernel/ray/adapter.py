"""``horovod.ray.adapter``: what both kinds of jobs on Ray have, those of a fixed number of ranks and elastic ones."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass
class BaseParams:
    """Resources of each rank.

    Raises
    ------
    ValueError
        GPUs are named, but not wanted, or fewer than one.
    """

    cpus_per_worker: int = 1
    use_gpu: bool = False
    gpus_per_worker: int | None = None

    def __post_init__(self) -> None:
        if self.gpus_per_worker and not self.use_gpu:
            raise ValueError(
                "gpus_per_worker is set, but use_gpu is False. use_gpu must be True if gpus_per_worker is set. "
            )
        if self.use_gpu and isinstance(self.gpus_per_worker, int) and self.gpus_per_worker < 1:
            raise ValueError(f"gpus_per_worker must be >= 1: Got {self.gpus_per_worker}.")
        self.gpus_per_worker = self.gpus_per_worker or int(self.use_gpu)


class Adapter(ABC):
    """One kind of job.

    ``queue``: takes what the ranks log (ray_logger.py); None: nobody wants it. ``samples``: it takes what they do, too
    (``MetricsSample``; of an elastic job ``RankLeft``).
    """

    @abstractmethod
    def start(
        self,
        executable_cls: type | None = None,
        executable_args: Sequence[Any] | None = None,
        executable_kwargs: Mapping[str, Any] | None = None,
        extra_env_vars: Mapping[str, str] | None = None,
    ) -> None:
        """Start the ranks, or what starts them."""

    @abstractmethod
    def execute(self, fn: Callable[[Any], Any], queue: Any = None, *, samples: bool = False) -> list[Any]:
        """Call ``fn(executable)`` on all ranks; return what it returned, by rank."""

    @abstractmethod
    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        queue: Any = None,
        *,
        samples: bool = False,
    ) -> list[Any]:
        """Call ``fn(*args, **kwargs)`` on all ranks; return what it returned, by rank."""

    @abstractmethod
    def run_remote(
        self, fn: Callable[..., Any], args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None
    ) -> list[Any]:
        """Begin what ``run`` does; return the references of Ray's to what comes of it."""

    @abstractmethod
    def execute_single(self, fn: Callable[[Any], Any]) -> Any:
        """Call ``fn(executable)`` on rank 0."""

    @abstractmethod
    def shutdown(self) -> None:
        """End the ranks."""
