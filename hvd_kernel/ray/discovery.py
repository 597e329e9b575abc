"""Nodes of a Ray cluster as hosts of an elastic job: how many ranks each has room for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from hvd_kernel.ray.utils import ray_api


class Discovery(Protocol):
    """Who says which nodes there are: Horovod's ``HostDiscovery``."""

    def find_available_hosts_and_slots(self) -> Mapping[str, int]:
        """Return how many ranks each node may have, by its id or its address."""


def alive_nodes() -> list[dict[str, Any]]:
    """Return what Ray tells of the nodes that are alive."""
    return [node for node in ray_api().nodes() if node.get("Alive", node.get("alive"))]


def slots(use_gpu: bool, cpus_per_worker: float, gpus_per_worker: float) -> dict[str, int]:
    """Return for how many ranks each node has room, by its id; a node without room is left out."""
    found = {}
    for node in alive_nodes():
        resources = node["Resources"]
        room = resources.get("CPU", 0) // cpus_per_worker if cpus_per_worker else 1
        if use_gpu:
            room = min(room, resources.get("GPU", 0) // gpus_per_worker)
        if room >= 1:
            found[str(node["NodeID"])] = int(room)
    return found


def node_ids(found: Mapping[str, int], nodes: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Return the same by the ids of nodes, where some are named by their addresses or host names.

    Whoever is none of the nodes, or no more, is left out.

    >>> node_ids({"10.0.0.2": 2, "10.0.0.3": 1}, [{"NodeID": "a", "NodeManagerAddress": "10.0.0.2"}])
    {'a': 2}
    """
    named = {
        str(node[key]): str(node["NodeID"])
        for key in ("NodeManagerHostname", "NodeManagerAddress", "NodeID")
        for node in reversed(nodes)
        if key in node
    }
    return {named[name]: room for name, room in found.items() if name in named}
