"""Prefetch: a thread that imports modules that cells are likely to use while no cell runs.

A cell does not wait for modules that it does not use, and sees no half-imported module:

- While a cell runs, the thread pauses before its next module. It continues as soon as another thread waits for a module
  that it is importing.
- Another thread that imports a module of the same packages waits until the thread has finished, and the thread does not
  start while another one is importing one of them. So the modules are imported in one order, as on a single thread;
  otherwise Python would break a deadlock of import locks with an error. A waiting thread holds no import lock of these
  packages: packages that import each other (TensorFlow and Keras) would deadlock, and the thread may need that module.
- A fork waits for the thread, too: the child would inherit locks without an owner.

It imports nothing from the notebook's folder, which is on the path for cells: code that any user with write access
places there would run in the rank without a cell that imports it.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import _bootstrap  # nothing public has the import locks
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

from hvd_kernel.frameworks.after_import import Between

_POLL_S = 0.02  # Python has no notification of threads that wait for an import


class ImportPrefetch(MetaPathFinder):
    """Thread that imports modules, each after a given number of seconds without a cell.

    ``companions``: other packages that import the modules' packages and are imported by them.
    """

    def __init__(self, rests: Mapping[str, float], companions: Collection[str] = ()) -> None:
        self._rests = rests
        self._packages = {*map(_package, rests), *companions}  # also packages that their imports start
        self._thread = threading.Thread(target=self._import_all, name="hvd-import", daemon=True)
        self._importing = threading.Lock()  # held by the thread while modules may be half imported
        self._at_fork = False  # held by a forking thread
        self._free = threading.Event()  # no cell runs, or a thread waits for a module being imported
        self._free.set()
        self._changed = threading.Condition()  # of the two fields below
        self._cells = 0  # number of started cells
        self._in_cell = False

    def begin(self) -> None:
        """Start the thread; once."""
        if self._thread.ident is None:
            sys.meta_path.insert(0, self)  # is called for every module that is not imported yet
            os.register_at_fork(
                before=self._before_fork, after_in_parent=self._after_fork, after_in_child=self._after_fork
            )
            self._thread.start()

    @contextmanager
    def during_cell(self) -> Iterator[None]:
        """Pause the thread during a cell."""
        self._free.clear()
        self._set_in_cell(in_cell=True)
        try:
            yield
        finally:
            self._set_in_cell(in_cell=False)
            self._free.set()

    def _set_in_cell(self, *, in_cell: bool) -> None:
        with self._changed:
            self._in_cell, self._cells = in_cell, self._cells + in_cell
            self._changed.notify_all()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of Python's own finder, with a loader that waits before the module's code runs.

        Waiting here is impossible: Python holds a lock of all imports during this call.
        """
        package, is_thread = _package(fullname), threading.get_ident() == self._thread.ident
        if not self._importing.locked() or not (is_thread or package in self._packages):
            return None
        if package not in sys.modules:
            self._packages.add(package)  # a package that the thread starts
        is_top_level = is_thread and path is None  # it might be in the notebook's folder
        spec = PathFinder.find_spec(fullname, _installed() if is_top_level else path, target)
        if is_top_level and spec is None and _only_here(fullname):
            return ModuleSpec(fullname, _NotInstalled())
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Waiting(spec.loader, self._pause_in_cell if is_thread else self._wait_for_thread)
        return spec

    def _pause_in_cell(self, _: ModuleType) -> None:
        while not self._free.wait(_POLL_S):
            others = [thread.ident for thread in threading.enumerate() if thread is not self._thread]
            if any(map(_waits_for_import, others)):
                self._free.set()

    def _wait_for_thread(self, module: ModuleType) -> None:
        with self._unlocked(module):
            if self._acquire_when_finished():
                self._importing.release()

    @contextmanager
    def _unlocked(self, module: ModuleType) -> Iterator[None]:
        """Release this thread's import locks of a module that is about to run, and of modules that wait for it.

        A thread that gets the lock imports the module again, and that module replaces this one.
        """
        name = module.__name__
        locks = [lock for lock in _locks(self._packages) if lock.name == name or lock.name not in sys.modules]
        del sys.modules[name]
        released = [lock for lock in locks for _ in _released(lock)]
        try:
            yield
        finally:
            for lock in released:
                lock.acquire()
            sys.modules.setdefault(name, module)

    def _acquire_when_finished(self) -> bool:
        """Acquire the lock when no module is half imported; return False if the thread cannot finish.

        It is this thread, or waits for a module of this one, or was not copied by a fork.
        """
        while not self._importing.acquire(blocking=False):
            self._free.set()
            is_thread = threading.get_ident() == self._thread.ident
            if is_thread or not self._thread.is_alive() or _waits_for_import(self._thread.ident):
                return False  # without waiting: this runs for each of the thousand modules of a package
            if self._importing.acquire(timeout=_POLL_S):
                break
        return True

    def _before_fork(self) -> None:
        self._at_fork = self._acquire_when_finished()

    def _after_fork(self) -> None:
        if self._at_fork:
            self._importing.release()

    def _import_all(self) -> None:
        for name, seconds in self._rests.items():
            self._rest(seconds)
            with self._alone(), contextlib.suppress(Exception):  # the import that needs it raises again
                importlib.import_module(name)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold the lock, as soon as no other thread is importing one of the packages."""
        self._importing.acquire()
        while _locks(self._packages, of_others=True):
            self._importing.release()
            threading.Event().wait(_POLL_S)
            self._importing.acquire()
        try:
            yield
        finally:
            self._importing.release()

    def _rest(self, seconds: float) -> None:
        """Return when no cell has run for this time."""
        with self._changed:
            seen = -1
            while seen != self._cells:
                seen = self._cells
                self._changed.wait_for(lambda: not self._in_cell)
                self._changed.wait_for(lambda: self._cells != seen, seconds)  # noqa: B023 - of this round


class _NotInstalled(Loader):
    """Loader of a module that must not be imported. An error in the finder would affect code that only searches it."""

    def exec_module(self, module: ModuleType) -> None:
        """Raise ModuleNotFoundError."""
        raise ModuleNotFoundError(f"No module named {module.__name__!r}", name=module.__name__)


class _Waiting(Between):
    """Loader that waits before a module's code runs."""

    def exec_module(self, module: ModuleType) -> None:
        """Wait, and run the module's code, unless another thread has imported the module meanwhile."""
        super().exec_module(module)
        self.then(module)
        if sys.modules[module.__name__] is module:
            self.loader.exec_module(module)


def _installed() -> list[str]:
    """Return the search path without the current folder, which is the notebook's."""
    here = Path.cwd()
    return [place for place in sys.path if place and Path(place).resolve() != here]


def _only_here(name: str) -> bool:
    """Return whether a module is in the current folder, and neither built into Python nor in an editable package."""
    finders = [finder for finder in sys.meta_path if finder is not PathFinder]
    others = [finder for finder in finders if not isinstance(finder, ImportPrefetch)]
    return PathFinder.find_spec(name) is not None and not any(finder.find_spec(name, None) for finder in others)


def _package(name: str) -> str:
    return name.partition(".")[0]


def _locks(packages: Collection[str], *, of_others: bool = False) -> list[Any]:
    """Return the import locks of these packages' modules that this thread holds, or that other threads hold."""
    me = threading.get_ident()
    locks = [reference() for reference in list(vars(_bootstrap)["_module_locks"].values())]
    held = [lock for lock in locks if getattr(lock, "owner", None) is not None and _package(lock.name) in packages]
    return [lock for lock in held if (lock.owner != me) == of_others]


def _released(lock: Any) -> Iterator[None]:
    """Release a lock of this thread as often as it was acquired, yielding each time."""
    while lock.owner == threading.get_ident():
        lock.release()
        yield


def _waits_for_import(thread: int | None) -> bool:
    """Return whether a thread waits for another thread's import of a module."""
    frame = sys._current_frames().get(thread or 0)  # noqa: SLF001 - there is no other way to know
    if frame is None or frame.f_code.co_name != "acquire" or frame.f_globals.get("__name__") != "importlib._bootstrap":
        return False
    lock = frame.f_locals.get("self")
    return getattr(lock, "owner", None) not in {None, thread}  # every import passes through here briefly
