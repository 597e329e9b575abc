"""Discovery of clusters that outlive their kernels, by a note in their private folders; the note contains no key.

Terms.
  detached  also "kept", after ``--keep``: its ranks continue when their kernel exits; it has a name, and a socket for
            the next kernel (channel/attachment.py)
  place     the folder of the notebook that has kept it
  note      file with name, place, number of ranks, and the kernel that uses it since when
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from hvd_kernel.errors import ClusterError
from hvd_kernel.formatting.units import plural
from hvd_kernel.processes.lifetime import notes
from hvd_kernel.processes.private_dir import write_private

NAME = re.compile(r"\w[\w.-]{0,63}")
_FILE = "kept"
_UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


@dataclass(frozen=True)
class DetachedNote:
    """The note of a detached cluster, written by its supervisor."""

    name: str
    place: str
    n: int
    kernel: int  # process id of the kernel that uses it; 0: none
    since: float  # time.time() when that kernel attached, or the last one left
    hours: float  # the cluster exits after that time without a kernel


@dataclass(frozen=True)
class DetachedCluster:
    """A living detached cluster."""

    note: DetachedNote
    folder: Path
    holder: str  # mark of its supervisor

    @property
    def sentence(self) -> str:
        """Description for users: ``train: 4 ranks of /home/ann, without a kernel for 3 min``."""
        note = self.note
        usage = f"used by kernel {note.kernel}" if note.kernel else "without a kernel"
        ranks = plural(note.n, "rank")
        return f"{note.name}: {ranks} of {note.place}, {usage} for {age(time.time() - note.since)}"


def clusters() -> list[DetachedCluster]:
    """Return this user's detached clusters on this machine, by name."""
    alive = [DetachedCluster(*entry) for entry in notes(_FILE, DetachedNote)]
    return sorted(alive, key=lambda cluster: (cluster.note.name, cluster.folder))


def write(folder: Path, note: DetachedNote) -> None:
    """Write the note into a cluster's folder, replacing an earlier one."""
    write_private(folder / _FILE, json.dumps(asdict(note)).encode())


def free_name(existing: Sequence[DetachedCluster]) -> str:
    """Return an unused default name: ranks, ranks2, ranks3."""
    taken = {cluster.note.name for cluster in existing}
    number = next(i for i in range(1, len(taken) + 2) if _numbered(i) not in taken)
    return _numbered(number)


def choose(existing: Sequence[DetachedCluster], name: str, place: str) -> DetachedCluster:
    """Return the cluster of that name; without a name the only one of this place, preferably without a kernel.

    Raises
    ------
    ClusterError
        If no cluster matches, or several do; the message lists them.
    """
    here = [cluster for cluster in existing if cluster.note.place == place]
    unused = [cluster for cluster in here if not cluster.note.kernel]
    matching = [cluster for cluster in existing if cluster.note.name == name] if name else unused or here
    if len(matching) == 1:
        return matching[0]
    listed = "".join(f"\n  {cluster.sentence}" for cluster in matching or existing)
    if matching:
        remedy = f"`%hvd clean --kept {name}` ends those without a kernel" if name else "say which: `%hvd attach NAME`"
        raise ClusterError(f"{len(matching)} detached clusters are {_of(name, place)}; {remedy}:{listed}")
    if existing:
        raise ClusterError(f"no detached cluster is {_of(name, place)}; `%hvd attach NAME` takes one of these:{listed}")
    raise ClusterError(f"no detached cluster is {_of(name, place)}: `%hvd start -np 4 --keep` starts one")


def age(seconds: float) -> str:
    """Format a duration for users: ``3 min``."""
    size, unit = next((row for row in _UNITS if seconds >= row[0]), _UNITS[-1])
    return f"{max(0.0, seconds) // size:.0f} {unit}"


def _of(name: str, place: str) -> str:
    return f"of the name {name}" if name else f"of {place}"


def _numbered(number: int) -> str:
    return "ranks" if number == 1 else f"ranks{number}"
