"""Nodes of a Ray cluster as hosts of an elastic job, with the number of ranks that fit on each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from hvd_kernel.ray.utils import ray_api


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
