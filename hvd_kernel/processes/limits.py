"""Capacity of this machine, and limits of a rank: cores and memory.

Limits are enforced by a cgroup (v2) if possible, else by affinity and polling the memory of the rank.

Memory is polled every 0.1 s, so a rank may exceed its limit for that time; then it is killed, and the message says how
much it used. rlimits do not help: they count addresses, and torch reserves many times what it uses. A process's memory
is counted like in a cgroup: pages that it has written, not those that it has mapped.

Sources: https://docs.kernel.org/admin-guide/cgroup-v2.html,
https://docs.kernel.org/filesystems/proc.html (``RssAnon``, ``RssShmem``).
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hvd_kernel.formatting.units import binary_size, plural

POLL_S = 0.1
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""Variables with the number of threads that a process computes with."""

LIMIT = "limit"
"""Prefix of the name of the file with the reason why a rank was killed for a limit; its process id follows."""


@dataclass(frozen=True)
class Limits:
    """The limits of one rank; None: unlimited."""

    cores: float | None = None
    memory: int | None = None  # bytes

    def __bool__(self) -> bool:
        return self.cores is not None or self.memory is not None


def means() -> str:
    """Return the phrase for how this host enforces limits, as used in a plan."""
    if writable_cgroup() is not None:
        return "by cgroup v2"
    return "by affinity (whole cores) and a look at memory every 0.1 s: no cgroup v2 can be made here"


def threads(limits: Limits) -> int | None:
    """Return the number of threads that a rank should compute with; None: not limited."""
    return None if limits.cores is None else max(1, math.floor(limits.cores))


def cores_of(number: int, limits: Limits, available: Sequence[int]) -> set[int] | None:
    """Return the cores of the rank with that number on its host; None: all of them.

    Cores are assigned to ranks in order, starting again from the first when all are assigned.
    """
    if limits.cores is None or limits.cores >= len(available):
        return None
    count = max(1, math.ceil(limits.cores))
    return {available[(number * count + i) % len(available)] for i in range(count)}


class Confinement:
    """One rank's limits while it runs. ``enter`` is for the rank's process, all other methods are for its parent."""

    def __init__(self, number: int, limits: Limits, children: Children) -> None:
        self._limits, self._children, self._group = limits, children, _group(number, limits)
        self._cores = None if self._group else cores_of(number, limits, sorted(os.sched_getaffinity(0)))

    @property
    def is_polled(self) -> bool:
        """True if ``exceeded`` must be called repeatedly."""
        return self._group is None and self._limits.memory is not None

    def enter(self) -> None:
        """Apply the limits to this process."""
        if self._group is not None:
            (self._group / "cgroup.procs").write_text("0")
        elif self._cores is not None:
            os.sched_setaffinity(0, self._cores)

    def add(self, pid: int) -> None:
        """Apply the limits to a running process and all its threads; it may be gone.

        New threads inherit the cores of their creator, so the loop repeats only for threads created too early.
        """
        try:
            if self._group is not None:
                (self._group / "cgroup.procs").write_text(str(pid))
            elif self._cores is not None:
                done: set[str] = set()
                while new := {thread.name for thread in Path(f"/proc/{pid}/task").iterdir()} - done:
                    for thread in new:
                        os.sched_setaffinity(int(thread), self._cores)
                    done |= new
        except OSError:
            return

    def exceeded(self, pid: int) -> str:
        """Return why the rank has to be killed; "" if it is within its limits."""
        if not self.is_polled or self._limits.memory is None:
            return ""
        now = used(pid, self._children)
        return killed_for(now, self._limits.memory) if now > self._limits.memory else ""

    def close(self) -> str:
        """Remove the cgroup; return why Linux has killed the rank, "" if it has not."""
        if self._group is None:
            return ""
        peak = peak_if_killed(self._group)
        remove_cgroup(self._group)
        return "" if peak is None else killed_for(peak, self._limits.memory or peak)


def killed_for(now: int, limit: int) -> str:
    """Return the sentence for a rank that has exceeded its memory limit."""
    return f"killed for memory: {binary_size(now)} of its limit of {binary_size(limit)}"


def _group(number: int, limits: Limits) -> Path | None:
    parent = writable_cgroup() if limits else None
    if parent is None:
        return None
    try:
        return make_cgroup(parent, f"hvd-{os.getpid()}-{number}", limits.cores, limits.memory)
    except OSError:
        return None


MOUNT = Path("/sys/fs/cgroup")
_NEEDED = {"cpu", "memory"}
_PERIOD_US = 100_000


def writable_cgroup(mount: Path = MOUNT, cgroup_file: Path = Path("/proc/self/cgroup")) -> Path | None:
    """Return the group below which groups with limits can be created; None without such a kernel or the permission.

    A group with processes cannot enable controllers for its children, so they must be enabled already.
    """
    try:
        line = next(line for line in cgroup_file.read_text().splitlines() if line.startswith("0::"))
        group = mount / line.removeprefix("0::").lstrip("/")
        enabled = set((group / "cgroup.subtree_control").read_text().split())
    except (OSError, StopIteration):
        return None
    return group if enabled >= _NEEDED and os.access(group, os.W_OK) else None


def make_cgroup(parent: Path, name: str, cores: float | None, memory: int | None) -> Path:
    """Return a new group with these limits.

    Raises
    ------
    OSError
        If Linux does not allow it.
    """
    group = parent / name
    group.mkdir()
    try:
        if cores is not None:
            (group / "cpu.max").write_text(f"{max(1000, round(cores * _PERIOD_US))} {_PERIOD_US}")
        if memory is not None:
            (group / "memory.max").write_text(str(memory))
            for name_of, value in (("memory.swap.max", "0"), ("memory.oom.group", "1")):
                with suppress(OSError):  # no swap, or an older kernel
                    (group / name_of).write_text(value)
    except OSError:
        remove_cgroup(group)
        raise
    return group


def peak_if_killed(group: Path) -> int | None:
    """Return the bytes at which Linux killed a process of the group for memory; None if it has not."""
    events = dict(line.split() for line in _text(group / "memory.events").splitlines())
    if not int(events.get("oom_kill", 0)):
        return None
    return int(_text(group / "memory.peak") or _text(group / "memory.max") or 0)


def remove_cgroup(group: Path) -> None:
    """Remove a group whose processes have exited."""
    with suppress(OSError):
        group.rmdir()


def _text(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""


_PROC = Path("/proc")
_FIELD = re.compile(r"^(RssAnon|RssShmem):\s+(\d+) kB$", re.MULTILINE)

Children = Callable[[int], list[int]]


def used(pid: int, children: Children, proc: Path = _PROC) -> int:
    """Return the bytes of a process and its descendants: private pages of all, and the largest set of shared pages.

    Ranks share memory with each other and with their own workers: a sum would count the same pages many times.
    """
    held = [_held(process, proc) for process in descendants(pid, children)]
    return sum(private for private, _ in held) + max((shared for _, shared in held), default=0)


def descendants(pid: int, children: Children) -> Iterator[int]:
    """Yield a process and all its descendants."""
    yield pid
    for child in children(pid):
        yield from descendants(child, children)


def _held(pid: int, proc: Path) -> tuple[int, int]:
    try:
        fields = dict(_FIELD.findall((proc / str(pid) / "status").read_text()))
    except OSError:  # it has exited
        return 0, 0
    return int(fields.get("RssAnon", 0)) * 1024, int(fields.get("RssShmem", 0)) * 1024


# The ranks that fit on this machine: one rule for ``%hvd doctor``, magics and ``hvdrun``


RANK_BYTES = 500_000_000
"""Memory of one rank with torch imported, rounded up."""

ALWAYS = 8
"""Number of ranks that may always start: too few for a typing error, and without a framework they need a tenth."""


@dataclass(frozen=True)
class Capacity:
    """Free memory of this machine, or of this container, and the ranks that it holds."""

    free: int  # bytes

    @classmethod
    def now(cls) -> Capacity:
        """Return the current capacity."""
        return cls(free_memory())

    @property
    def ranks(self) -> int:
        """The number of ranks that fit."""
        return max(0, self.free) // RANK_BYTES

    @property
    def sentence(self) -> str:
        """The free memory and the number of ranks for users."""
        return f"{self.free / 1e9:.1f} GB free, room for about {plural(self.ranks, 'rank')}"

    def shortage(self, n: int, running: int = 0) -> str:
        """Return why this machine cannot hold ``n`` ranks, of which ``running`` run already; "" if it can."""
        if n - running <= self.ranks or n <= ALWAYS:
            return ""
        beside = f" beside the {running} that run" if running else ""
        return f"this machine cannot hold {n} ranks: {self.sentence}{beside}"

    def largest(self, running: int = 0) -> int:
        """Return the largest number of ranks that ``shortage`` accepts."""
        return max(ALWAYS, running + self.ranks)


def total_memory() -> int:
    """Return the bytes of the machine, or of this container, whichever is less."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = _text(MOUNT / "memory.max")
    return min(machine, int(limit)) if limit.isdecimal() else machine


def free_memory() -> int:
    """Return the bytes available without swapping, on the machine or in this container, whichever is less."""
    lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    machine = int(lines["MemAvailable"].split()[0]) << 10
    try:
        limit, used = (Path(f"/sys/fs/cgroup/memory.{name}").read_text().strip() for name in ("max", "current"))
    except OSError:
        return machine
    return machine if limit == "max" else min(machine, int(limit) - int(used))
