"""Atomic files: written completely under another name, synced, then renamed. A crash leaves the old or the new file.

A rename is durable only when the folder is synced too: the file is synced first, then the folder.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

_UNFINISHED = ".unfinished-"


def make_folder(path: Path) -> None:
    """Create a folder, which may exist, and make its name durable."""
    with contextlib.suppress(FileExistsError):  # another rank was first
        os.mkdir(path)  # noqa: PTH102 - one system call
    sync_folder(path.parent)


def write_file(path: Path, chunks: Iterable[bytes | memoryview]) -> None:
    """Write a file atomically; an error leaves no file.

    Raises
    ------
    OSError
        For example, the disk is full; the error names the file.
    """
    unfinished = path.with_name(f"{_UNFINISHED}{path.name}")
    try:
        file = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            for chunk in chunks:
                _write_all(file, memoryview(chunk))
            os.fsync(file)
        finally:
            os.close(file)
        os.rename(unfinished, path)  # noqa: PTH104 - one system call
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(unfinished)  # noqa: PTH108 - one system call
        raise OSError(error.errno, error.strerror, str(path)) from error
    sync_folder(path.parent)


def _write_all(file: int, data: memoryview) -> None:
    while data:
        data = data[os.write(file, data) :]


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def remove_folder(path: Path) -> None:
    """Remove a folder of files, ignoring errors: another rank may do the same."""
    with contextlib.suppress(OSError):
        for name in os.listdir(path):  # noqa: PTH208 - one system call
            os.unlink(path / name)  # noqa: PTH108 - one system call
        os.rmdir(path)  # noqa: PTH106 - one system call
