"""Ray as a cluster engine of an elastic job (cluster_engine.py): an actor for each place that discovery finds.

Each actor holds the agent of one rank, on the node of its place. A node that comes gets actors; one that discovery
names no more is left by its ranks at their next commit; of one that is lost Ray says so, and its ranks are.

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
from typing import Any

from hvd_kernel.errors import ClusterError
from hvd_kernel.launch.launchers.cluster_engine import Invitation
from hvd_kernel.ray.discovery import Discovery, alive_nodes, node_ids
from hvd_kernel.ray.utils import ray_api
from hvd_kernel.settings.network import addresses

_LOOK_S = 1.0  # between two looks at the nodes, as Horovod has it
_FAILURES = 3  # actors one after the other that cannot serve
_LOG = logging.getLogger("hvd_kernel")


@dataclass
class _Held:
    node: str
    actor: Any
    leaves: bool = False


class Nodes:
    """The engine.

    Parameters
    ----------
    discovery
        Says which nodes there are.
    most
        Actors there may be; None: as many as discovery finds places.
    cpus, gpus
        Resources of each.
    cooldown_s
        A place that the job has given up is left out for so long; None: for good.
    """

    name = "Ray"
    hidden: tuple[str, ...] = ()

    def __init__(
        self, discovery: Discovery, most: int | None, cpus: float, gpus: float, cooldown_s: float | None
    ) -> None:
        self.withdraw: Callable[[int], None] = lambda _: None
        self._discovery, self._most = discovery, most
        self._cpus, self._gpus, self._cooldown_s = cpus, gpus, cooldown_s
        outward = [own for own in addresses().values() if not own.startswith("127.")]
        self.addresses: Sequence[str] = [*dict.fromkeys([ray_api().util.get_node_ip_address(), *outward])]
        self._held: dict[Any, tuple[int, _Held]] = {}  # by the reference to its end
        self._given_up: dict[str, list[float]] = defaultdict(list)  # when places of a node were
        self._started = self._failed = 0
        self._over = Event()

    def work(self, invitation: Invitation) -> None:
        """Have an actor in each place, until ``cancel``.

        Raises
        ------
        ClusterError
            Actors cannot serve, and why.
        """
        try:
            while not self._over.is_set():
                self._look(invitation)
                self._see_ends()
        finally:
            for _, held in self._held.values():
                ray_api().kill(held.actor)

    def cancel(self) -> None:
        """Have ``work`` end. Any thread."""
        self._over.set()

    def explain(self, error: BaseException) -> str:
        """Return what an error of ``work`` says."""
        return str(error)

    def shortage(self) -> str:
        """Say what Ray has."""
        ray = ray_api()
        wanted = {"CPU": self._cpus} | ({"GPU": self._gpus} if self._gpus else {})
        return f"Current resources available: {ray.available_resources()}, resources of each rank: {wanted}."

    def _look(self, invitation: Invitation) -> None:
        """Compare places and actors."""
        try:
            places = node_ids(self._discovery.find_available_hosts_and_slots(), alive_nodes())
        except Exception as error:  # noqa: BLE001 - the user's code: the next answer counts
            _LOG.warning("the discovery of Ray's nodes has failed, and is tried again: %s", error)
            return
        by_node: dict[str, list[tuple[int, _Held]]] = defaultdict(list)
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
            out = sum(when > since for when in self._given_up[node])
            staying = [held for _, held in self._held.values() if not held.leaves]
            there = sum(held.node == node for held in staying)
            free = room - out - there
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
        self._held[actor.hold.remote(invitation, index, node, devices)] = (index, _Held(node, actor))

    def _see_ends(self) -> None:
        ray = ray_api()
        if not self._held:
            self._over.wait(_LOOK_S)
            return
        ended, _ = ray.wait([*self._held], num_returns=1, timeout=_LOOK_S)
        for reference in ended:
            _, held = self._held.pop(reference)
            try:
                ray.get(reference)
            except ray.exceptions.RayActorError:
                continue  # its node is lost, or it was killed: another one takes the place
            except ray.exceptions.RayTaskError as error:
                self._failed += 1
                if self._failed == _FAILURES:
                    raise ClusterError(str(error.cause)) from error.cause
                continue
            if not held.leaves:
                self._given_up[held.node].append(time.monotonic())


class _Holder:
    """The actor."""

    def hold(self, invitation: Invitation, index: int, node: str, devices: str) -> None:
        """Bring a rank, until the job lets it go."""
        os.environ["HVD_HOST"] = node
        invitation.accept(index, {"CUDA_VISIBLE_DEVICES": devices} if devices else None)
