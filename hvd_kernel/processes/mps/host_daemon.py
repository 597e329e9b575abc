"""MPS daemon of a host, for agents that hold one rank each: MPI or a cluster engine has started them.

The first agent of a run to come starts a private daemon (daemon.py), under a lock for which the others wait, and notes
for them how to find it. It ends with that agent: the agents of a run end together, and where one alone is lost its
daemon is lost with it, as with a client that dies.

    agent --flock--> note: {variables of the clients} <--flock-- agent
      '--> daemon
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from hvd_kernel.errors import ClusterError
from hvd_kernel.processes.lifetime import claim
from hvd_kernel.processes.mps import decision
from hvd_kernel.processes.mps.daemon import WITHOUT, PrivateDaemon
from hvd_kernel.processes.mps.watchdog import lives
from hvd_kernel.processes.private_dir import is_own

_NOTE = "mps.json"


class HostDaemon:
    """One for all agents of a run on this host. ``own``: what this agent starts if it is the first."""

    def __init__(self, own: PrivateDaemon, say: Callable[[str], None]) -> None:
        self._own, self._say = own, say
        self._folder: Path | None = None  # of the note, where this agent has written it

    def variables(self, run: str, ranks: int, env: Mapping[str, str]) -> dict[str, str]:
        """Return what clients find it by, {} where there is none.

        Parameters
        ----------
        run
            32 hexadecimal digits that the agents of a run have from their launcher, and nobody else.
        ranks
            How many ranks on this host share this rank's devices.
        env
            The rank's environment.
        """
        if decision.look(ranks, env).kind != "private":
            return {}  # and no note: what holds for this rank's devices need not hold for all of the host
        try:
            with _noted(run) as note:
                told = _read(note)
                if told is None or _has_died(told):
                    told = self._own.variables(ranks, env)
                    self._folder = _place(run)
                    claim(self._folder)
                    _write(note, told)
                return told
        except (OSError, ClusterError) as error:
            self._say(f"{WITHOUT}: {str(error).removesuffix('.')}")
            return {}

    def close(self) -> None:
        """Have nobody find it any more; whoever has made ``own`` ends that."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None


def _place(run: str) -> Path:
    return Path(tempfile.gettempdir()) / f"hvd-{run}"


@contextmanager
def _noted(run: str) -> Iterator[BinaryIO]:
    """Give the run's note to this agent alone; the folder may go while it waits: then another is made."""
    folder = _place(run)
    while True:
        folder.mkdir(mode=0o700, exist_ok=True)
        if not is_own(folder):
            raise ClusterError(f"{folder} is not this user's own folder")
        try:
            descriptor = os.open(folder / _NOTE, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        except FileNotFoundError:
            continue
        with os.fdopen(descriptor, "r+b") as note:
            fcntl.flock(note, fcntl.LOCK_EX)
            if os.fstat(descriptor).st_nlink:
                yield note
                return


def _read(note: BinaryIO) -> dict[str, str] | None:
    """Return what is noted; None: nothing yet, or not all, as its writer was killed."""
    try:
        told: dict[str, str] = json.loads(note.read())
    except ValueError:
        return None
    return told


def _write(note: BinaryIO, told: Mapping[str, str]) -> None:
    note.seek(0)
    note.truncate()
    note.write(json.dumps(dict(told)).encode())
    note.flush()


def _has_died(told: Mapping[str, str]) -> bool:
    return decision.PIPES in told and not lives(Path(told[decision.PIPES]))
