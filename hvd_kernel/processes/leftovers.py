"""Leftovers of clusters on this machine, and processes that cells of this kernel have detached from their ranks.

They are found by marks only (lifetime.py): every process of a cluster and every private folder carries the mark of its
holder. Names prove nothing; a process without a mark is not ours. The exception is the shared memory of Open MPI, which
has no mark: segments that no living process maps are removed.

Terms.
  orphan   a marked process of this user whose holder is gone or itself an orphan; not the supervisor of a detached
           cluster
  stray    a process that a cell of this cluster started and detached (setsid, double fork); it ends with the cluster
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hvd_kernel.processes import detached, warm
from hvd_kernel.processes.channel.control_channel import is_ready
from hvd_kernel.processes.lifetime import CLAIM, HOLDER, environment_of, holder_of, is_gone, mark, stat_of
from hvd_kernel.processes.mps import decision
from hvd_kernel.processes.private_dir import is_own

SHARED = Path("/dev/shm")  # noqa: S108 - only our marked folders and dead ranks' segments are removed
_SEGMENT = re.compile(
    r"sm_segment\.(?P<host>.+)\.(?P<uid>[0-9]+)\.[0-9a-f]+\.[0-9]+"
)  # as Open MPI's btl/sm makes them
_NAME = re.compile("hvd-([a-z0-9_]{8}|[0-9a-f]{32})")  # as mkdtemp and open_mpi.py make them
_CLAIMED_S = 60.0
_END_S = 2.0
_MOMENT_S = 1.0
_RANKS = ("-m hvd_kernel.worker", "-m hvd_kernel.worker warm")
_RANK_VARIABLE = "OMPI_COMM_WORLD_RANK"


@dataclass(frozen=True)
class Marked:
    """A living process that carries a mark."""

    pid: int
    mark: str
    holder: str
    command: str
    rank: str = ""  # the rank that has started it, "" if unknown


def orphans() -> list[Marked]:
    """Return the orphans of clusters, except ancestors of this process."""
    processes = list(_marked())
    kept = {cluster.holder for cluster in detached.clusters()}  # supervisors that may outlive their kernels
    orphaned = [process for process in processes if is_gone(process.holder) and process.mark not in kept]
    parents = orphaned
    while parents:  # a process whose holder is an orphan is one, too
        holders = {parent.mark for parent in parents}
        parents = [process for process in processes if process.holder in holders and process not in orphaned]
        orphaned = [*orphaned, *parents]
    spared = _line_of(os.getpid())
    return sorted(_lasting([process for process in orphaned if process.pid not in spared]), key=lambda entry: entry.pid)


def folders() -> list[Path]:
    """Return the private folders whose holder is gone."""
    places = {Path(tempfile.gettempdir()), SHARED}
    candidates = {folder for place in places for folder in place.glob("hvd-*") if is_own(folder)}
    return sorted(folder for folder in candidates if is_gone(holder_of(folder)) or _is_unclaimed(folder))


def sweep() -> None:
    """Remove the folders of clusters whose kernel was killed before their supervisor started, or together with it."""
    for folder in folders():
        remove(folder)
    for segment in segments():
        segment.unlink(missing_ok=True)


def segments() -> list[Path]:
    """Return the shared memory segments of this user's killed Open MPI ranks on this host."""
    old = [path for path in SHARED.glob("sm_segment.*") if _is_old_segment(path)]
    mapped = _mapped() if old else None
    if mapped is None:
        return []
    return [path for path in old if path.exists() and path.stat().st_ino not in mapped]


def strays(supervisor: int) -> list[Marked]:
    """Return the processes that cells of a supervisor's cluster have detached."""
    holder = mark(supervisor)
    return [process for process in _marked() if process.holder == holder and _is_detached(process, supervisor)]


def other_ranks(supervisor: int) -> int:
    """Return how many ranks of this user's other notebooks run on this host, without those of this supervisor.

    Warm ranks that wait for a notebook do not count. Replacements of dead ranks are missed: their command is that of a
    spare process.
    """
    ignored = {mark(supervisor), *(cluster.holder for cluster in warm.clusters())}
    return sum(process.command.endswith(_RANKS) and process.holder not in ignored for process in _marked())


def end(orphan: Marked) -> bool:
    """Kill a process if its pid was not reused; return whether it is gone."""
    try:
        descriptor = os.pidfd_open(orphan.pid)
    except ProcessLookupError:
        return True
    try:
        if mark(orphan.pid) == orphan.mark:  # checked after pidfd_open: the signal cannot reach another process
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        return is_ready(descriptor, _END_S) or mark(orphan.pid) != orphan.mark
    except ProcessLookupError:
        return True
    finally:
        os.close(descriptor)


def remove(folder: Path) -> bool:
    """Remove a folder; return whether it is gone."""
    shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()


def _lasting(processes: list[Marked]) -> list[Marked]:
    """Return the processes that do not exit soon: a supervisor stops its cluster a moment after its kernel exits."""
    deadline = time.monotonic() + _MOMENT_S
    lasting = []
    for process in processes:
        with suppress(ProcessLookupError):
            descriptor = os.pidfd_open(process.pid)
            try:
                exited = is_ready(descriptor, max(0.0, deadline - time.monotonic()))
            finally:
                os.close(descriptor)
            if not exited and mark(process.pid) == process.mark:
                lasting.append(process)
    return lasting


def _marked() -> Iterator[Marked]:
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has just exited
            if entry.stat().st_uid == os.geteuid():
                environment = environment_of(int(entry.name))
                if holder := environment.get(HOLDER):
                    command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                    pid = int(entry.name)
                    yield Marked(pid, mark(pid), holder, command, environment.get(_RANK_VARIABLE, ""))


def _is_unclaimed(folder: Path) -> bool:
    """Return whether the folder's creator was killed between mkdtemp() and claim()."""
    try:
        empty = {entry.name for entry in folder.iterdir()} <= {CLAIM}
        old = time.time() - folder.stat().st_mtime > _CLAIMED_S
    except OSError:
        return False
    return bool(_NAME.fullmatch(folder.name)) and empty and old and not holder_of(folder)


def _is_old_segment(path: Path) -> bool:
    """Return whether a segment is this user's and this host's, and older than a rank takes to map a new one."""
    match = _SEGMENT.fullmatch(path.name)
    here = socket.gethostname().partition(".")[0]
    if not match or int(match["uid"]) != os.geteuid() or match["host"].partition(".")[0] != here:
        return False
    try:
        status = path.lstat()
    except OSError:
        return False
    regular = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
    return regular and time.time() - status.st_mtime > _CLAIMED_S


def _mapped() -> set[int] | None:
    """Return the inodes of all files that processes of this user map; None if the maps of one are unreadable."""
    inodes: set[int] = set()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if entry.stat().st_uid == os.geteuid():
                lines = (entry / "maps").read_text(errors="replace").splitlines()
                inodes.update(int(line.split(maxsplit=5)[4]) for line in lines)
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has just exited
        except OSError:
            if entry.name != "1":  # init's maps are unreadable in some containers, and it is not a rank
                return None
    return inodes


def _is_detached(process: Marked, supervisor: int) -> bool:
    if "hvd_kernel." in process.command or decision.COMMAND in process.command:
        return False  # mpiexec, ranks, spares and what they fork; a private MPS daemon
    parent, session = _parent_and_session(process.pid)
    return parent == supervisor or session == process.pid


def _parent_and_session(pid: int) -> tuple[int, int]:
    fields = stat_of(pid)
    return (int(fields[1]), int(fields[3])) if fields else (0, 0)


def _line_of(pid: int) -> set[int]:
    """Return a process and all its ancestors."""
    line: set[int] = set()
    while pid and pid not in line:
        line.add(pid)
        pid, _ = _parent_and_session(pid)
    return line
