"""Recorder of what is known of every living rank of this host, from which post_mortem.py explains its death.

How the status is known, though mpiexec is the parent: Linux tells it to whoever holds a pidfd (since 6.15), and mpiexec
writes it to the cluster's log. Both come when the parent has reaped the rank, so an examination may take a few tries.

Terms.
  record    a rank's pid, its pidfd, its memory cgroup, and how many processes that had killed when the cell began
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

from hvd_kernel.diagnosis.post_mortem import Cause, Evidence, cause, known, launcher_ended, status_in_log
from hvd_kernel.processes.resources.limits import LIMIT

NATIVE = "native"
"""Begin of the names of Open MPI's stack files in the cluster's folder; the rank and the pid follow."""

_PAUSE_S = 0.05
_TRIES = 100  # mpiexec always tells in the end, however late on a busy machine, and a parent always reaps
_TRIES_REAPED = 20  # a supervisor writes no log: when it has reaped, only its own end may still be told
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
        self.note()

    def note(self) -> None:
        """Note how often its memory cgroup has killed: only what comes after this can be its own death."""
        self._group = memory_group(_text(Path(f"/proc/{self.pid}/cgroup")))
        self._killed = self._kills()

    @property
    def is_reaped(self) -> bool:
        """Whether its parent has waited for it, as far as can be told."""
        try:
            signal.pidfd_send_signal(self._pidfd.fileno(), 0)
        except OSError:
            return True
        return False

    def close(self) -> None:
        """Forget the process."""
        self._pidfd.close()

    def evidence(self, folder: Path, resident: int, launcher: str) -> Evidence:
        """Gather what there is by now."""
        return Evidence(
            status=self._status(folder / "cluster.log"),
            note=_text(folder / f"crash.{self.pid}"),
            native="".join(map(_text, sorted(folder.glob(f"{NATIVE}*.{self.pid}")))),
            out_of_memory=self._kills() > self._killed,
            limit=self._limit(),
            resident=resident,
            launcher=launcher,
            passed=_text(folder / f"{LIMIT}.{self.pid}"),
        )

    def _status(self, log: Path) -> int | None:
        answer = bytearray(struct.pack("Q", _INFO_EXIT).ljust(_INFO_BYTES, b"\0"))
        try:
            fcntl.ioctl(self._pidfd, _GET_INFO, answer)
        except OSError:
            return status_in_log(_text(log), self.pid)
        (told,) = struct.unpack_from("Q", answer)
        if not told & _INFO_EXIT:
            return status_in_log(_text(log), self.pid)
        (status,) = struct.unpack_from("i", answer, _INFO_STATUS_AT)
        return int(status)

    def _kills(self) -> int:
        if self._group is None:
            return _count(Path("/proc/vmstat"), "oom_kill")
        folder, events, _ = self._group
        return _count(folder / events, "oom_kill")

    def _limit(self) -> int:
        """Return the smallest limit on the way up to the cgroups' root."""
        if self._group is None:
            return 0
        folder, _, limit = self._group
        found = [_number(each / limit) for each in (folder, *folder.parents)]
        return min((each for each in found if 0 < each < _NO_LIMIT), default=0)


class Recorder:
    """All ranks of this host. ``examine`` is for the I/O thread, everything else for any thread."""

    def __init__(self, folder: Path) -> None:
        self.causes: dict[int, str] = {}  # of the dead
        self._folder = folder
        self._alive: dict[int, RankRecord] = {}  # by pid: a rank that is replaced has two for a while
        self._launcher = ""
        self._told: dict[int, Evidence] = {}  # of ranks that somebody else watches, when they have ended

    def killed(self, rank: int, why: str) -> None:
        """Take from a rank's agent why it was ended; ``ended`` follows."""
        self._told[rank] = Evidence(passed=why)

    def ended(self, rank: int, status: int) -> None:
        """Take a rank's status from its agent, as in ``subprocess``: it may be on another host."""
        why = self._told.get(rank, Evidence()).passed
        self._told[rank] = Evidence(status=-status if status < 0 else status << 8, passed=why)

    def watch(self, rank: int, pid: int) -> None:
        """Keep a record of a rank of this host."""
        self.causes.pop(rank, None)
        try:
            self._alive[pid] = RankRecord(pid)
        except ProcessLookupError:
            return  # dead already: nothing of it can be known

    def renumber(self, numbers: Mapping[int, int], pids: Container[int]) -> None:
        """Keep what is known of ranks that stay under other numbers, before -> now, and forget other processes."""
        self.causes = {numbers[rank]: why for rank, why in self.causes.items() if rank in numbers}
        for pid in [pid for pid in self._alive if pid not in pids]:
            self._alive.pop(pid).close()

    def note(self) -> None:
        """Begin a cell."""
        for record in list(self._alive.values()):
            record.note()

    def launcher_ended(self, status: int | None) -> None:
        """Take mpiexec's end (its status) or the supervisor's (None) as the reason for what comes."""
        self._launcher = self._launcher or launcher_ended(status)

    def examine(
        self, rank: int, pid: int, resident: int, later: Later, then: Callable[[Cause], None], *, by_mpi: bool = False
    ) -> None:
        """Find out why a rank died and call ``then`` with it, soon; ``later`` is the I/O loop's timer."""
        record = self._alive.pop(pid, None)
        if record is None:
            told = self._told.pop(rank, Evidence(launcher=self._launcher))
            note = _text(self._folder / f"crash.{pid}")  # "" where the rank is on another host
            self._tell(rank, replace(told, note=note, resident=resident), then)
            return

        def look(tries: int) -> None:
            reaped = not by_mpi and record.is_reaped  # asked first: what it tells then is all
            try:
                found = record.evidence(self._folder, resident, self._launcher)
            except Exception:  # noqa: BLE001 - a death must be told whatever cannot be read: the cell waits for it
                found, tries = Evidence(launcher=self._launcher), 0
            if known(found) or not tries:
                record.close()
                self._tell(rank, found, then)
            else:
                later(_PAUSE_S, look, min(tries, _TRIES_REAPED if reaped else _TRIES) - 1)

        look(_TRIES)

    def close(self) -> None:
        """Forget the living."""
        while self._alive:
            self._alive.popitem()[1].close()

    def _tell(self, rank: int, found: Evidence, then: Callable[[Cause], None]) -> None:
        told = cause(found)
        self.causes[rank] = told.text
        then(told)


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
    """Return the end of a file, "" where there is none."""
    try:
        with file.open("rb") as opened:
            if file.suffix == ".log":
                opened.seek(max(0, opened.seek(0, io.SEEK_END) - _LOG_BYTES))
            return opened.read().decode(errors="replace")
    except OSError:
        return ""
