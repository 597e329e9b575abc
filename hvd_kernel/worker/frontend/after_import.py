"""What is done once a module has been imported, by whoever and whenever: nothing is imported for it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


class AfterImport(MetaPathFinder):
    """Calls back when the module has run; it asks to be called no more after that.

    Examples
    --------
    >>> AfterImport("wave", lambda module: print(module.__name__)).begin()
    >>> import wave
    wave
    """

    def __init__(self, name: str, then: Callable[[ModuleType], None]) -> None:
        self._name, self._then = name, then
        self._has_begun = False

    def begin(self) -> None:
        """Wait for the module; one that is there already has been waited for. Once."""
        if self._has_begun:
            return
        self._has_begun = True
        if self._name in sys.modules:
            self._then(sys.modules[self._name])
        else:
            sys.meta_path.insert(0, self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find what the other finders do, with a loader that calls back."""
        if fullname != self._name:
            return None
        others = [each.find_spec for each in sys.meta_path if each is not self and hasattr(each, "find_spec")]
        spec = next((found for find in others if (found := find(fullname, path, target)) is not None), None)
        if spec is not None and spec.loader is not None:
            spec.loader = _Then(spec.loader, self._done)
        return spec

    def _done(self, module: ModuleType) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        self._then(module)


class Between(Loader):
    """Stands between a module and its own loader until the module's code runs; the module has its own one back then."""

    def __init__(self, loader: Loader, then: Callable[[ModuleType], None]) -> None:
        self.loader, self.then = loader, then

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Do as the module's own loader does."""
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Give the module its own loader back."""
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self.loader


class _Then(Between):
    """Calls back after a module's code."""

    def exec_module(self, module: ModuleType) -> None:
        """Run the module's code, and call back."""
        super().exec_module(module)
        self.loader.exec_module(module)
        self.then(module)
