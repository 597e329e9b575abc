"""A disk that can fail: system calls of files.py are counted, recorded, interrupted or refused.

Terms.
  call   one system call that changes something on disk, or makes a change durable
  crash  the power fails: what was made durable is there, of the rest any part
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

CHANGES = ("mkdir", "open", "write", "fsync", "rename", "unlink", "rmdir")


class Disk:
    """Stands for ``os``: each change goes through ``before``, with its number, name and arguments."""

    def __init__(self, before: Callable[[int, str, tuple[Any, ...]], Any] = lambda *_: None) -> None:
        self.before = before
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.open_files: dict[int, str] = {}

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        if name not in CHANGES:
            return real

        def call(*args: Any) -> Any:
            self.before(len(self.calls), name, args)
            if name == "open" and not args[1] & os.O_CREAT:
                file = real(*args)
                self.open_files[file] = str(args[0])
                return file
            known = tuple(self.open_files.get(arg, arg) if isinstance(arg, int) else arg for arg in args)
            self.calls.append((name, tuple(bytes(arg) if isinstance(arg, memoryview) else arg for arg in known)))
            result = real(*args)
            if name == "open":
                self.open_files[result] = str(args[0])
            return result

        return call


def killed_at(number: int) -> Callable[[int, str, tuple[Any, ...]], None]:
    """End the process at the change of that number; of a write the first half is done."""

    def before(now: int, name: str, args: tuple[Any, ...]) -> None:
        if now == number:
            if name == "write":
                os.write(args[0], args[1][: len(args[1]) // 2])
            os.kill(os.getpid(), signal.SIGKILL)

    return before


def ends_at(number: int, work: Callable[[Disk], Any]) -> bool:
    """Run the work in a child that is killed at a change; return whether it reached the change."""
    child = os.fork()
    if child == 0:
        try:
            work(Disk(killed_at(number)))
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    assert status in {0, signal.SIGKILL}
    return os.WIFSIGNALED(status)


class Crashed:
    """Possible contents of a disk if the power fails after a number of calls."""

    def __init__(self, before: Path, calls: list[tuple[str, tuple[Any, ...]]], dice: random.Random) -> None:
        self.dice = dice
        self.inodes: list[tuple[bytes, bytes]] = []  # of each file: what is durable, what was written
        self.durable: dict[str, int | None] = {}  # name -> its file, None: a folder
        self.pending: list[tuple[str, str, int | None]] = []  # folder, name, file; -1: it is gone
        self.now: dict[str, int | None] = {}
        for path in sorted(before.rglob("*")):
            self.now[str(path)] = self.durable[str(path)] = None if path.is_dir() else self._new(path.read_bytes())
        for name, args in calls:
            getattr(self, f"_{name}")(*(str(arg) if isinstance(arg, Path) else arg for arg in args))

    def _new(self, data: bytes = b"") -> int:
        self.inodes.append((data, data))
        return len(self.inodes) - 1

    def _entry(self, name: str, file: int | None) -> None:
        self.pending.append((str(Path(name).parent), name, file))
        if file == -1:
            self.now.pop(name, None)
        else:
            self.now[name] = file

    def _mkdir(self, name: str, *_: Any) -> None:
        if name not in self.now:
            self._entry(name, None)

    def _open(self, name: str, *_: Any) -> None:
        self._entry(name, self._new())

    def _write(self, name: str, data: bytes) -> None:
        file = self.now[name]
        assert file is not None
        self.inodes[file] = self.inodes[file][0], self.inodes[file][1] + data

    def _fsync(self, name: str) -> None:
        file = self.now.get(name)
        if file is not None:
            self.inodes[file] = self.inodes[file][1], self.inodes[file][1]
        for folder, entry, what in [one for one in self.pending if one[0] == name]:
            self._settle(entry, what)
            self.pending.remove((folder, entry, what))

    def _rename(self, old: str, new: str) -> None:
        file = self.now[old]
        self._entry(new, file)
        self._entry(old, -1)

    def _unlink(self, name: str) -> None:
        self._entry(name, -1)

    def _rmdir(self, name: str) -> None:
        self._entry(name, -1)

    def _settle(self, name: str, file: int | None) -> None:
        if file == -1:
            self.durable.pop(name, None)
        else:
            self.durable[name] = file

    def put(self, root: Path, onto: Path) -> None:
        """Write one possible disk: any part of the data that is not durable, with folders in any order."""
        for _, name, file in self.pending:
            if self.dice.random() < 0.5:
                self._settle(name, file)
        for name, file in sorted(self.durable.items()):
            path = onto / Path(name).relative_to(root)
            if not path.parent.is_dir():
                continue  # its folder is not there
            if file is None:
                path.mkdir(exist_ok=True)
                continue
            safe, written = self.inodes[file]
            more = written[len(safe) :]
            kept = more[: self.dice.randint(0, len(more))]
            zeroed = bytes(len(kept)) if self.dice.random() < 0.5 else kept
            path.write_bytes(safe + zeroed)
