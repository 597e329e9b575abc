"""Private folders and files: unguessable names, for this user only, where other users cannot replace them."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from hvd_kernel.errors import ClusterError

CALL = "call"
"""Name of the file with the call that a rank is to run."""

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def private_folder() -> Path:
    """Create a private folder with mode 0700, independent of the umask.

    Raises
    ------
    ClusterError
        If other users may rename entries of the temporary folder, and so replace our folder by theirs.
    """
    place = Path(tempfile.gettempdir())
    status = place.stat()
    movable = status.st_mode & _OTHERS_WRITE and not status.st_mode & stat.S_ISVTX
    if movable or status.st_uid not in {0, os.geteuid()}:
        raise ClusterError(
            f"{place} is not a safe place for temporary files: other users can replace the files in it. Set TMPDIR to "
            f"a folder of your own, or `chmod +t {place}`."
        )
    return Path(tempfile.mkdtemp(prefix="hvd-"))


def answer_file(folder: Path, number: int) -> Path:
    """Return the path of a rank's answer to the call; ``number``: of the rank, in an elastic job of its process."""
    return folder / f"answer.{number}"


def write_private(file: Path, content: bytes) -> None:
    """Write a file that only this user can read; replaces an existing one atomically."""
    unfinished = file.with_name(f".{file.name}")
    with os.fdopen(os.open(unfinished, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600), "wb") as out:
        out.write(content)
    unfinished.replace(file)


def is_own(folder: Path) -> bool:
    """Return whether a path is a folder of this user, and not a link to one."""
    try:
        status = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
