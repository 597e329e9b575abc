"""``horovod.ray.elastic``: ``ElasticRayExecutor``, the older form of an elastic job on Ray."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hvd_kernel.compat.tree.runner.common.util import secret, timeout
from hvd_kernel.compat.tree.runner.elastic.discovery import HostDiscovery
from hvd_kernel.compat.tree.runner.elastic.settings import ElasticSettings
from hvd_kernel.ray.discovery import slots
from hvd_kernel.ray.runner import RayExecutor

__all__ = ["ElasticRayExecutor", "RayHostDiscovery"]

_LATE = (
    "Timed out waiting for {activity}. Please check connectivity between servers. You may need to increase the "
    "--start-timeout parameter if you have too many servers."
)


class RayHostDiscovery(HostDiscovery):
    """Ray's nodes, by their ids, with room for ranks of these resources."""

    def __init__(self, use_gpu: bool = False, cpus_per_slot: int = 1, gpus_per_slot: int = 1) -> None:
        self.use_gpu, self.cpus_per_slot, self.gpus_per_slot = use_gpu, cpus_per_slot, gpus_per_slot

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """Return how many ranks each node that is alive has room for."""
        return slots(self.use_gpu, self.cpus_per_slot, self.gpus_per_slot)


class ElasticRayExecutor:
    """An elastic job on all of a Ray cluster; ``RayExecutor(min_workers=...)`` is the same.

    Parameters
    ----------
    settings
        Of ``create_settings``.
    use_gpu, cpus_per_slot, gpus_per_slot
        Resources of each rank.
    env_vars
        Variables of the ranks.
    override_discovery
        False: ``settings.discovery`` says which nodes there are.

    Raises
    ------
    ValueError
        GPUs are named, but not wanted, or fewer than one.

    Examples
    --------
    On a Ray cluster::

        executor = ElasticRayExecutor(ElasticRayExecutor.create_settings(min_num_proc=2))
        executor.start()
        losses = executor.run(train)
    """

    @staticmethod
    def create_settings(  # noqa: PLR0917 - Horovod's signature
        min_num_proc: int = 1,
        max_num_proc: int | None = None,
        reset_limit: int | None = None,
        elastic_timeout: int = 600,
        timeout_s: int = 30,
        ssh_identity_file: str | None = None,
        nics: Any = None,
        min_np: int | None = None,
        max_np: int | None = None,
        **kwargs: Any,
    ) -> ElasticSettings:
        """Return settings: of how many ranks the job goes on, how many it takes at most, and its limits.

        ``min_np`` and ``max_np`` are older names; ``kwargs`` are other settings of Horovod's, which are accepted.
        """
        if min_np is not None:
            warnings.warn("min_np is deprecated, use min_num_proc instead", DeprecationWarning, stacklevel=2)
            min_num_proc = min_np if min_num_proc == 1 else min_num_proc
        if max_np is not None:
            warnings.warn("max_np is deprecated, use max_num_proc instead", DeprecationWarning, stacklevel=2)
            max_num_proc = max_np if max_num_proc is None else max_num_proc
        return ElasticSettings(
            discovery=None,
            min_num_proc=min_num_proc,
            max_num_proc=max_num_proc,
            elastic_timeout=elastic_timeout,
            reset_limit=reset_limit,
            num_proc=min_num_proc,
            ssh_identity_file=ssh_identity_file or str(Path("~/ray_bootstrap_key.pem").expanduser()),
            nics=nics,
            start_timeout=timeout.Timeout(timeout_s, message=_LATE),
            key=secret.make_secret_key(),
            **kwargs,
        )

    def __init__(  # noqa: PLR0917 - Horovod's signature
        self,
        settings: Any,
        use_gpu: bool = False,
        cpus_per_slot: int = 1,
        gpus_per_slot: int | None = None,
        env_vars: Mapping[str, str] | None = None,
        override_discovery: bool = True,
    ) -> None:
        if gpus_per_slot and not use_gpu:
            raise ValueError(
                "gpus_per_slot is set, but use_gpu is False. use_gpu must be True if gpus_per_slot is set. "
            )
        gpus_per_slot = gpus_per_slot or int(use_gpu)
        if use_gpu and gpus_per_slot < 1:
            raise ValueError(f"gpus_per_slot must be >= 1: Got {gpus_per_slot}.")
        if override_discovery:
            settings.discovery = RayHostDiscovery(use_gpu, cpus_per_slot, gpus_per_slot or 1)
        self.settings, self.env_vars = settings, dict(env_vars or {})
        self._executor = RayExecutor(
            settings,
            cpus_per_worker=cpus_per_slot,
            use_gpu=use_gpu,
            gpus_per_worker=gpus_per_slot or None,
            min_workers=settings.min_num_proc,
            max_workers=settings.max_num_proc,
            reset_limit=settings.reset_limit,
            cooldown_range=settings.cooldown_range,
            elastic_timeout=settings.elastic_timeout,
            override_discovery=False,
        )

    def start(self) -> None:
        """Take note that ``run`` may begin."""
        self._executor.start(extra_env_vars=self.env_vars)

    def run(self, worker_fn: Callable[[], Any], callbacks: Sequence[Callable[[Any], Any]] | None = None) -> list[Any]:
        """Call a function for ``hvd.elastic.run`` on each rank that comes; return what those of the end returned.

        Parameters
        ----------
        worker_fn
            What is called, without arguments.
        callbacks
            Are called in this process with each value of ``ray_logger.log``, while the ranks run.

        Raises
        ------
        RankFailed
            The function raised; ``__cause__`` is its exception.
        RankDied
            A rank ended, and there were too many of these.
        ClusterError
            There were not enough ranks, and why.
        """
        return self._executor.run(worker_fn, callbacks=callbacks)
