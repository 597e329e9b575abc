"""Start orders for the agents of an elastic job, and the rendezvous of each generation."""

from __future__ import annotations

import os
import secrets
from collections import Counter
from collections.abc import Sequence

import msgspec

from hvd_kernel.compat import rank_environment
from hvd_kernel.launch import environment
from hvd_kernel.launch.elastic.assignment import Assigned
from hvd_kernel.launch.elastic.events import Action, SendTo
from hvd_kernel.launch.elastic.job.workers import WorkerProcess, Workers
from hvd_kernel.launch.job_run import Job
from hvd_kernel.launch.placement import Host
from hvd_kernel.processes.channel.messages import RankPlan, StartRanks
from hvd_kernel.protocol import elastic
from hvd_kernel.settings.launchers import without_launchers

_COMMON = {
    elastic.VARIABLE: "1",
    "HOROVOD_ELASTIC": "1",
    "HOROVOD_CONTROLLER": "gloo",
    "HOROVOD_CPU_OPERATIONS": "gloo",
    "PYTHONUNBUFFERED": "1",
    "PYTHONFAULTHANDLER": "1",  # a worker that crashes in C prints its Python stack
}
_STALE = ("HOROVOD_RANK", "HOROVOD_SIZE", "HVD_SECRET_KEY", elastic.GENERATION)


class Orders:
    """Makes start orders. ``spares``: processes that are to wait on each host."""

    def __init__(self, job: Job, spares: int) -> None:
        self._job, self._spares = job, spares
        self._slots: dict[str, int] = {}

    def update(self, hosts: Sequence[Host]) -> None:
        """Record the number of slots on each host's machine, from discovery's latest answer."""
        slots_of: Counter[str] = Counter()
        for host in hosts:
            slots_of[host.machine or host.name] += host.slots
        self._slots = {host.name: slots_of[host.machine or host.name] for host in hosts}

    def start(self, worker: WorkerProcess, assigned: Assigned, size: int, *, reads_stdin: bool) -> StartRanks:
        """Return the order to start a worker.

        The driver assigns the worker's rank at its init. Programs that read the variables before that get those of
        the planned generation, as with Horovod.
        """
        variables = _rank_variables(worker, assigned, size)
        if self._job.engine is not None:
            return self._by_engine(worker, variables)
        far = worker.host.handle.remote
        ranks_on_host = self._slots.get(worker.host.name, worker.slot + 1)
        return StartRanks(
            command=self._job.command,
            cwd=self._job.folder,
            env=self._environment(far=far),
            ranks=[RankPlan(worker.number, worker.slot, variables, reads_stdin=reads_stdin)],
            inherit_env=far,
            ranks_on_host=ranks_on_host,
            mps_ranks=ranks_on_host,
            stays=True,
            spares=self._spares,
        )

    def _by_engine(self, worker: WorkerProcess, variables: dict[str, str]) -> StartRanks:
        """Return the order for a process of an engine, whose agent already has the environment of its rank."""
        card = worker.host.card
        return StartRanks(
            command=self._job.command if self._job.command[0] else [card["python"], *self._job.command[1:]],
            cwd=self._job.cwd or card["cwd"],
            env=_COMMON,
            ranks=[RankPlan(worker.number, worker.slot, variables)],
            inherit_env=True,
            ranks_on_host=self._slots.get(worker.host.name, 1),
            stays=True,
            call=self._job.call,
        )

    def _environment(self, *, far: bool) -> dict[str, str]:
        here = {name: value for name, value in without_launchers(os.environ).items() if name not in _STALE}
        env = (environment.carried(here) if far else here) | _COMMON | (self._job.env or {})
        return env | rank_environment(env) | {"HVD_SPARES": str(self._spares)}


def _rank_variables(worker: WorkerProcess, assigned: Assigned, size: int) -> dict[str, str]:
    local, cross = (assigned.local_rank, assigned.local_size), (assigned.cross_rank, assigned.cross_size)
    return environment.place(assigned.rank, worker.host.name, local, cross) | {
        "HOROVOD_SIZE": str(size),
        elastic.WORKER: str(worker.number),
        elastic.SLOT: str(worker.slot),
        "HVD_HOST": worker.host.machine,
    }


class RendezvousPlaces:
    """Adds to the places of each generation the address at which its ranks meet, and their secret.

    ``interface``: the user's choice of network interface.
    """

    def __init__(self, interface: str) -> None:
        self._interface = interface
        self._generation = 0
        self._address, self._secret = "", ""

    def prepare(self, actions: Sequence[Action], workers: Workers) -> None:
        """Choose address and secret if the actions begin a generation: its places come together."""
        places = [
            (action.message, workers[action.worker].host)
            for action in actions
            if isinstance(action, SendTo) and isinstance(action.message, elastic.Place)
        ]
        if not places or places[0][0].generation == self._generation:
            return
        places.sort(key=lambda place: place[0].rank)
        hosts = list(dict.fromkeys(host for _, host in places))
        self._generation = places[0][0].generation
        self._secret = secrets.token_hex(32)
        self._address, _ = environment.rendezvous(
            [host.card for host in hosts], [host.handle.remote for host in hosts], self._interface
        )

    def complete(self, place: elastic.Place) -> elastic.Place:
        """Return a place with its address and secret."""
        return msgspec.structs.replace(place, address=self._address, secret=self._secret)
