"""Recorder of the evidence about every rank of this host, from which post_mortem.py explains its death.

The wait status is available although mpiexec is the parent: Linux (since 6.15) reports it to the holder of a pidfd, and
mpiexec writes it to the cluster's log. Both happen once the parent has reaped the rank, so an examination may take
several tries.

Terms.
  record    a rank's pid, its pidfd, its memory cgroup, and that cgroup's count of killed processes at the cell's start
"""

from __future__ import annotations

import fcntl
import io
import os
import signal
import struct
from collections.abc import Callable, Container, Mapping
from dataclasses import replace
from pathlib import Path

from hvd_kernel.diagnosis.post_mortem import Cause, Evidence, cause, known, launcher_exit, status_in_log
from hvd_kernel.processes.limits import LIMIT

NATIVE = "native"
"""Prefix of the names of Open MPI's stack files in the cluster's folder; the rank and the pid follow."""

_PAUSE_S = 0.05
_TRIES = 100  # mpiexec always reports in the end, however late on a busy machine, and a parent always reaps
_TRIES_REAPED = 20  # a supervisor writes no log: once it has reaped, only its own exit may still be reported
_LOG_BYTES = 1 << 16
_INFO_EXIT = 1 << 3
_INFO_BYTES = 64
_INFO_STATUS_AT = 60
_GET_INFO = 0xC0000000 | _INFO_BYTES << 16 | 0xFF << 8 | 11  # PIDFD_GET_INFO
_NO_LIMIT = 1 << 60
_GROUPS = ((":memory:", "/sys/fs/cgroup/memory", "memory.oom_control", "memory.limit_in_bytes"),)
_GROUP_2 = ("0::", "/sys/fs/cgroup", "memory.events", "memory.max")

Later = Callable[..., None]


class RankRecord:
    """One rank."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._pidfd = io.FileIO(os.pidfd_open(pid))
        self._group: tuple[Path, str, str] | None = None
        self._killed = 0
        self.begin_cell()

    def begin_cell(self) -> None:
        """Record the kill count of its memory cgroup: only a later kill can be this rank's death."""
        self._group = memory_group(_text(Path(f"/proc/{self.pid}/cgroup")))
        self._killed = self._kills()

    @property
    def is_reaped(self) -> bool:
        """True if its parent has reaped it, or if it cannot be signalled."""
        try:
            signal.pidfd_send_signal(self._pidfd.fileno(), 0)
        except OSError:
            return True
        return False

    def close(self) -> None:
        """Close the pidfd."""
        self._pidfd.close()

    def evidence(self, folder: Path, resident: int, launcher: str) -> Evidence:
        """Return the evidence that is available now."""
        return Evidence(
            status=self._status(folder / "cluster.log"),
            note=_text(folder / f"crash.{self.pid}"),
            native="".join(map(_text, sorted(folder.glob(f"{NATIVE}*.{self.pid}")))),
            out_of_memory=self._kills() > self._killed,
            limit=self._limit(),
            resident=resident,
            launcher=launcher,
            exceeded=_text(folder / f"{LIMIT}.{self.pid}"),
        )

    def _status(self, log: Path) -> int | None:
        answer = bytearray(struct.pack("Q", _INFO_EXIT).ljust(_INFO_BYTES, b"\0"))
        try:
            fcntl.ioctl(self._pidfd, _GET_INFO, answer)
        except OSError:
            return status_in_log(_text(log), self.pid)
        (mask,) = struct.unpack_from("Q", answer)
        if not mask & _INFO_EXIT:
            return status_in_log(_text(log), self.pid)
        (status,) = struct.unpack_from("i", answer, _INFO_STATUS_AT)
        return int(status)

    def _kills(self) -> int:
        if self._group is None:
            return _count(Path("/proc/vmstat"), "oom_kill")
        folder, events, _ = self._group
        return _count(folder / events, "oom_kill")

    def _limit(self) -> int:
        """Return the smallest limit of the cgroup and its ancestors; 0 without a limit."""
        if self._group is None:
            return 0
        folder, _, limit = self._group
        limits = [_number(group / limit) for group in (folder, *folder.parents)]
        return min((number for number in limits if 0 < number < _NO_LIMIT), default=0)


class Recorder:
    """All ranks of this host. ``examine`` is for the I/O thread, everything else for any thread."""

    def __init__(self, folder: Path) -> None:
        self.causes: dict[int, str] = {}  # of the dead
        self._folder = folder
        self._alive: dict[int, RankRecord] = {}  # by pid: a rank that is being replaced has two for a while
        self._launcher = ""
        self._reports: dict[int, Evidence] = {}  # of ranks whose agent has reported their exit

    def killed(self, rank: int, reason: str) -> None:
        """Record why a rank's agent killed it; ``exited`` follows."""
        self._reports[rank] = Evidence(exceeded=reason)

    def exited(self, rank: int, status: int) -> None:
        """Record a rank's status from its agent, as in ``subprocess``: it may be on another host."""
        reason = self._reports.get(rank, Evidence()).exceeded
        self._reports[rank] = Evidence(status=-status if status < 0 else status << 8, exceeded=reason)

    def watch(self, rank: int, pid: int) -> None:
        """Keep a record of a rank of this host."""
        self.causes.pop(rank, None)
        try:
            self._alive[pid] = RankRecord(pid)
        except ProcessLookupError:
            return  # dead already: no evidence can be collected

    def renumber(self, numbers: Mapping[int, int], pids: Container[int]) -> None:
        """Renumber the causes of surviving ranks (old -> new), and forget all processes not in ``pids``."""
        self.causes = {numbers[rank]: text for rank, text in self.causes.items() if rank in numbers}
        for pid in [pid for pid in self._alive if pid not in pids]:
            self._alive.pop(pid).close()

    def begin_cell(self) -> None:
        """Record the kill counts of all memory cgroups at the start of a cell."""
        for record in list(self._alive.values()):
            record.begin_cell()

    def launcher_exited(self, status: int | None) -> None:
        """Record mpiexec's exit (its status) or the supervisor's (None) as the cause of the deaths that follow.

        mpiexec exits with status 0 when the last of its ranks has ended, so that is never the cause.
        """
        if status != 0:
            self._launcher = self._launcher or launcher_exit(status)

    def examine(
        self, rank: int, pid: int, resident: int, later: Later, then: Callable[[Cause], None], *, by_mpi: bool = False
    ) -> None:
        """Determine why a rank died and call ``then`` with the cause, soon; ``later`` is the I/O loop's timer."""
        record = self._alive.pop(pid, None)
        if record is None:
            report = self._reports.pop(rank, Evidence(launcher=self._launcher))
            note = _text(self._folder / f"crash.{pid}")  # "" if the rank is on another host
            self._conclude(rank, replace(report, note=note, resident=resident), then)
            return

        def poll(tries: int) -> None:
            reaped = not by_mpi and record.is_reaped  # checked first: evidence read after the reaping is complete
            try:
                evidence = record.evidence(self._folder, resident, self._launcher)
            except Exception:  # noqa: BLE001 - a death must be reported even without evidence: the cell waits for it
                evidence, tries = Evidence(launcher=self._launcher), 0
            if known(evidence) or not tries:
                record.close()
                self._conclude(rank, evidence, then)
            else:
                later(_PAUSE_S, poll, min(tries, _TRIES_REAPED if reaped else _TRIES) - 1)

        poll(_TRIES)

    def close(self) -> None:
        """Close all records."""
        while self._alive:
            self._alive.popitem()[1].close()

    def _conclude(self, rank: int, evidence: Evidence, then: Callable[[Cause], None]) -> None:
        conclusion = cause(evidence)
        self.causes[rank] = conclusion.text
        then(conclusion)


def memory_group(cgroups: str) -> tuple[Path, str, str] | None:
    """Return folder, events file and limit file of the memory cgroup that /proc/PID/cgroup names, if it is visible."""
    for key, base, events, limit in (*_GROUPS, _GROUP_2):
        for line in cgroups.splitlines():
            if key in line:
                path = line.split(key, 1)[1].lstrip("/")
                for folder in (Path(base) / path, Path(base)):  # a container may see its own cgroup as the root
                    if (folder / events).exists():
                        return folder, events, limit
    return None


def _count(file: Path, name: str) -> int:
    rows = (line.split() for line in _text(file).splitlines())
    return next((int(row[1]) for row in rows if len(row) > 1 and row[0] == name), 0)


def _number(file: Path) -> int:
    text = _text(file).strip()
    return int(text) if text.isdecimal() else 0


def _text(file: Path) -> str:
    """Return the end of a file; "" if it does not exist."""
    try:
        with file.open("rb") as opened:
            if file.suffix == ".log":
                opened.seek(max(0, opened.seek(0, io.SEEK_END) - _LOG_BYTES))
            return opened.read().decode(errors="replace")
    except OSError:
        return ""
