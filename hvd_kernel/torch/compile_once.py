"""Sharing of ``torch.compile`` between the ranks of a host: one rank compiles a graph, the other ranks read it.

Inductor caches compiled graphs in a folder that all processes of a user share, but ranks that miss the cache at the
same moment all compile the same graph, each with its own C++ compiler. Here the first rank takes a lock, and the other
ranks wait for it and then read the cache. The lock belongs to the operating system: it is released when its process
ends for any reason. A rank that has waited too long compiles the graph itself, as without this module.
"""

from __future__ import annotations

import fcntl
import importlib
import os
import threading
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

WAIT_S = 300.0
_POLL_S = 0.25


class CompileLock(threading.local):
    """Lock on the compilation of a graph; at most one per thread, which compiles one graph after the other."""

    def __init__(self) -> None:
        self.key = ""  # inductor's cache key of the graph, if this thread holds its lock
        self._file = -1

    def acquire(self, key: str, folder: str) -> bool:
        """Return False if another process holds the lock; True without a lock if the folder cannot be written."""
        self.release()
        try:
            file = os.open(os.path.join(folder, f"hvd-{key}"), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)  # noqa: PTH118 - torch has a string
        except OSError:
            return True
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(file)
            return not isinstance(error, BlockingIOError)  # True for a file system without locks
        self.key, self._file = key, file
        return True

    def release(self) -> None:
        """Release the lock, if it is held."""
        if self._file >= 0:
            os.close(self._file)
        self.key, self._file = "", -1


def attach(compile_fx: ModuleType) -> None:
    """Install after the import of inductor's ``compile_fx``; see ``frameworks/frontends.py``."""
    install(compile_fx, importlib.import_module("torch._inductor.codecache"))


def install(compile_fx: Any, codecache: Any) -> None:
    """Make inductor compile under the lock; do nothing if this version of inductor lacks the patched functions.

    Parameters
    ----------
    compile_fx, codecache
        The modules ``torch._inductor.compile_fx`` and ``torch._inductor.codecache``.
    """
    cache: Any = getattr(codecache, "FxGraphCache", None)
    names = (cache, "_lookup_graph"), (cache, "_save_graph"), (compile_fx, "fx_codegen_and_compile")
    if not all(hasattr(place, name) for place, name in (*names, (codecache, "get_lock_dir"))):
        return
    lock = CompileLock()
    lookup, save = (getattr(cache, name) for name in ("_lookup_graph", "_save_graph"))
    cache._lookup_graph = staticmethod(_locking_lookup(lookup, lock, codecache.get_lock_dir))  # noqa: SLF001 - no public name
    cache._save_graph = staticmethod(_releasing_save(save, lock))  # noqa: SLF001 - as above
    compile_fx.fx_codegen_and_compile = _releasing_compile(compile_fx.fx_codegen_and_compile, lock)


def _locking_lookup(plain: Callable[..., Any], lock: CompileLock, folder: Callable[[], str]) -> Callable[..., Any]:
    """Return a cache lookup that takes the lock after a miss, and waits while another process holds it."""

    def lookup(key: str, *args: Any, **kwargs: Any) -> Any:
        entry = plain(key, *args, **kwargs)
        deadline = time.monotonic() + WAIT_S
        while entry[0] is None and lock.key != key:
            if not lock.acquire(key, folder()):
                if time.monotonic() > deadline:
                    return entry
                time.sleep(_POLL_S)
            elif not lock.key:
                return entry
            entry = plain(key, *args, **kwargs)
        if entry[0] is not None and lock.key == key:
            lock.release()
        return entry

    return lookup


def _releasing_save(plain: Callable[..., Any], lock: CompileLock) -> Callable[..., Any]:
    def save(*args: Any, **kwargs: Any) -> Any:
        try:
            return plain(*args, **kwargs)
        finally:
            lock.release()

    return save


def _releasing_compile(plain: Callable[..., Any], lock: CompileLock) -> Callable[..., Any]:
    def compile_graph(*args: Any, **kwargs: Any) -> Any:
        try:
            return plain(*args, **kwargs)
        except BaseException:
            lock.release()
            raise

    return compile_graph
