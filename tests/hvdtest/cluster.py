"""Helpers for tests on a real cluster: run a cell to its end, and find leftovers of a cluster.

Terms.
  traces     everything of a cluster that a machine can show: processes, private folders, abstract sockets
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hvd_kernel.cluster import CellExecution, Session
from hvd_kernel.processes.cluster_spec import ClusterSpec
from hvd_kernel.protocol.messages import Event, Failure, MetricsSample, RankDone, RichOutput, TextDelta

PATIENCE_S = 100.0

GONE_S = 40.0
"""How long what a cluster was may take to go, on a machine that is busy; a second is the target: faults/figures.py."""


@dataclass
class Outcome:
    """Output and results of one run."""

    run: CellExecution
    events: list[Event] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def failures(self) -> dict[int, Failure]:
        return {failure.rank: failure for failure in self.run.failures}

    @property
    def samples(self) -> list[MetricsSample]:
        return [event for event in self.events if isinstance(event, MetricsSample)]

    def text(self, stream: str = "stdout") -> dict[int, str]:
        """Each rank's text."""
        said = dict.fromkeys(self.run.ranks, "")
        for event in self.events:
            if isinstance(event, TextDelta) and event.stream == stream:
                said[event.rank] += event.text
        return said

    def results(self) -> dict[int, str]:
        """Each rank's last expression as text."""
        found = (event for event in self.events if isinstance(event, RichOutput) and event.is_result)
        return {event.rank: event.data["text/plain"] for event in found}


def drain(run: CellExecution, patience: float = PATIENCE_S) -> Outcome:
    """Read a run to its end; after a timeout fail with the ranks that have not ended."""
    outcome = Outcome(run)
    began = time.monotonic()
    while not run.done:
        event = run.next(0.2)
        if event is not None:
            outcome.events.append(event)
        if time.monotonic() - began > patience:
            ended = {event.rank for event in outcome.events if isinstance(event, RankDone)}
            raise AssertionError(f"ranks {sorted(set(run.ranks) - ended)} have not ended the cell in {patience} s")
    outcome.seconds = time.monotonic() - began
    return outcome


def execute(session: Session, code: str, ranks: Sequence[int] | None = None, **how: Any) -> Outcome:
    """Run a cell to its end."""
    return drain(session.run(code, ranks, **how))


def processes_below(pid: int) -> set[int]:
    """Every living descendant of a process."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                after_name = (folder / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            parents[int(folder.name)] = int(after_name[1])
    found: set[int] = set()
    grown = {pid}
    while grown:
        grown = {child for child, parent in parents.items() if parent in grown} - found
        found |= grown
    return found


def living(pids: set[int]) -> set[int]:
    """Return the processes that exist and are not zombies: a zombie holds nothing and waits for init."""
    return {pid for pid in pids if _state(pid) not in {"", "Z", "X"}}


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return ""


def sockets_of(pids: set[int]) -> set[str]:
    """Names of the unix sockets that processes hold: paths, and abstract ones with their leading @."""
    held = {_link(entry) for pid in pids for entry in _entries(Path(f"/proc/{pid}/fd"))}
    lines = (line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:])
    return {line[7] for line in lines if len(line) > 7 and f"socket:[{line[6]}]" in held}


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _link(entry: Path) -> str:
    try:
        return str(entry.readlink())
    except OSError:
        return ""


@dataclass
class Traces:
    """Everything that belongs to one running cluster, to be searched once it has ended."""

    processes: set[int]
    folders: set[str]
    sockets: set[str]

    @classmethod
    def of(cls, session: Session) -> Traces:
        supervisor = session.supervisor
        processes = {supervisor} | processes_below(supervisor)
        launched = session.executor.launched
        places = {str(launched.folder), str(launched._shared)} | {f"/tmp/ompi.{pid}" for pid in processes}
        return cls(processes, places, sockets_of(processes))

    def as_dict(self) -> dict[str, list[Any]]:
        """For another process, as JSON."""
        return {name: sorted(value) for name, value in vars(self).items()}

    def left(self) -> list[str]:
        """Return the traces that still exist."""
        names = {line.split()[-1] for line in Path("/proc/net/unix").read_text().splitlines()[1:]}
        found = [f"process {pid} ({_command(pid)})" for pid in sorted(living(self.processes))]
        return found + [path for path in sorted(self.folders) if Path(path).exists()] + sorted(self.sockets & names)

    def wait_none_left(self, within: float = GONE_S) -> float:
        """Return after how many seconds nothing was left; fail with a list when something is after ``within``."""
        began = time.monotonic()
        while True:
            left = self.left()
            took = time.monotonic() - began
            if not left:
                return took
            if took > within:
                raise AssertionError(f"left after {took:.2f} s: " + "; ".join(left))
            time.sleep(0.005)


def _command(pid: int) -> str:
    return _arguments(pid).replace(b"\0", b" ").decode(errors="replace")[:80] or "gone"


def _arguments(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def until(condition: Callable[[], object], what: str = "what was waited for", patience: float = 60.0) -> None:
    """Return when it holds."""
    end = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < end, f"not within {patience:g} s: {what}"
        time.sleep(0.01)


def wait_until_all_speak(run: CellExecution, patience: float = PATIENCE_S) -> None:
    """Return when every rank of the run has printed something: it is inside its cell."""
    silent, end = set(run.ranks), time.monotonic() + patience
    while silent:
        event = run.next(5)
        if isinstance(event, TextDelta):
            silent.discard(event.rank)
        assert time.monotonic() < end, f"ranks {sorted(silent)} have said nothing for {patience:g} s"


def spares_of(session: Session) -> set[int]:
    """Return the spare processes, ready or starting."""
    ranks = {status.pid for status in session.status()}
    return {pid for pid in processes_below(session.supervisor) - ranks if b"\0spare\0" in _arguments(pid)}


def wait_for_spares(session: Session, number: int, patience: float = 240.0) -> None:
    """Return when that many processes are ready to replace a rank.

    They get ready in time that no other process wants, of which a busy machine has none: they are given their share.
    """
    assert session._max_spares >= number, 'the cluster keeps none: say env={"HVD_SPARES": ...}'
    end = time.monotonic() + patience
    while session.spares != number:
        assert time.monotonic() < end, f"{session.spares} spares instead of {number} after {patience:g} s"
        for pid in spares_of(session):
            hurry(pid)
        time.sleep(0.1)


def hurry(pid: int) -> None:
    """Give every thread of a process the default scheduling, if this user may set it."""
    for thread in _entries(Path(f"/proc/{pid}/task")):
        with suppress(OSError):
            os.sched_setscheduler(int(thread.name), os.SCHED_OTHER, os.sched_param(0))


def cpu_share(pids: set[int], seconds: float) -> float:
    """Return the share of one core that the processes use; it is small for processes that do not poll, on a busy machine too."""
    began, before = time.monotonic(), sum(map(_ticks, pids))
    time.sleep(seconds)
    used = (sum(map(_ticks, pids)) - before) / os.sysconf("SC_CLK_TCK")
    return used / (time.monotonic() - began)


def _ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return int(fields[11]) + int(fields[12])


@contextmanager
def cluster(n: int) -> Iterator[Session]:
    """Start a cluster of n ranks; check after its stop that it leaves nothing."""
    session = Session.start(ClusterSpec(n))
    yield session
    traces = Traces.of(session)
    session.stop()
    traces.wait_none_left()
