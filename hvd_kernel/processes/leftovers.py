"""Leftovers of clusters on this machine, and what cells of this kernel have left running beside their ranks.

Found by marks alone (lifetime.py): every process of a cluster carries the mark of the one without which it should not
be, and every private folder says whose it is. A name proves nothing; a process that carries no mark is none of ours.
The one exception is shared memory of Open MPI's, which carries none: what no living process maps is swept.

Terms.
  orphan   a marked process of this user whose holder is gone or an orphan itself; no supervisor of a detached cluster
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

from hvd_kernel.processes import detached
from hvd_kernel.processes.channel.control_channel import is_ready
from hvd_kernel.processes.lifetime import CLAIM, HOLDER, environment_of, holder_of, is_gone, mark, stat_of
from hvd_kernel.processes.mps import decision
from hvd_kernel.processes.private_dir import is_own
from hvd_kernel.processes.spares import warm

SHARED = Path("/dev/shm")  # noqa: S108 - looked at; removed there is what is marked as ours, and dead ranks' memory
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
    own: str  # its own mark
    holder: str
    command: str
    rank: str = ""  # below which it was started, "" if that cannot be told


def orphans() -> list[Marked]:
    """Return the processes that clusters left behind."""
    every = list(_marked())
    invited = {each.holder for each in detached.clusters()}  # their kernels may go, they stay
    found = [each for each in every if is_gone(each.holder) and each.own not in invited]
    held = found
    while held:  # what an orphan holds becomes one with its end
        holders = {each.own for each in held}
        held = [each for each in every if each.holder in holders and each not in found]
        found += held
    spared = _line_of(os.getpid())
    return sorted(_lasting([each for each in found if each.pid not in spared]), key=lambda each: each.pid)


def folders() -> list[Path]:
    """Return the private folders that clusters left behind."""
    places = {Path(tempfile.gettempdir()), SHARED}
    found = {folder for place in places for folder in place.glob("hvd-*") if is_own(folder)}
    return sorted(folder for folder in found if is_gone(holder_of(folder)) or _is_unclaimed(folder))


def sweep() -> None:
    """Remove the folders of clusters whose kernel was killed before there was a supervisor, or together with it."""
    for folder in folders():
        remove(folder)
    for segment in segments():
        segment.unlink(missing_ok=True)


def segments() -> list[Path]:
    """Return what this user's ranks of Open MPI that were killed on this host have left in shared memory."""
    old = [path for path in SHARED.glob("sm_segment.*") if _is_old_segment(path)]
    mapped = _mapped() if old else None
    if mapped is None:
        return []
    return [path for path in old if path.exists() and path.stat().st_ino not in mapped]


def strays(supervisor: int) -> list[Marked]:
    """Return what cells of a supervisor's cluster have detached."""
    holder = mark(supervisor)
    return [each for each in _marked() if each.holder == holder and _is_detached(each, supervisor)]


def other_ranks(supervisor: int) -> int:
    """Return how many ranks of this user's other notebooks run on this host, beside those of this supervisor.

    Not warm ones that wait for a notebook; not those that have taken a dead one's place: they look like the spare
    processes that they were.
    """
    own = mark(supervisor)
    idle = {own, *(each.holder for each in warm.clusters())}
    return sum(each.command.endswith(_RANKS) and each.holder not in idle for each in _marked())


def end(orphan: Marked) -> bool:
    """Kill a process if it still is the one that was found; return whether it is gone."""
    try:
        descriptor = os.pidfd_open(orphan.pid)
    except ProcessLookupError:
        return True
    try:
        if mark(orphan.pid) == orphan.own:  # the pidfd was opened before this look: no other process can be hit
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        return is_ready(descriptor, _END_S) or mark(orphan.pid) != orphan.own
    except ProcessLookupError:
        return True
    finally:
        os.close(descriptor)


def remove(folder: Path) -> bool:
    """Remove a folder; return whether it is gone."""
    shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()


def _lasting(found: list[Marked]) -> list[Marked]:
    """Return those that do not end by themselves: a supervisor ends its cluster a moment after its kernel's end."""
    deadline = time.monotonic() + _MOMENT_S
    lasting = []
    for each in found:
        with suppress(ProcessLookupError):
            descriptor = os.pidfd_open(each.pid)
            try:
                ended = is_ready(descriptor, max(0.0, deadline - time.monotonic()))
            finally:
                os.close(descriptor)
            if not ended and mark(each.pid) == each.own:
                lasting.append(each)
    return lasting


def _marked() -> Iterator[Marked]:
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has just ended
            if entry.stat().st_uid == os.geteuid():
                environment = environment_of(int(entry.name))
                if holder := environment.get(HOLDER):
                    command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                    pid = int(entry.name)
                    yield Marked(pid, mark(pid), holder, command, environment.get(_RANK_VARIABLE, ""))


def _is_unclaimed(folder: Path) -> bool:
    """Whether whoever made the folder was killed before it could write down whose it is, its very next step."""
    try:
        empty = {each.name for each in folder.iterdir()} <= {CLAIM}
        old = time.time() - folder.stat().st_mtime > _CLAIMED_S
    except OSError:
        return False
    return bool(_NAME.fullmatch(folder.name)) and empty and old and not holder_of(folder)


def _is_old_segment(path: Path) -> bool:
    """Whether it is this user's, of this host, and older than a rank needs from making it to mapping it."""
    named = _SEGMENT.fullmatch(path.name)
    here = socket.gethostname().partition(".")[0]
    if not named or int(named["uid"]) != os.geteuid() or named["host"].partition(".")[0] != here:
        return False
    try:
        found = path.lstat()
    except OSError:
        return False
    regular = stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid()
    return regular and time.time() - found.st_mtime > _CLAIMED_S


def _mapped() -> set[int] | None:
    """Return the numbers (inodes) of all files that processes of this user map; None: one of them does not say."""
    found: set[int] = set()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if entry.stat().st_uid == os.geteuid():
                lines = (entry / "maps").read_text(errors="replace").splitlines()
                found.update(int(line.split(maxsplit=5)[4]) for line in lines)
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has just ended
        except OSError:
            if entry.name != "1":  # init shows its own to nobody in some containers, and is not a rank
                return None
    return found


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
