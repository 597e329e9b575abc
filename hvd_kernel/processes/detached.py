"""Clusters that outlive their kernels, and how they are found again: by a note in their private folders, without a key.

Terms.
  detached  also "kept", after ``--keep``: its ranks go on when their kernel ends; it has a name, and a socket to which
            the next one connects (channel/attachment.py)
  place     the folder of the notebook that has kept it
  note      what others may know of it: name, place, ranks, which kernel has it, since when
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from hvd_kernel.errors import ClusterError
from hvd_kernel.formatting.plural import plural
from hvd_kernel.processes.lifetime import notes
from hvd_kernel.processes.private_dir import write_private

NAME = re.compile(r"\w[\w.-]{0,63}")
_FILE = "kept"
_UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


@dataclass(frozen=True)
class DetachedNote:
    """What the supervisor writes into the folder."""

    name: str
    place: str
    n: int
    kernel: int  # process id of the kernel that has it; 0: none
    since: float  # time.time() when that one came, or the last one left
    hours: float  # it ends by itself when it has been without a kernel for that long


@dataclass(frozen=True)
class DetachedCluster:
    """A detached cluster that lives."""

    note: DetachedNote
    folder: Path
    holder: str  # mark of its supervisor

    @property
    def sentence(self) -> str:
        """Say what it is: ``train: 4 ranks of /home/ann, without a kernel for 3 min``."""
        note = self.note
        who = f"used by kernel {note.kernel}" if note.kernel else "without a kernel"
        ranks = plural(note.n, "rank")
        return f"{note.name}: {ranks} of {note.place}, {who} for {age(time.time() - note.since)}"


def clusters() -> list[DetachedCluster]:
    """Return this user's detached clusters on this machine, by name."""
    alive = [DetachedCluster(*each) for each in notes(_FILE, DetachedNote)]
    return sorted(alive, key=lambda each: (each.note.name, each.folder))


def write(folder: Path, note: DetachedNote) -> None:
    """Leave a note in a cluster's folder, in place of the one before."""
    write_private(folder / _FILE, json.dumps(asdict(note)).encode())


def free_name(found: Sequence[DetachedCluster]) -> str:
    """Return a name for a cluster whose user has given none: ranks, ranks2, ranks3."""
    taken = {each.note.name for each in found}
    number = next(i for i in range(1, len(taken) + 2) if _numbered(i) not in taken)
    return _numbered(number)


def choose(found: Sequence[DetachedCluster], name: str, place: str) -> DetachedCluster:
    """Return the cluster of that name; without a name the only one of this place, first of all one without a kernel.

    Raises
    ------
    ClusterError
        There is none, or there are several; the message names them.
    """
    near = [each for each in found if each.note.place == place and not each.note.kernel] or [
        each for each in found if each.note.place == place
    ]
    fitting = [each for each in found if each.note.name == name] if name else near
    if len(fitting) == 1:
        return fitting[0]
    listed = "".join(f"\n  {each.sentence}" for each in fitting or found)
    if fitting:
        remedy = f"`%hvd clean --kept {name}` ends those without a kernel" if name else "say which: `%hvd attach NAME`"
        raise ClusterError(f"{len(fitting)} detached clusters are {_of(name, place)}; {remedy}:{listed}")
    if found:
        raise ClusterError(f"no detached cluster is {_of(name, place)}; `%hvd attach NAME` takes one of these:{listed}")
    raise ClusterError(f"no detached cluster is {_of(name, place)}: `%hvd start -np 4 --keep` starts one")


def age(seconds: float) -> str:
    """Write a time for people: ``3 min``."""
    size, unit = next((row for row in _UNITS if seconds >= row[0]), _UNITS[-1])
    return f"{max(0.0, seconds) // size:.0f} {unit}"


def _of(name: str, place: str) -> str:
    return f"of the name {name}" if name else f"of {place}"


def _numbered(number: int) -> str:
    return "ranks" if number == 1 else f"ranks{number}"
