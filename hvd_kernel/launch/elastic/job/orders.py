"""Start orders of an elastic job: what an agent is told so that it starts one worker."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence

from hvd_kernel.compat import rank_environment
from hvd_kernel.launch import environment
from hvd_kernel.launch.elastic.assignment import Assigned
from hvd_kernel.launch.elastic.job.workers import WorkerProcess
from hvd_kernel.launch.job_run import Job
from hvd_kernel.launch.placement import Host
from hvd_kernel.processes.channel.messages import RankPlan, StartRanks
from hvd_kernel.protocol import elastic
from hvd_kernel.settings.launchers import without_launchers

_ALL = {
    elastic.VARIABLE: "1",
    "HOROVOD_ELASTIC": "1",
    "HOROVOD_CONTROLLER": "gloo",
    "HOROVOD_CPU_OPERATIONS": "gloo",
    "PYTHONUNBUFFERED": "1",
    "PYTHONFAULTHANDLER": "1",  # one that crashes in C says where it was
}
_STALE = ("HOROVOD_RANK", "HOROVOD_SIZE", "HVD_SECRET_KEY", elastic.GENERATION)


class Orders:
    """Makes them. ``spares``: processes that are to wait on each host."""

    def __init__(self, job: Job, spares: int) -> None:
        self._job, self._spares = job, spares
        self._slots: dict[str, int] = {}

    def found(self, hosts: Sequence[Host]) -> None:
        """Take note of how many ranks there may be on each host's machine, as discovery has last said."""
        of: Counter[str] = Counter()
        for host in hosts:
            of[host.machine or host.name] += host.slots
        self._slots = {host.name: of[host.machine or host.name] for host in hosts}

    def start(self, worker: WorkerProcess, assigned: Assigned, size: int, *, reads_stdin: bool) -> StartRanks:
        """Return the order.

        The driver assigns the worker's rank at its init. Programs that read the variables before that get those of
        the planned generation, as with Horovod.
        """
        variables = _own(worker, assigned, size)
        if self._job.engine is not None:
            return self._by_engine(worker, variables)
        far = worker.host.handle.remote
        beside = self._slots.get(worker.host.name, worker.slot + 1)
        return StartRanks(
            command=self._job.command,
            cwd=self._job.folder,
            env=self._environment(far=far),
            ranks=[RankPlan(worker.number, worker.slot, variables, reads_stdin=reads_stdin)],
            inherit_env=far,
            ranks_on_host=beside,
            mps_ranks=beside,
            stays=True,
            spares=self._spares,
        )

    def _by_engine(self, worker: WorkerProcess, variables: dict[str, str]) -> StartRanks:
        """Return the order for a process of an engine's, whose agent has the environment that its rank is to have."""
        card = worker.host.card
        return StartRanks(
            command=self._job.command if self._job.command[0] else [card["python"], *self._job.command[1:]],
            cwd=self._job.cwd or card["cwd"],
            env=_ALL,
            ranks=[RankPlan(worker.number, worker.slot, variables)],
            inherit_env=True,
            ranks_on_host=self._slots.get(worker.host.name, 1),
            stays=True,
            call=self._job.call,
        )

    def _environment(self, *, far: bool) -> dict[str, str]:
        here = {name: value for name, value in without_launchers(os.environ).items() if name not in _STALE}
        env = (environment.carried(here) if far else here) | _ALL | (self._job.env or {})
        return env | rank_environment(env) | {"HVD_SPARES": str(self._spares)}


def _own(worker: WorkerProcess, assigned: Assigned, size: int) -> dict[str, str]:
    local, cross = (assigned.local_rank, assigned.local_size), (assigned.cross_rank, assigned.cross_size)
    return environment.place(assigned.rank, worker.host.name, local, cross) | {
        "HOROVOD_SIZE": str(size),
        elastic.WORKER: str(worker.number),
        elastic.SLOT: str(worker.slot),
        "HVD_HOST": worker.host.machine,
    }
