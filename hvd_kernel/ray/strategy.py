"""``horovod.ray.strategy``: placement of the ranks' actors on the nodes of a Ray cluster.

Terms.
  bundle  resources on one node, reserved by a placement group
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from hvd_kernel.ray.utils import map_blocking, ray_api
from hvd_kernel.ray.worker import BaseHorovodWorker

logger = logging.getLogger("hvd_kernel")


def create_placement_group(
    resources_per_bundle: Mapping[str, float], num_bundles: int, pg_timeout: float, pg_strategy: str
) -> tuple[Any, list[dict[str, float]]]:
    """Create a placement group and wait until it is ready; return it and its bundles.

    Raises
    ------
    TimeoutError
        Ray did not provide the resources within ``pg_timeout`` seconds.
    """
    ray = ray_api()
    bundles = [dict(resources_per_bundle) for _ in range(num_bundles)]
    group = ray.util.placement_group(bundles, strategy=pg_strategy)
    if not group.wait(pg_timeout):
        available = ray.available_resources()
        ray.util.remove_placement_group(group)
        raise TimeoutError(
            "Placement group creation timed out. Make sure your cluster either has enough resources or use an "
            f"autoscaling cluster. Current resources available: {available}, resources requested by the placement "
            f"group: {bundles}"
        )
    return group, bundles


class BaseStrategy:
    """Interface of a placement strategy."""

    placement_group: Any = None
    workers: list[Any]

    def __init__(self, settings: Any, use_gpu: bool, cpus_per_worker: float, gpus_per_worker: float | None) -> None:
        self.settings = settings
        self.use_gpu, self.cpus_per_worker, self.gpus_per_worker = use_gpu, cpus_per_worker, gpus_per_worker or 1
        self.workers = []

    @property
    def num_workers(self) -> int:
        """The number of ranks."""
        raise NotImplementedError

    def create_workers(self) -> tuple[list[Any], list[Any]]:
        """Start the actors; return all of them, and the first of each node."""
        raise NotImplementedError

    def _resources(self, workers: int) -> dict[str, float]:
        gpus = self.gpus_per_worker * workers * int(self.use_gpu)
        return {"CPU": self.cpus_per_worker * workers} | ({"GPU": gpus} if gpus else {})

    def _start(self, bundles: Sequence[int]) -> tuple[list[Any], list[Any]]:
        """Start an actor in each bundle of the list, which may contain duplicates; -1 is any bundle."""
        ray = ray_api()
        remote = ray.remote(BaseHorovodWorker)
        self.workers = [
            remote.options(
                num_cpus=self.cpus_per_worker,
                num_gpus=self.gpus_per_worker * int(self.use_gpu),
                scheduling_strategy=ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(
                    placement_group=self.placement_group,
                    placement_group_bundle_index=bundle,
                    placement_group_capture_child_tasks=False,
                ),
            ).remote(world_rank=rank, world_size=len(bundles))
            for rank, bundle in enumerate(bundles)
        ]
        nodes = self._nodes()
        if self.use_gpu:
            self._show_devices(nodes)
        first = [rank for rank, node in enumerate(nodes) if nodes.index(node) == rank]
        return self.workers, [self.workers[rank] for rank in first]

    def _nodes(self) -> list[str]:
        """Wait until all actors have started; return the node of each."""
        ray = ray_api()
        timeout_s = self.settings.timeout_s
        try:
            nodes: list[str] = ray.get([worker.node_id.remote() for worker in self.workers], timeout=timeout_s)
        except ray.exceptions.GetTimeoutError:
            raise TimeoutError(
                f"Timed out waiting for Ray to start the ranks: not all of {len(self.workers)} are up after "
                f"{timeout_s:g} s. Current resources available: {ray.available_resources()}, resources of each rank: "
                f"{self._resources(1)}. Lower the number of ranks, or raise timeout_s of the settings."
            ) from None
        return nodes

    def _show_devices(self, nodes: Sequence[str]) -> None:
        """Show each rank the GPUs of all ranks of its node: ranks map memory of their peers; local_rank selects."""
        devices: dict[str, list[str]] = defaultdict(list)
        for node, gpus in zip(
            nodes, map_blocking(lambda worker: worker.get_gpu_ids.remote(), self.workers), strict=True
        ):
            devices[node] += map(str, gpus)
        shown = {node: {"CUDA_VISIBLE_DEVICES": ",".join(gpus)} for node, gpus in devices.items()}
        ray_api().get(
            [worker.update_env_vars.remote(shown[node]) for node, worker in zip(nodes, self.workers, strict=True)]
        )

    def shutdown(self) -> None:
        """Release the resources."""
        if self.placement_group is not None:
            ray_api().util.remove_placement_group(self.placement_group)
        self.workers, self.placement_group = [], None


class ColocatedStrategy(BaseStrategy):
    """Places the same number of ranks on each of a number of nodes.

    Parameters
    ----------
    settings
        Object with ``timeout_s`` and ``placement_group_timeout_s``.
    num_hosts, num_workers_per_host
        Number of nodes, and of ranks on each.
    use_gpu, cpus_per_worker, gpus_per_worker
        Resources of each rank.
    """

    def __init__(
        self,
        *,
        settings: Any,
        num_hosts: int,
        num_workers_per_host: int,
        use_gpu: bool,
        cpus_per_worker: float,
        gpus_per_worker: float | None,
    ) -> None:
        super().__init__(settings, use_gpu, cpus_per_worker, gpus_per_worker)
        self.num_hosts, self.num_workers_per_host = num_hosts, num_workers_per_host

    @property
    def num_workers(self) -> int:
        """The number of ranks."""
        return self.num_hosts * self.num_workers_per_host

    def create_workers(self) -> tuple[list[Any], list[Any]]:
        """Start the actors, in the order of nodes; return all of them, and the first of each node.

        Raises
        ------
        TimeoutError
            Ray did not provide the resources in time.
        """
        self.placement_group, _ = create_placement_group(
            self._resources(self.num_workers_per_host),
            self.num_hosts,
            self.settings.placement_group_timeout_s,
            "STRICT_SPREAD",
        )
        return self._start([rank // self.num_workers_per_host for rank in range(self.num_workers)])


class PGStrategy(BaseStrategy):
    """Places ranks on as few nodes as possible; inside the caller's placement group if there is one.

    Parameters
    ----------
    settings, use_gpu, cpus_per_worker, gpus_per_worker
        See ``ColocatedStrategy``.
    num_workers
        Number of ranks.
    placement_group
        Placement group to use; None: the caller's.
    force_create_placement_group
        Create a placement group even if there is one.
    """

    def __init__(
        self,
        *,
        settings: Any,
        num_workers: int,
        use_gpu: bool,
        cpus_per_worker: float,
        gpus_per_worker: float | None,
        placement_group: Any = None,
        force_create_placement_group: bool = False,
    ) -> None:
        super().__init__(settings, use_gpu, cpus_per_worker, gpus_per_worker)
        self._num_workers = num_workers
        if not force_create_placement_group:
            self.placement_group = placement_group or current_placement_group()
        self._created_placement_group = False

    @property
    def num_workers(self) -> int:
        """The number of ranks."""
        return int(self._num_workers)

    def create_workers(self) -> tuple[list[Any], list[Any]]:
        """Start the actors; return all of them, and the first of each node.

        Raises
        ------
        TimeoutError
            Ray did not provide the resources in time.
        """
        if self.placement_group is None:
            self.placement_group, _ = create_placement_group(
                self._resources(1), self.num_workers, self.settings.placement_group_timeout_s, "PACK"
            )
            self._created_placement_group = True
        return self._start(range(self.num_workers) if self._created_placement_group else [-1] * self.num_workers)

    def shutdown(self) -> None:
        """Release the resources; keep the placement group if it is the caller's."""
        if not self._created_placement_group:
            self.placement_group = None
        super().shutdown()


def current_placement_group() -> Any:
    """Return the placement group in which the caller runs, or None."""
    return ray_api().util.get_current_placement_group()
