"""Callbacks after the import of a module, by a finder in ``sys.meta_path``."""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

_LOG = logging.getLogger("hvd_kernel")


class AfterImport(MetaPathFinder):
    """Finder that calls back once with the module that the import returns, when its code has run.

    The import succeeds even if the callback raises, which is logged.

    Examples
    --------
    >>> AfterImport("wave", lambda module: print(module.__name__)).begin()
    >>> import wave
    wave
    """

    def __init__(self, name: str, then: Callable[[ModuleType], None]) -> None:
        self.name, self._then = name, then
        self._has_begun = False
        self._is_searching = False

    def begin(self) -> None:
        """Start waiting for the module; call back now if it is imported already. Later calls do nothing.

        If another thread is importing the module, the call waits until it has.
        """
        if self._has_begun:
            return
        self._has_begun = True
        if self.name in sys.modules:
            self._then(importlib.import_module(self.name))
        else:
            sys.meta_path.insert(0, self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the other finders' spec, with a loader that calls back."""
        if fullname != self.name or self._is_searching:  # called by another finder for the same module
            return None
        others = [finder.find_spec for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec")]
        specs = (find(fullname, path, target) for find in others)
        self._is_searching = True
        try:
            spec = next((spec for spec in specs if spec is not None), None)
        finally:
            self._is_searching = False
        if spec is not None and spec.loader is not None:
            spec.loader = _Then(spec.loader, self._done)
        return spec

    def _done(self, module: ModuleType) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        try:
            self._then(module)
        except Exception:  # noqa: BLE001 - the program may not need what is attached; it needs its import
            _LOG.exception("%s is imported, but something could not be attached to it", self.name)


class Between(Loader):
    """Loader that wraps a module's loader until the module's code runs, and then restores it."""

    def __init__(self, loader: Loader, then: Callable[[ModuleType], None]) -> None:
        self.loader, self.then = loader, then

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Create the module with its own loader."""
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Restore the module's own loader."""
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self.loader


class _Then(Between):
    """Loader that calls back after a module's code."""

    def exec_module(self, module: ModuleType) -> None:
        """Run the module's code, and call back."""
        super().exec_module(module)
        self.loader.exec_module(module)
        self.then(sys.modules.get(module.__name__, module))  # a module may replace itself
