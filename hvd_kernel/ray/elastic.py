"""``horovod.ray.elastic``: ``ElasticRayExecutor``, the older form of an elastic job on Ray."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hvd_kernel.compat.tree import utilities
from hvd_kernel.compat.tree.hosts import ElasticSettings
from hvd_kernel.ray import elastic_v2
from hvd_kernel.ray.runner import LATE, RayExecutor

__all__ = ["ElasticRayExecutor", "RayHostDiscovery"]


class RayHostDiscovery(elastic_v2.RayHostDiscovery):
    """Discovery of all alive nodes, with Horovod's older names of the parameters."""

    def __init__(self, use_gpu: bool = False, cpus_per_slot: int = 1, gpus_per_slot: int = 1) -> None:
        super().__init__(use_gpu, cpus_per_slot, gpus_per_slot)
        self.cpus_per_slot, self.gpus_per_slot = cpus_per_slot, gpus_per_slot


class ElasticRayExecutor:
    """An elastic job on all nodes of a Ray cluster, equivalent to ``RayExecutor(min_workers=...)``.

    Parameters
    ----------
    settings
        Settings made by ``create_settings``.
    use_gpu, cpus_per_slot, gpus_per_slot
        Resources of each rank.
    env_vars
        Environment variables of the ranks.
    override_discovery
        Use all nodes of the cluster. If False, ``settings.discovery`` lists the nodes.

    Raises
    ------
    ValueError
        ``gpus_per_slot`` is set without ``use_gpu``, or is less than one.

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
        """Return settings with the minimum and maximum number of ranks, and the limits of the job.

        ``min_np`` and ``max_np`` are deprecated names; ``kwargs`` are other settings of Horovod, accepted for
        compatibility.
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
            start_timeout=utilities.Timeout(timeout_s, message=LATE),
            key=utilities.make_secret_key(),
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
        """Allow ``run``; the ranks start with it."""
        self._executor.start(extra_env_vars=self.env_vars)

    def run(self, worker_fn: Callable[[], Any], callbacks: Sequence[Callable[[Any], Any]] | None = None) -> list[Any]:
        """Call a function that uses ``hvd.elastic.run`` on each rank; return the values of the ranks that finish.

        Parameters
        ----------
        worker_fn
            Function without arguments.
        callbacks
            Functions called in this process with each value passed to ``ray_logger.log`` while the ranks run.

        Raises
        ------
        RankFailed
            The function raised; ``__cause__`` is its exception.
        RankDied
            A rank died after the limit of failures was reached.
        ClusterError
            There were not enough ranks; the message has the reason.
        """
        return self._executor.run(worker_fn, callbacks=callbacks)
