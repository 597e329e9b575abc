"""``horovod.ray.adapter``: the common interface of jobs on Ray, with a fixed number of ranks or elastic."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

NOT_STARTED = "there are no ranks: call start() first."
STARTED = "the ranks have been started already: call shutdown() first."


@dataclass
class BaseParams:
    """Resources of each rank.

    Raises
    ------
    ValueError
        ``gpus_per_worker`` is set without ``use_gpu``, or is less than one.
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
    """Interface of a job on Ray.

    ``queue`` receives the values that ranks log (ray_logger.py); None discards them. With ``samples`` it also receives
    the ranks' activity (``MetricsSample``, in an elastic job also ``RankLeft``).
    """

    @abstractmethod
    def start(
        self,
        executable_cls: type | None = None,
        executable_args: Sequence[Any] | None = None,
        executable_kwargs: Mapping[str, Any] | None = None,
        extra_env_vars: Mapping[str, str] | None = None,
    ) -> None:
        """Start the ranks; in an elastic job, store what ``execute`` needs to start them."""

    @abstractmethod
    def execute(self, fn: Callable[[Any], Any], queue: Any = None, *, samples: bool = False) -> list[Any]:
        """Call ``fn(executable)`` on all ranks; return its values in rank order."""

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
        """Call ``fn(*args, **kwargs)`` on all ranks; return its values in rank order."""

    @abstractmethod
    def run_remote(
        self, fn: Callable[..., Any], args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None
    ) -> list[Any]:
        """Call ``fn`` on all ranks like ``run``, without waiting; return Ray's references to the values."""

    @abstractmethod
    def execute_single(self, fn: Callable[[Any], Any]) -> Any:
        """Call ``fn(executable)`` on rank 0."""

    @abstractmethod
    def shutdown(self) -> None:
        """Stop the ranks."""
