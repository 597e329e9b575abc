"""Discovery of warm ranks: clusters that have run no cell and wait for the next notebook of their user.

Terms.
  warm      started in idle time, with all imports done; adopted once, and from then on an ordinary cluster
  likeness  digest of everything that a rank inherits from its starter (cluster/warm_ranks.py)
  note      file in the private folder (0600) with likeness, number of ranks, start time and time limit
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from hvd_kernel.formatting.units import plural
from hvd_kernel.processes.lifetime import notes
from hvd_kernel.processes.private_dir import write_private
from hvd_kernel.settings import lookup

_FILE = "warm"
_MINUTE_S = 60.0
_OF_THE_FRONT_END = re.compile(
    r"JPY_(SESSION_NAME|PARENT_PID|INTERRUPT_EVENT)|IPY_INTERRUPT_EVENT|VSCODE_\w+|SSH_\w+|TERM(_\w+)?|XDG_SESSION_\w+"
    r"|INVOCATION_ID|JOURNAL_STREAM|WINDOWID|COLUMNS|LINES|PWD|OLDPWD|SHLVL|_"
)
"""Variables that differ between notebooks and that no import reads: warm ranks receive them when they are adopted."""


@dataclass(frozen=True)
class WarmNote:
    """The note of warm ranks, written by their supervisor."""

    likeness: str
    n: int
    since: float  # time.time()
    minutes: float  # after which they exit unless they are adopted
    ready: bool  # all ranks have registered


@dataclass(frozen=True)
class WarmCluster:
    """Ranks that wait, or get ready."""

    note: WarmNote
    folder: Path
    holder: str  # mark of their supervisor

    @property
    def sentence(self) -> str:
        """Description for users: ``4 warm ranks, ready, for 27 more min (process 4711)``."""
        waited = max(0.0, time.time() - self.note.since) / _MINUTE_S
        state = "ready" if self.note.ready else "getting ready"
        ranks = plural(self.note.n, "warm rank")
        left = max(0.0, self.note.minutes - waited)
        return f"{ranks}, {state}, for {left:.0f} more min (process {self.holder.partition(':')[0]})"


def clusters() -> list[WarmCluster]:
    """Return the warm clusters of this user on this machine, the oldest first."""
    return sorted((WarmCluster(*entry) for entry in notes(_FILE, WarmNote)), key=lambda cluster: cluster.note.since)


def pool_minutes() -> float:
    """Return how long warm ranks are to wait (HVD_POOL); 0: do not start any."""
    return float(lookup.value("HVD_POOL", os.environ))


def write(folder: Path, note: WarmNote) -> None:
    """Write the note, replacing an earlier one."""
    write_private(folder / _FILE, json.dumps(asdict(note)).encode())


def remove(folder: Path) -> None:
    """Remove the note: the ranks were adopted."""
    (folder / _FILE).unlink(missing_ok=True)


def of_the_front_end(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that differ between notebooks.

    Examples
    --------
    >>> of_the_front_end({"JPY_SESSION_NAME": "a.ipynb", "OMP_NUM_THREADS": "2", "_": "/bin/sh"})
    {'JPY_SESSION_NAME': 'a.ipynb', '_': '/bin/sh'}
    """
    return {name: value for name, value in variables.items() if _OF_THE_FRONT_END.fullmatch(name)}


def move_in(folder: str, variables: Mapping[str, str]) -> None:
    """Change this process's working directory and front end variables to those of a notebook.

    Raises
    ------
    OSError
        If the folder cannot be entered.
    """
    os.chdir(folder)
    for name in of_the_front_end(os.environ):
        if name not in variables:
            del os.environ[name]
    os.environ.update(variables, PWD=folder)
