"""Ray as a cluster engine of an elastic job (cluster_engine.py): one actor for each place that discovery reports.

Each actor holds the agent of one rank, on the node of its place. A new node gets actors. When discovery no longer
lists a node, its ranks leave at their next commit. When a node is lost, Ray reports its actors as dead.

Terms.
  place  room for one rank on a node
"""

from __future__ import annotations

import logging
import os
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from threading import Event
from typing import Any, Protocol

from hvd_kernel.errors import ClusterError
from hvd_kernel.launch.launchers.cluster_engine import Invitation
from hvd_kernel.ray.utils import ray_api
from hvd_kernel.settings.network import addresses

SERVES_S = 60.0
"""An actor that has not failed after this time has reached the launcher: its attempts to connect take less."""

_POLL_S = 1.0  # as often as Horovod queries discovery
_FAILURES = 3  # in a row, without an actor that serves between them
_LOG = logging.getLogger("hvd_kernel")


@dataclass
class _HeldActor:
    node: str
    actor: Any
    started_s: float
    serves: bool = False
    leaves: bool = False


class Nodes:
    """The engine.

    Parameters
    ----------
    discovery
        Lists the nodes that may be used.
    most
        Maximum number of actors; None: one for each place.
    cpus, gpus
        Resources of each actor.
    cooldown_s
        Seconds before a place that the job has given up is used again; None: never.
    """

    name = "Ray"
    hidden: tuple[str, ...] = ()

    def __init__(
        self, discovery: Discovery, most: int | None, cpus: float, gpus: float, cooldown_s: float | None
    ) -> None:
        self.withdraw: Callable[[int], None] = lambda _: None
        self._discovery, self._most = discovery, most
        self._cpus, self._gpus, self._cooldown_s = cpus, gpus, cooldown_s
        outward = [address for address in addresses().values() if not address.startswith("127.")]
        self.addresses: Sequence[str] = [*dict.fromkeys([ray_api().util.get_node_ip_address(), *outward])]
        self._held: dict[Any, tuple[int, _HeldActor]] = {}  # by the reference to the result of its method
        self._given_up: dict[str, list[float]] = defaultdict(list)  # times at which places of a node were given up
        self._started = self._failures = 0
        self._over = Event()

    def work(self, invitation: Invitation) -> None:
        """Keep an actor in each place until ``cancel``.

        Raises
        ------
        ClusterError
            Three actors in a row failed before they served; the message is that of the last one.
        """
        try:
            while not self._over.is_set():
                self._compare(invitation)
                self._handle_ends()
        finally:
            for _, held in self._held.values():
                ray_api().kill(held.actor)

    def cancel(self) -> None:
        """Stop ``work``. May be called from any thread."""
        self._over.set()

    def explain(self, error: BaseException) -> str:
        """Return the message of an error of ``work``."""
        return str(error)

    def shortage(self) -> str:
        """Return a sentence with the available resources and those of each rank."""
        ray = ray_api()
        resources = {"CPU": self._cpus} | ({"GPU": self._gpus} if self._gpus else {})
        return f"Current resources available: {ray.available_resources()}, resources of each rank: {resources}."

    def _compare(self, invitation: Invitation) -> None:
        """Query discovery; withdraw actors that have no place, start one in each free place."""
        try:
            places = node_ids(self._discovery.find_available_hosts_and_slots(), alive_nodes())
        except Exception as error:  # noqa: BLE001 - the user's code: it is queried again
            _LOG.warning("the discovery of Ray's nodes has failed, and is tried again: %s", error)
            return
        by_node: dict[str, list[tuple[int, _HeldActor]]] = defaultdict(list)
        for index, held in self._held.values():
            if not held.leaves:
                by_node[held.node].append((index, held))
        for node in by_node:
            for index, held in by_node[node][places.get(node, 0) :]:
                held.leaves = True
                self.withdraw(index)
        self._fill(invitation, places)

    def _fill(self, invitation: Invitation, places: Mapping[str, int]) -> None:
        since = 0.0 if self._cooldown_s is None else time.monotonic() - self._cooldown_s
        for node, room in places.items():
            cooling_down = sum(time_s > since for time_s in self._given_up[node])
            staying = [held for _, held in self._held.values() if not held.leaves]
            occupied = sum(held.node == node for held in staying)
            free = room - cooling_down - occupied
            if self._most is not None:
                free = min(free, self._most - len(staying))
            for _ in range(free):
                self._start(invitation, node, room)

    def _start(self, invitation: Invitation, node: str, room: int) -> None:
        ray = ray_api()
        devices = ",".join(map(str, range(int(room * self._gpus))))
        strategy = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=False)
        actor = (
            ray.remote(_Holder).options(num_cpus=self._cpus, num_gpus=self._gpus, scheduling_strategy=strategy).remote()
        )
        index, self._started = self._started, self._started + 1
        held = _HeldActor(node, actor, time.monotonic())
        self._held[actor.hold.remote(invitation, index, node, devices)] = (index, held)

    def _handle_ends(self) -> None:
        """Wait for actors that end, for a moment; count failures, and places that the job has given up."""
        ray = ray_api()
        if not self._held:
            self._over.wait(_POLL_S)
            return
        ended, _ = ray.wait([*self._held], num_returns=1, timeout=_POLL_S)
        self._reset_failures()
        for reference in ended:
            _, held = self._held.pop(reference)
            try:
                ray.get(reference)
            except ray.exceptions.RayActorError:
                continue  # its node is lost, or it was killed: a new actor gets the place
            except ray.exceptions.RayTaskError as error:
                self._failures += 1
                if self._failures == _FAILURES:
                    raise ClusterError(str(error.cause)) from error.cause
                continue
            self._failures = 0
            if not held.leaves:
                self._given_up[held.node].append(time.monotonic())

    def _reset_failures(self) -> None:
        """Forget earlier failures once for each actor that serves: they were not in a row."""
        now = time.monotonic()
        for _, held in self._held.values():
            if not held.serves and now - held.started_s >= SERVES_S:
                held.serves = True
                self._failures = 0


class _Holder:
    """The actor."""

    def hold(self, invitation: Invitation, index: int, node: str, devices: str) -> None:
        """Hold the agent of a rank until the job releases it."""
        os.environ["HVD_HOST"] = node
        invitation.accept(index, {"CUDA_VISIBLE_DEVICES": devices} if devices else None)


# The nodes of the cluster as hosts, and the number of ranks that fit on each


class Discovery(Protocol):
    """Horovod's ``HostDiscovery``: lists the nodes that a job may use."""

    def find_available_hosts_and_slots(self) -> Mapping[str, int]:
        """Return the number of ranks allowed on each node, by the node's id or address."""


def alive_nodes() -> list[dict[str, Any]]:
    """Return Ray's description of each node that is alive."""
    return [node for node in ray_api().nodes() if node.get("Alive", node.get("alive"))]


def slots(use_gpu: bool, cpus_per_worker: float, gpus_per_worker: float) -> dict[str, int]:
    """Return the number of ranks that fit on each node, by id, without nodes that have no room."""
    rooms = {}
    for node in alive_nodes():
        resources = node["Resources"]
        room = resources.get("CPU", 0) // cpus_per_worker if cpus_per_worker else 1
        if use_gpu:
            room = min(room, resources.get("GPU", 0) // gpus_per_worker)
        if room >= 1:
            rooms[str(node["NodeID"])] = int(room)
    return rooms


def node_ids(hosts: Mapping[str, int], nodes: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Return ``hosts`` by node id; its keys may be ids, addresses or host names. Unknown and dead nodes are left out.

    >>> node_ids({"10.0.0.2": 2, "10.0.0.3": 1}, [{"NodeID": "a", "NodeManagerAddress": "10.0.0.2"}])
    {'a': 2}
    """
    ids = {
        str(node[key]): str(node["NodeID"])
        for key in ("NodeManagerHostname", "NodeManagerAddress", "NodeID")
        for node in reversed(nodes)
        if key in node
    }
    return {ids[name]: room for name, room in hosts.items() if name in ids}
