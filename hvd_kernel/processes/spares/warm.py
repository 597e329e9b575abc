"""Warm ranks, and how they are found: a whole cluster that has run no cell waits for the next notebook of its user.

Terms.
  warm      started in idle time, with all imports done; taken once, and from then on an ordinary cluster
  likeness  digest of all that a rank takes over from who starts it: only ranks of the same can stand for fresh ones
  note      what others may know: likeness, ranks, since when, how long they wait; a file of the private folder, 0600
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from hvd_kernel.formatting.plural import plural
from hvd_kernel.processes.lifetime import notes
from hvd_kernel.processes.private_dir import write_private
from hvd_kernel.settings import lookup

_FILE = "warm"
_MINUTE_S = 60.0
_OF_THE_FRONT_END = re.compile(
    r"JPY_(SESSION_NAME|PARENT_PID|INTERRUPT_EVENT)|IPY_INTERRUPT_EVENT|VSCODE_\w+|SSH_\w+|TERM(_\w+)?|XDG_SESSION_\w+"
    r"|INVOCATION_ID|JOURNAL_STREAM|WINDOWID|COLUMNS|LINES|PWD|OLDPWD|SHLVL|_"
)
"""Variables that differ from notebook to notebook, and that nothing reads while it is imported: warm ranks get them."""


@dataclass(frozen=True)
class WarmNote:
    """What the supervisor of warm ranks writes into its folder."""

    likeness: str
    n: int
    since: float  # time.time()
    minutes: float  # after which they end, if nobody has taken them
    ready: bool  # all ranks have come


@dataclass(frozen=True)
class WarmCluster:
    """Ranks that wait, or get ready."""

    note: WarmNote
    folder: Path
    holder: str  # mark of their supervisor

    @property
    def sentence(self) -> str:
        """Say what it is: ``4 warm ranks, ready, for 27 more min (process 4711)``."""
        waited = max(0.0, time.time() - self.note.since) / _MINUTE_S
        state = "ready" if self.note.ready else "getting ready"
        ranks = plural(self.note.n, "warm rank")
        left = max(0.0, self.note.minutes - waited)
        return f"{ranks}, {state}, for {left:.0f} more min (process {self.holder.partition(':')[0]})"


def clusters() -> list[WarmCluster]:
    """Return those of this user on this machine, the oldest first."""
    return sorted((WarmCluster(*each) for each in notes(_FILE, WarmNote)), key=lambda each: each.note.since)


def pool_minutes() -> float:
    """Return how long the user wants warm ranks to wait (HVD_POOL); 0: none are wanted."""
    return float(lookup.value("HVD_POOL", os.environ))


def write(folder: Path, note: WarmNote) -> None:
    """Leave the note, in place of the one before."""
    write_private(folder / _FILE, json.dumps(asdict(note)).encode())


def remove(folder: Path) -> None:
    """Take the note away: the ranks are taken."""
    (folder / _FILE).unlink(missing_ok=True)


def of_the_front_end(variables: Mapping[str, str]) -> dict[str, str]:
    """Return those variables that differ from notebook to notebook.

    Examples
    --------
    >>> of_the_front_end({"JPY_SESSION_NAME": "a.ipynb", "OMP_NUM_THREADS": "2", "_": "/bin/sh"})
    {'JPY_SESSION_NAME': 'a.ipynb', '_': '/bin/sh'}
    """
    return {name: value for name, value in variables.items() if _OF_THE_FRONT_END.fullmatch(name)}


def move_in(folder: str, variables: Mapping[str, str]) -> None:
    """Have this process be where a notebook is, with its front end's variables and none of another's.

    Raises
    ------
    OSError
        The folder cannot be entered.
    """
    os.chdir(folder)
    for name in of_the_front_end(os.environ):
        if name not in variables:
            del os.environ[name]
    os.environ.update(variables, PWD=folder)
