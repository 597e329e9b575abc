"""One rank compiles a graph, the others of the host read it: ``torch.compile`` on ranks that all come to it at once.

Inductor keeps what it has compiled in a folder that all processes of a user share, but ranks that find nothing there at
the same moment all compile the same, each with its own C++ compiler. Here whoever comes second waits for the first, and
then looks again. The lock is the system's: it ends with its process, however that ends. Who has waited too long
compiles for itself, as without this.

Terms.
  turn   the right to compile a graph, of which the cache's key says whether it is the same
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
_LOOK_S = 0.25


class Turn(threading.local):
    """That of this thread: at most one, because a thread compiles one graph after the other."""

    def __init__(self) -> None:
        self.key = ""
        self._lock = -1

    def begin(self, key: str, folder: str) -> bool:
        """Have the turn; False: another one has it. Where the folder cannot be written, everybody has it."""
        self.end()
        try:
            lock = os.open(os.path.join(folder, f"hvd-{key}"), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)  # noqa: PTH118 - torch has a string
        except OSError:
            return True
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(lock)
            return not isinstance(error, BlockingIOError)  # else it is a file system without locks
        self.key, self._lock = key, lock
        return True

    def end(self) -> None:
        """Let the next one have it. Idempotent."""
        if self._lock >= 0:
            os.close(self._lock)
        self.key, self._lock = "", -1


def attach(compile_fx: ModuleType) -> None:
    """Do it now that inductor's ``compile_fx`` has been imported, which ``frameworks/frontends.py`` waits for."""
    install(compile_fx, importlib.import_module("torch._inductor.codecache"))


def install(compile_fx: Any, codecache: Any) -> None:
    """Have inductor compile in turns; nothing changes where a version of it has other words.

    Parameters
    ----------
    compile_fx, codecache
        Its modules ``torch._inductor.compile_fx`` and ``torch._inductor.codecache``.
    """
    cache: Any = getattr(codecache, "FxGraphCache", None)
    names = (cache, "_lookup_graph"), (cache, "_save_graph"), (compile_fx, "fx_codegen_and_compile")
    if not all(hasattr(place, name) for place, name in (*names, (codecache, "get_lock_dir"))):
        return
    turn = Turn()
    lookup, save = (getattr(cache, name) for name in ("_lookup_graph", "_save_graph"))
    cache._lookup_graph = staticmethod(_looked_up(lookup, turn, codecache.get_lock_dir))  # noqa: SLF001 - as it is
    cache._save_graph = staticmethod(_saved(save, turn))  # noqa: SLF001 - as above
    compile_fx.fx_codegen_and_compile = _compiled(compile_fx.fx_codegen_and_compile, turn)


def _looked_up(plain: Callable[..., Any], turn: Turn, folder: Callable[[], str]) -> Callable[..., Any]:
    def lookup(key: str, *args: Any, **kwargs: Any) -> Any:
        found = plain(key, *args, **kwargs)
        deadline = time.monotonic() + WAIT_S
        while found[0] is None and turn.key != key:
            if not turn.begin(key, folder()):
                if time.monotonic() > deadline:
                    return found
                time.sleep(_LOOK_S)
            elif not turn.key:
                return found
            found = plain(key, *args, **kwargs)
        if found[0] is not None and turn.key == key:
            turn.end()
        return found

    return lookup


def _saved(plain: Callable[..., Any], turn: Turn) -> Callable[..., Any]:
    def save(*args: Any, **kwargs: Any) -> Any:
        try:
            return plain(*args, **kwargs)
        finally:
            turn.end()

    return save


def _compiled(plain: Callable[..., Any], turn: Turn) -> Callable[..., Any]:
    def compile_graph(*args: Any, **kwargs: Any) -> Any:
        try:
            return plain(*args, **kwargs)
        except BaseException:
            turn.end()
            raise

    return compile_graph
