"""Workers of an elastic job as its launcher knows them: where each runs, its rank, its output, its exit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from hvd_kernel.launch.elastic.job.hosts import HostAgent
from hvd_kernel.launch.line_output import OutputStream, Write, stamp
from hvd_kernel.launch.outcome import FailedRank
from hvd_kernel.protocol.elastic import Place


@dataclass(eq=False)
class WorkerProcess:
    """One process for its whole life."""

    number: int
    host: HostAgent
    slot: int
    place: Place | None = None  # the last one that was sent to it
    status: int | None = None  # of its exit, as in ``subprocess``
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

    def end(self, status: int) -> None:
        """Record its exit."""
        self.status = status
        for output in self.outputs:
            output.finish()

    def failure(self) -> FailedRank:
        """Return its exit as one of the failures of a job."""
        rank = -1 if self.rank is None else self.rank
        return FailedRank(rank, self.status or 0, self.outputs[1].tail, self.reason)


@dataclass(frozen=True)
class Streams:
    """Destinations of the workers' output. ``folder``: also into files there, one sub-folder per worker."""

    out: Write
    err: Write
    prefix: bool
    timestamp: bool
    folder: str | None
    digits: int

    def of(self, worker: WorkerProcess) -> tuple[OutputStream, ...]:
        """Return a worker's stdout and stderr."""
        return tuple(
            OutputStream(write, partial(self._prefix, worker, name), self._copy(worker, name), holds=name == "stderr")
            for name, write in (("stdout", self.out), ("stderr", self.err))
        )

    def _prefix(self, worker: WorkerProcess, name: str) -> bytes:
        return stamp(self.timestamp) + (f"[{worker.label}]<{name}>:".encode() if self.prefix else b"")

    def _copy(self, worker: WorkerProcess, name: str) -> Path | None:
        if self.folder is None:
            return None
        folder = Path(self.folder) / f"rank.{worker.number:0{self.digits}d}"
        folder.mkdir(parents=True, exist_ok=True)
        return folder / name


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
