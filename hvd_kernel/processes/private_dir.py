"""Private folders and files: names that nobody can guess, for this user alone, where nobody can move them away."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from hvd_kernel.errors import ClusterError

CALL = "call"
"""Name of the file that holds the call which a rank is to carry out."""

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def private_folder() -> Path:
    """Make the folder, 0700 whatever the umask.

    Raises
    ------
    ClusterError
        Other users may rename what lies in the temporary folder, and so put a folder of theirs in the place of ours.
    """
    place = Path(tempfile.gettempdir())
    found = place.stat()
    movable = found.st_mode & _OTHERS_WRITE and not found.st_mode & stat.S_ISVTX
    if movable or found.st_uid not in {0, os.geteuid()}:
        raise ClusterError(
            f"{place} is not a safe place for temporary files: other users can replace what lies there. Set TMPDIR to "
            f"a folder of your own, or `chmod +t {place}`."
        )
    return Path(tempfile.mkdtemp(prefix="hvd-"))


def answer_file(folder: Path, number: int) -> Path:
    """Return where a rank leaves its answer to the call; ``number``: its own, or in an elastic job its process's."""
    return folder / f"answer.{number}"


def write_private(file: Path, content: bytes) -> None:
    """Write a file that nobody else can read, in place of one before; it has its name only once it is whole."""
    unfinished = file.with_name(f".{file.name}")
    with os.fdopen(os.open(unfinished, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600), "wb") as out:
        out.write(content)
    unfinished.replace(file)


def is_own(folder: Path) -> bool:
    """Whether it is a folder of this user's, and no link to one."""
    try:
        found = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
