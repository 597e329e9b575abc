"""Workers of an elastic job as its launcher knows them, the orders that start them, and where each generation meets."""

from __future__ import annotations

import os
import secrets
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import msgspec

from hvd_kernel.compat import rank_environment
from hvd_kernel.launch.elastic.assignment import Assigned
from hvd_kernel.launch.elastic.events import Action, SendTo
from hvd_kernel.launch.elastic.hosts import HostAgent
from hvd_kernel.launch.exit_report import now
from hvd_kernel.launch.job_run import Job, chosen_variables
from hvd_kernel.launch.line_output import OutputStream, stamp
from hvd_kernel.launch.outcome import FailedRank
from hvd_kernel.launch.output_sinks import OutputLoss, RankFile, Write
from hvd_kernel.launch.placement import Host, carried, rendezvous_address, variables_of
from hvd_kernel.processes.channel.messages import RankKilled, RankPlan, RankStarted, StartRanks
from hvd_kernel.protocol import elastic
from hvd_kernel.protocol.elastic import Place
from hvd_kernel.settings.lookup import without_launchers


@dataclass(eq=False)
class WorkerProcess:
    """One process for its whole life."""

    number: int
    host: HostAgent
    slot: int
    place: Place | None = None  # the last one that was sent to it
    pid: int | None = None
    status: int | None = None  # of its exit, as in ``subprocess``
    ended: str | None = None  # when it has exited
    reason: str = ""  # what has killed it: a limit
    reachable: bool = False  # it can be queried for its whereabouts
    outputs: tuple[OutputStream, ...] = ()  # stdout and stderr

    @property
    def rank(self) -> int | None:
        """Return its rank, or the last one that it had; None: it has had none."""
        return None if self.place is None else self.place.rank

    @property
    def label(self) -> str:
        """Return the prefix of its output lines: its present rank, or its slot before it has one."""
        return str(self.rank) if self.place is not None else f"{self.host.name}:{self.slot}"

    @property
    def title(self) -> str:
        """Return its name in sentences."""
        return f"the process in {self.host.name}:{self.slot}" if self.rank is None else f"rank {self.rank}"

    def write(self, stream: str, data: bytes) -> None:
        """Write its output to stdout or stderr."""
        self.outputs[stream == "stderr"].write(data)

    def record(self, message: RankStarted | RankKilled) -> None:
        """Record its process id, or the limit that has killed it."""
        if isinstance(message, RankStarted):
            self.pid = message.pid
        else:
            self.reason = message.reason

    def end(self, status: int) -> None:
        """Record its exit."""
        self.status = status
        self.ended = now()
        for output in self.outputs:
            output.finish()

    def failure(self) -> FailedRank:
        """Return its exit as one of the failures of a job."""
        rank = -1 if self.rank is None else self.rank
        return FailedRank(rank, self.status or 0, self.outputs[1].tail, self.reason)


@dataclass(frozen=True)
class Streams:
    """Destinations of the workers' output. ``folder``: also into files there, one sub-folder per worker.

    ``most``: bytes of a file, after which it is rotated; 0: no limit.
    """

    out: Write
    err: Write
    prefix: bool
    timestamp: bool
    folder: str | None
    digits: int
    most: int = 0
    loss: OutputLoss = field(default_factory=OutputLoss)

    def of(self, worker: WorkerProcess) -> tuple[OutputStream, ...]:
        """Return a worker's stdout and stderr."""
        return tuple(
            OutputStream(write, partial(self._prefix, worker, name), self._copy(worker, name), holds=name == "stderr")
            for name, write in (("stdout", self.out), ("stderr", self.err))
        )

    def _prefix(self, worker: WorkerProcess, name: str) -> bytes:
        return stamp(self.timestamp) + (f"[{worker.label}]<{name}>:".encode() if self.prefix else b"")

    def _copy(self, worker: WorkerProcess, name: str) -> RankFile | None:
        if self.folder is None:
            return None
        folder = Path(self.folder) / f"rank.{worker.number:0{self.digits}d}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            self.loss.record(self.folder, 0, error)
            return None
        return RankFile(folder / name, self.loss, self.folder, self.most)


class Workers:
    """All workers that the job has had, by number."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._all: dict[int, WorkerProcess] = {}
        self.generation = 0

    def __getitem__(self, number: int) -> WorkerProcess:
        return self._all[number]

    def __iter__(self) -> Iterator[WorkerProcess]:
        return iter(self._all.values())

    def get(self, number: int) -> WorkerProcess | None:
        """Return the worker of this number, or None."""
        return self._all.get(number)

    def add(self, number: int, host: HostAgent, slot: int) -> WorkerProcess:
        """Add a new worker and return it."""
        worker = self._all[number] = WorkerProcess(number, host, slot)
        worker.outputs = self._streams.of(worker)
        return worker

    @property
    def running(self) -> list[WorkerProcess]:
        """Return the workers that have not exited."""
        return [worker for worker in self if worker.status is None]

    def ranks(self, generation: int | None = None) -> list[WorkerProcess]:
        """Return the workers of a generation (default: the newest) by rank; some may have exited."""
        number = self.generation if generation is None else generation
        workers = [worker for worker in self if worker.place and worker.place.generation == number]
        return sorted(workers, key=lambda worker: worker.rank or 0)

    def close(self) -> None:
        """Write the pending output and close the files."""
        for worker in self:
            for output in worker.outputs:
                output.close()


# Orders and rendezvous


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
            chosen_env=chosen_variables(self._job),
            allocated_cores=self._job.cores.get(worker.host.name, 0),
            ranks_on_host=ranks_on_host,
            mps_ranks=ranks_on_host,
            stays=True,
            spares=self._spares,
            call=self._job.call,
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
        env = (carried(here) if far else here) | _COMMON | (self._job.env or {})
        return env | rank_environment(env) | {"HVD_SPARES": str(self._spares)}


def _rank_variables(worker: WorkerProcess, assigned: Assigned, size: int) -> dict[str, str]:
    local, cross = (assigned.local_rank, assigned.local_size), (assigned.cross_rank, assigned.cross_size)
    return variables_of(assigned.rank, worker.host.name, local, cross) | {
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
        self._address, _ = rendezvous_address(
            [host.card for host in hosts], [host.handle.remote for host in hosts], self._interface
        )

    def complete(self, place: elastic.Place) -> elastic.Place:
        """Return a place with its address and secret."""
        return msgspec.structs.replace(place, address=self._address, secret=self._secret)
