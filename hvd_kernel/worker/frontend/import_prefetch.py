"""Prefetch of imports, on a thread: modules that cells are likely to want, imported while no cell runs.

A cell waits for nothing that it does not want, and sees no module that is half imported:

- While a cell runs, the thread stands still, before its next module. It goes on as soon as any other thread waits for
  one that it is importing.
- Another thread that comes to a module of the same packages lets it finish first, and the thread does not begin while
  another one is half-way in one of them. So they are imported in one order, as on one thread; Python breaks a circle of
  import locks by an error. Whoever waits holds no import lock of theirs: packages that import each other (TensorFlow
  and Keras) would make a circle, and the thread may need the very module.
- A fork lets it finish, too: the child would find locks that nobody holds.

It imports nothing from the notebook's folder, which is on the path for cells: whoever can write there would have the
rank run code that no cell has asked for.
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

from hvd_kernel.worker.frontend.after_import import Between

_LOOK_S = 0.02  # between two looks at whether somebody waits for an import: Python tells nobody


class ImportPrefetch(MetaPathFinder):
    """One thread that imports modules, each after so many seconds in which no cell has run.

    ``companions``: packages that those of the modules import and that import them.
    """

    def __init__(self, rests: Mapping[str, float], companions: Collection[str] = ()) -> None:
        self._rests = rests
        self._packages = {*map(_package, rests), *companions}  # and those that they have it begin
        self._thread = threading.Thread(target=self._import_all, name="hvd-import", daemon=True)
        self._importing = threading.Lock()  # held by the thread while modules may be half imported
        self._at_fork = False  # held by whoever forks
        self._free = threading.Event()  # no cell runs, or somebody waits for what the thread is importing
        self._free.set()
        self._changed = threading.Condition()  # of the two below
        self._cells = 0  # that have begun
        self._in_cell = False

    def begin(self) -> None:
        """Start the thread; once."""
        if self._thread.ident is None:
            sys.meta_path.insert(0, self)  # is asked for every module that is not there yet
            os.register_at_fork(
                before=self._before_fork, after_in_parent=self._after_fork, after_in_child=self._after_fork
            )
            self._thread.start()

    @contextmanager
    def during_cell(self) -> Iterator[None]:
        """Have the thread stand still."""
        self._free.clear()
        self._tell(in_cell=True)
        try:
            yield
        finally:
            self._tell(in_cell=False)
            self._free.set()

    def _tell(self, *, in_cell: bool) -> None:
        with self._changed:
            self._in_cell, self._cells = in_cell, self._cells + in_cell
            self._changed.notify_all()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find what Python's own finder does, but have it wait before the module's code runs.

        Not here: Python holds a lock of all imports while it asks.
        """
        package, mine = _package(fullname), threading.get_ident() == self._thread.ident
        if not self._importing.locked() or not (mine or package in self._packages):
            return None
        if package not in sys.modules:
            self._packages.add(package)  # one that it begins
        is_top_level = mine and path is None  # the notebook's folder might have it
        spec = PathFinder.find_spec(fullname, _installed() if is_top_level else path, target)
        if is_top_level and spec is None and _only_here(fullname):
            return ModuleSpec(fullname, _NotInstalled())
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Waiting(spec.loader, self._stand_still if mine else self._let_finish)
        return spec

    def _stand_still(self, _: ModuleType) -> None:
        while not self._free.wait(_LOOK_S):
            others = [thread.ident for thread in threading.enumerate() if thread is not self._thread]
            if any(map(_waits_for_import, others)):
                self._free.set()

    def _let_finish(self, module: ModuleType) -> None:
        with self._unlocked(module):
            if self._finish():
                self._importing.release()

    @contextmanager
    def _unlocked(self, module: ModuleType) -> Iterator[None]:
        """Give back this thread's import locks of a module that is about to run, and of those that wait for it.

        Whoever has it then imports it anew; that one is in its place afterwards.
        """
        name = module.__name__
        locks = [lock for lock in _locks(self._packages) if lock.name == name or lock.name not in sys.modules]
        del sys.modules[name]
        given_back = [lock for lock in locks for _ in _released(lock)]
        try:
            yield
        finally:
            for lock in given_back:
                lock.acquire()
            sys.modules.setdefault(name, module)

    def _finish(self) -> bool:
        """Hold the lock, when nothing is half imported; False: the thread cannot finish.

        It is this one, or waits for a module of this one, or was not copied by a fork.
        """
        while not self._importing.acquire(blocking=False):
            self._free.set()
            itself = threading.get_ident() == self._thread.ident
            if itself or not self._thread.is_alive() or _waits_for_import(self._thread.ident):
                return False  # at once: whoever imports a package comes here for each of its thousand modules
            if self._importing.acquire(timeout=_LOOK_S):
                break
        return True

    def _before_fork(self) -> None:
        self._at_fork = self._finish()

    def _after_fork(self) -> None:
        if self._at_fork:
            self._importing.release()

    def _import_all(self) -> None:
        for name, seconds in self._rests.items():
            self._rest(seconds)
            with self._alone(), contextlib.suppress(Exception):  # whoever needs it hears why it fails
                importlib.import_module(name)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold the lock, as soon as no other thread is half-way in one of the packages."""
        self._importing.acquire()
        while _locks(self._packages, of_others=True):
            self._importing.release()
            threading.Event().wait(_LOOK_S)
            self._importing.acquire()
        try:
            yield
        finally:
            self._importing.release()

    def _rest(self, seconds: float) -> None:
        """Return when no cell has run for so long."""
        with self._changed:
            seen = -1
            while seen != self._cells:
                seen = self._cells
                self._changed.wait_for(lambda: not self._in_cell)
                self._changed.wait_for(lambda: self._cells != seen, seconds)  # noqa: B023 - of this round


class _NotInstalled(Loader):
    """Of a module that is not to be imported. An error while it is looked for would be one for who only asks for it."""

    def exec_module(self, module: ModuleType) -> None:
        """Say that there is none."""
        raise ModuleNotFoundError(f"No module named {module.__name__!r}", name=module.__name__)


class _Waiting(Between):
    """Waits before a module's code runs."""

    def exec_module(self, module: ModuleType) -> None:
        """Wait, and run the module's code; not of one that another thread has imported meanwhile."""
        super().exec_module(module)
        self.then(module)
        if sys.modules[module.__name__] is module:
            self.loader.exec_module(module)


def _installed() -> list[str]:
    """Return where modules are looked for, except in the folder that the process is in, which is the notebook's."""
    here = Path.cwd()
    return [place for place in sys.path if place and Path(place).resolve() != here]


def _only_here(name: str) -> bool:
    """Tell whether a module is in the process's folder, and neither built into Python nor of an editable package."""
    others = [each for each in sys.meta_path if each is not PathFinder and not isinstance(each, ImportPrefetch)]
    return PathFinder.find_spec(name) is not None and not any(each.find_spec(name, None) for each in others)


def _package(name: str) -> str:
    return name.partition(".")[0]


def _locks(packages: Collection[str], *, of_others: bool = False) -> list[Any]:
    """Return the import locks of modules of these packages that this thread has, or others."""
    me = threading.get_ident()
    known = [reference() for reference in list(vars(_bootstrap)["_module_locks"].values())]
    held = [lock for lock in known if getattr(lock, "owner", None) is not None and _package(lock.name) in packages]
    return [lock for lock in held if (lock.owner != me) == of_others]


def _released(lock: Any) -> Iterator[None]:
    """Release a lock of this thread's as often as it has been acquired."""
    while lock.owner == threading.get_ident():
        lock.release()
        yield


def _waits_for_import(thread: int | None) -> bool:
    """Tell whether a thread waits for another one to have imported a module."""
    frame = sys._current_frames().get(thread or 0)  # noqa: SLF001 - there is no other way to know
    if frame is None or frame.f_code.co_name != "acquire" or frame.f_globals.get("__name__") != "importlib._bootstrap":
        return False
    lock = frame.f_locals.get("self")
    return getattr(lock, "owner", None) not in {None, thread}  # every import is here for a moment
