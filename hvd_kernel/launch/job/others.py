"""Another launcher's line behind ``hvdrun --``: mpirun's, a platform's or horovodrun's own, flags and all. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from hvd_kernel.errors import UsageError
from hvd_kernel.jobs.tables.programs import ALL, HOROVOD, launcher

_ASKED = {"--version": "--version", "-V": "--version", "--help": "--help", "-h": "--help", "-help": "--help"}


def handed_on(words: Sequence[str], command: Sequence[str]) -> list[str]:
    """Return what hvdrun is to be called with instead; empty: the command is a program as any other.

    ``hvdrun -- mpirun ...`` is ``hvdrun job run -- mpirun ...``; horovodrun's flags are hvdrun's own.

    Parameters
    ----------
    words
        All that stands behind ``hvdrun``.
    command
        The last of them: what they start.

    Raises
    ------
    UsageError
        The line stands there as a program, of which each rank would start a job of its own.
    """
    name = launcher(command)
    if not name:
        return []
    flags = list(words[: len(words) - len(command)])
    if flags[-1:] != ["--"]:
        raise UsageError(
            f"hvdrun: each rank would call {name}: write -- before it, and hvdrun reads its line: hvdrun -- {name} ... "
            f"(`env {name}` is the program itself)"
        )
    asked = [_ASKED[word] for word in command[1:2] if word in _ASKED and name in ALL]
    return asked or ([*flags[:-1], *command[1:]] if name in HOROVOD else ["job", "run", *flags, *command])
