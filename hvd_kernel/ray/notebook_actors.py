"""Ray as the engine of a notebook's ranks (cluster_engine.py): one actor per rank, on as few nodes as possible.

A placement group reserves the resources of all actors together, or of none. Each actor holds the agent of one rank.
An actor that is lost, or whose node is lost, is replaced, for the rank that `%hvd respawn` starts in its place.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence
from threading import Event
from typing import Any

from hvd_kernel.diagnosis.machine import CheckResult
from hvd_kernel.errors import ClusterError, UsageError
from hvd_kernel.formatting.units import plural
from hvd_kernel.launch.launchers.cluster_engine import Invitation, check_result, inspect_process, reachable
from hvd_kernel.ray.nodes import alive_nodes
from hvd_kernel.ray.utils import ray_api

_POLL_S = 0.5  # between two checks for ``cancel``
_NOT_CONNECTED = (
    "this notebook is not connected to a Ray cluster: `import ray; ray.init(address='auto')` in a cell first"
)
_FROM_OUTSIDE = (
    "this notebook is a client of Ray's (ray://), which the cluster's nodes cannot call: run it on a node, with "
    "ray.init(address='auto')"
)


def connected() -> Any:
    """Return Ray's module if this process is connected to a cluster, on one of its nodes.

    Raises
    ------
    UsageError
        It is not connected; the message has the remedy.
    """
    ray = ray_api()
    if ray.util.client.ray.is_connected():
        raise UsageError(_FROM_OUTSIDE)
    if not ray.is_initialized():
        raise UsageError(_NOT_CONNECTED)
    return ray


class Actors:
    """The engine of one cluster of ranks.

    Parameters
    ----------
    np
        Number of ranks.
    cpus, gpus
        Resources of each rank.

    Raises
    ------
    UsageError
        This process is not connected to Ray.
    """

    name = "Ray"
    hidden: tuple[str, ...] = ()

    def __init__(self, np: int, cpus: float, gpus: float) -> None:
        ray = connected()
        self.addresses: Sequence[str] = [str(ray.util.get_node_ip_address())]
        self._np, self._resources = np, {"CPU": cpus} | ({"GPU": gpus} if gpus else {})
        self._over = Event()
        self._group: Any = None
        self._actors: dict[int, Any] = {}

    def work(self, invitation: Invitation) -> None:
        """Keep an actor for each rank until the ranks' agents are released, or ``cancel``.

        Raises
        ------
        ClusterError
            An actor failed; the message is its error.
        """
        ray = ray_api()
        self._group = ray.util.placement_group([self._resources] * self._np, strategy="PACK")
        try:
            while not self._over.is_set() and not self._group.wait(_POLL_S):
                pass
            self._hold(invitation)
        finally:
            for actor in self._actors.values():
                ray.kill(actor)
            ray.util.remove_placement_group(self._group)

    def cancel(self) -> None:
        """Stop ``work``. May be called from any thread."""
        self._over.set()

    def explain(self, error: BaseException) -> str:
        """Return the message of an error of ``work``."""
        return str(error)

    def shortage(self) -> str:
        """Return a sentence with the free resources and those of each rank."""
        available = {name: count for name, count in ray_api().available_resources().items() if name in {"CPU", "GPU"}}
        return f"Ray has {available} free, and each of {plural(self._np, 'rank')} asks for {self._resources}."

    def _hold(self, invitation: Invitation) -> None:
        """Start the actors, and replace lost ones; return when all have released their agents."""
        ray, ends = ray_api(), dict[Any, int]()
        if not self._over.is_set():
            for index in range(self._np):
                self._start(index)
            places = self._places()
            devices: dict[str, list[str]] = defaultdict(list)
            for node, gpus in places.values():
                devices[node] += gpus
            for index, (node, _) in places.items():
                ends[self._actors[index].hold.remote(invitation, index, node, ",".join(devices[node]))] = index
        while ends and not self._over.is_set():
            for reference in ray.wait([*ends], num_returns=1, timeout=_POLL_S)[0]:
                index = ends.pop(reference)
                if not self._has_released_agent(reference):
                    self._start(index)
                    ends[self._actors[index].join.remote(invitation, index)] = index

    def _start(self, index: int) -> None:
        ray = ray_api()
        self._actors[index] = (
            ray.remote(_Holder)
            .options(
                num_cpus=self._resources["CPU"],
                num_gpus=self._resources.get("GPU", 0),
                scheduling_strategy=ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(
                    placement_group=self._group, placement_group_bundle_index=index
                ),
            )
            .remote()
        )

    def _places(self) -> dict[int, tuple[str, list[str]]]:
        """Return the node and the GPUs of each actor; of those that have started, after ``cancel``."""
        ray, places = ray_api(), dict[int, tuple[str, list[str]]]()
        pending = {actor.place.remote(): index for index, actor in self._actors.items()}
        while pending and not self._over.is_set():
            for reference in ray.wait([*pending], num_returns=1, timeout=_POLL_S)[0]:
                places[pending.pop(reference)] = ray.get(reference)
        return places

    def _has_released_agent(self, reference: Any) -> bool:
        """Return whether an actor has released its agent; if not, the actor or its node is lost."""
        ray = ray_api()
        try:
            ray.get(reference)
        except ray.exceptions.RayActorError:
            return False
        except ray.exceptions.RayTaskError as error:
            raise ClusterError(str(error.cause)) from error.cause
        return True


class _Holder:
    """The actor."""

    def place(self) -> tuple[str, list[str]]:
        """Return the id of this actor's node, and the GPUs that Ray has assigned to it."""
        ray = ray_api()
        return str(ray.get_runtime_context().get_node_id()), [str(gpu) for gpu in ray.get_gpu_ids()]

    def hold(self, invitation: Invitation, index: int, node: str, devices: str) -> None:
        """Hold the agent of a rank until it is released; the rank sees the GPUs of all ranks of its node."""
        os.environ["HVD_HOST"] = node
        invitation.accept(index, {"CUDA_VISIBLE_DEVICES": devices} if devices else None)

    def join(self, invitation: Invitation, index: int) -> None:
        """Like ``hold``, but in place of a lost actor: the rank sees the GPUs of this actor only."""
        node, gpus = self.place()
        self.hold(invitation, index, node, ",".join(gpus))


# Checks: ``%hvd doctor --on ray``


_ANSWER_S = 60.0


def examine() -> list[CheckResult]:
    """Check Ray, and the Python of each node."""
    try:
        ray = connected()
    except UsageError as error:
        return [CheckResult("Ray", False, "not at hand", str(error))]
    free = {name: f"{count:g}" for name, count in ray.available_resources().items() if name in {"CPU", "GPU"}}
    listed = ", ".join(f"{count} {name}{'s' * (count != '1')}" for name, count in sorted(free.items())) or "nothing"
    fix = "" if free else "stop what holds them, or add nodes: ranks of --on ray ask for HVD_ON_CPUS and HVD_ON_GPUS"
    nodes = alive_nodes()
    result = CheckResult("Ray", bool(free), f"{ray.__version__}, {plural(len(nodes), 'node')}, {listed} free", fix)
    with reachable(str(ray.util.get_node_ip_address())) as address:
        pending = {str(node["NodeManagerAddress"]): _inspect(ray, str(node["NodeID"]), address) for node in nodes}
        done = ray.wait([*pending.values()], num_returns=len(pending), timeout=_ANSWER_S)[0]
        return [result, *(_result(ray, f"node {name}", answer, done) for name, answer in sorted(pending.items()))]


def _inspect(ray: Any, node: str, address: tuple[str, int]) -> Any:
    """Start a task that inspects a node; return the reference to its answer."""
    strategy = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=False)
    return ray.remote(inspect_process).options(num_cpus=0, max_retries=0, scheduling_strategy=strategy).remote(*address)


def _result(ray: Any, name: str, reference: Any, done: list[Any]) -> CheckResult:
    if reference not in done:
        return CheckResult(name, False, f"no answer within {_ANSWER_S:g} s", "look at the node with `ray status`")
    try:
        return check_result(name, ray.get(reference))
    except Exception as error:  # noqa: BLE001 - any failure of the task is a failed check of the node
        last = str(error).strip().splitlines()[-1]
        return CheckResult(
            name, False, last, "install hvd-kernel for the Python of the nodes, the same version as here"
        )
