"""Start orders of an elastic job: what an agent is told so that it starts one worker."""

from __future__ import annotations

import os
from pathlib import Path

from hvd_kernel.compat import rank_environment
from hvd_kernel.launch import environment
from hvd_kernel.launch.elastic.job.workers import Worker
from hvd_kernel.launch.job_run import Job
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
    """Makes them. ``slots``: of each host, as discovery has last said; ``spares``: that are to wait on each."""

    def __init__(self, job: Job, spares: int) -> None:
        self._job, self._spares = job, spares
        self.slots: dict[str, int] = {}

    def start(self, worker: Worker, *, reads_stdin: bool) -> StartRanks:
        """Return the order; the worker learns its rank from the driver."""
        far = worker.host.handle.remote
        own = {
            elastic.WORKER: str(worker.number),
            elastic.SLOT: str(worker.slot),
            "HOROVOD_HOSTNAME": worker.host.name,
            "HVD_HOST": worker.host.name,  # two names of one machine are two hosts
        }
        return StartRanks(
            command=self._job.command,
            cwd=self._job.cwd or str(Path.cwd()),
            env=self._environment(far=far),
            ranks=[RankPlan(worker.number, worker.slot, own, reads_stdin=reads_stdin)],
            inherit_env=far,
            ranks_on_host=self.slots.get(worker.host.name, worker.slot + 1),
            stays=True,
            spares=self._spares,
        )

    def _environment(self, *, far: bool) -> dict[str, str]:
        here = {name: value for name, value in without_launchers(os.environ).items() if name not in _STALE}
        env = (environment.carried(here) if far else here) | _ALL | (self._job.env or {})
        return env | rank_environment(env) | {"HVD_SPARES": str(self._spares)}
