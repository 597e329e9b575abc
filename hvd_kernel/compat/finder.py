"""Import finder from Horovod's module names to ours: the table, and what Python's import asks.

Terms.
  alias      two names in ``sys.modules`` for one and the same module: horovod.torch is hvd_kernel.torch
  target     the module of ours that a name of Horovod's leads to
  synthetic  a module without a file, for names of Horovod's that have no counterpart: see ``plumbing``

What is not there is explained to whoever imports it; ``importlib.util.find_spec`` only asks, and gets None.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import InspectLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import CodeType, FrameType, ModuleType
from typing import Any, ClassVar

from hvd_kernel.compat.names import lend

NAME = "horovod"
ROOT = "hvd_kernel.compat.tree"
TABLE = {  # a name, and what is below it; the longest that fits is taken
    NAME: ROOT,
    "horovod.torch": "hvd_kernel.torch",
    "horovod.tensorflow": "hvd_kernel.tensorflow",
    "horovod.tensorflow.gradient_aggregation": "hvd_kernel.tensorflow.training.helpers",
    "horovod.tensorflow.gradient_aggregation_eager": "hvd_kernel.tensorflow.training.helpers",
    "horovod.mxnet": "hvd_kernel.mxnet",
    "horovod.keras": "hvd_kernel.keras",
    "horovod._keras": "hvd_kernel.keras.impl",
    "horovod.data": "hvd_kernel.data",
    "horovod.ray": "hvd_kernel.ray",
    "horovod.spark": "hvd_kernel.spark",
    "horovod.spark.task": "hvd_kernel.spark.task",
    "horovod.common.process_sets": "hvd_kernel.core.process_sets",
    "horovod.common.elastic": "hvd_kernel.elastic",
    "horovod.runner.elastic.worker": "hvd_kernel.elastic.updates",
}
_WITH = {  # modules that come with a package
    "horovod.torch": ("horovod.torch.mpi_ops", "horovod.torch.optimizer"),
    "horovod.tensorflow": ("horovod.tensorflow.mpi_ops",),
    "horovod.mxnet": ("horovod.mxnet.mpi_ops",),
}
_HERE = (
    "horovod, horovod.torch, horovod.tensorflow, horovod.mxnet, horovod.keras, horovod.data, horovod.spark, "
    "horovod.ray, horovod.common and horovod.runner"
)
_ASKS = importlib.util.find_spec.__code__


class HorovodFinder(MetaPathFinder):
    """Knows the names that begin with horovod."""

    def __init__(self, shadow: bool) -> None:
        self.shadow = shadow

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return where the name leads to; None where it is not ours to say.

        Raises
        ------
        ModuleNotFoundError
            We stand in for Horovod, but this part of it is not there; the message says what is.
        """
        del path, target  # of Python's interface
        if fullname == NAME:
            return None if not self.shadow and real_exists() else _spec(fullname)
        if fullname.startswith(NAME + ".") and ours(sys.modules.get(NAME)):
            return _spec(fullname)
        return None


class _AliasLoader(InspectLoader):
    """Gives the target itself as the module."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._own_spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:  # noqa: ARG002 - of Python's interface
        module = importlib.import_module(self._target)
        self._own_spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Give the module its own spec back, which Python has replaced by the alias's: reload goes by it."""
        module.__spec__ = self._own_spec

    def is_package(self, fullname: str) -> bool:
        return self._spec_of_target(fullname).submodule_search_locations is not None

    def get_source(self, fullname: str) -> str | None:
        source: str | None = self._real_loader(fullname).get_source(self._target)
        return source

    def get_code(self, fullname: str) -> CodeType | None:
        """Return what ``python -m`` runs."""
        code: CodeType | None = self._real_loader(fullname).get_code(self._target)
        return code

    def _real_loader(self, fullname: str) -> Any:
        return self._spec_of_target(fullname).loader

    def _spec_of_target(self, fullname: str) -> ModuleSpec:
        found = _found(self._target)
        if found is None:
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)
        return found


class _HorovodLoader(_AliasLoader):
    """Lets the target, and what comes with it, find the names that only Horovod's modules have."""

    def __init__(self, target: str, fullname: str) -> None:
        super().__init__(target)
        self._names = (fullname, *_WITH.get(fullname, ()))

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        for name in self._names:
            lend(name, sys.modules[target_of(name)])


class _SyntheticLoader(InspectLoader):
    """Makes a module of the table ``plumbing``: once, so that its classes stay the same."""

    _made: ClassVar[dict[str, ModuleType]] = {}

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._made.setdefault(spec.name, ModuleType(spec.name))

    def exec_module(self, module: ModuleType) -> None:
        """Give it what it needs to find its names."""
        listed = _plumbing().public(module.__name__)
        module.__doc__ = f"Names of Horovod's ``{module.__name__}``, which has no counterpart in hvd_kernel."
        vars(module)["__all__"] = listed
        lend(module.__name__, module)

    def is_package(self, fullname: str) -> bool:
        package: bool = _plumbing().is_package(fullname)
        return package

    def get_source(self, fullname: str) -> str | None:
        """Return what ``python -m`` runs: the refusal."""
        return f"from hvd_kernel.compat.plumbing import run_as_main\nrun_as_main({fullname!r})\n"


def target_of(fullname: str) -> str:
    """Return the name of the module that a name of Horovod's leads to, whether there is one or not."""
    parts = fullname.split(".")
    known = next(known for end in range(len(parts), 0, -1) if (known := ".".join(parts[:end])) in TABLE)
    return TABLE[known] + fullname.removeprefix(known)


def ours(module: ModuleType | None) -> bool:
    """Tell whether what is imported as horovod is our stand-in."""
    return module is not None and module.__name__ == ROOT


def real_exists() -> bool:
    """Tell whether this Python has a horovod of its own; a folder without ``__init__`` that has its name is none."""
    if NAME in sys.modules:
        return not ours(sys.modules[NAME])
    others = (finder for finder in sys.meta_path if not isinstance(finder, HorovodFinder))
    found = (finder.find_spec(NAME, None) for finder in others)
    first = next((spec for spec in found if spec is not None), None)
    return first is not None and first.origin is not None


def _spec(fullname: str) -> ModuleSpec | None:
    target = target_of(fullname)
    found = _found(target)
    if found is None and fullname in _plumbing().PLUMBING:
        return ModuleSpec(fullname, _SyntheticLoader(), is_package=_plumbing().is_package(fullname))
    if found is None and _is_question():
        return None
    if found is None:
        raise ModuleNotFoundError(
            f"No module named {fullname!r}: hvd_kernel stands in for Horovod in this process and has {_HERE}. "
            "For its other frontends and launchers install horovod itself.",
            name=fullname,
        )
    return _to(fullname, _HorovodLoader(target, fullname), found)


def alias(fullname: str, target: str) -> ModuleSpec:
    """Return a spec by which ``fullname`` is another name of the module ``target``, which is there."""
    found = _found(target)
    assert found is not None, target
    return _to(fullname, _AliasLoader(target), found)


def _to(fullname: str, loader: _AliasLoader, found: ModuleSpec) -> ModuleSpec:
    package = found.submodule_search_locations is not None
    spec = ModuleSpec(fullname, loader, origin=found.origin, is_package=package)
    if package:
        spec.submodule_search_locations = list(found.submodule_search_locations or [])
    return spec


def _plumbing() -> Any:
    """Return the table, which most ranks never need."""
    return importlib.import_module("hvd_kernel.compat.plumbing")


def _is_question() -> bool:
    """Tell whether Python's import machinery was called by ``find_spec``: it tells the finder nothing of that."""
    frame: FrameType | None = sys._getframe()  # noqa: SLF001 - inspect's is the same, and costs every rank its import
    while frame is not None and frame.f_globals.get("__name__") in {__name__, "importlib._bootstrap"}:
        frame = frame.f_back
    return frame is not None and frame.f_code is _ASKS


def _found(target: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(target)
    except ModuleNotFoundError as error:
        if error.name and (target == error.name or target.startswith(error.name + ".")):
            return None  # one of its parents is not there
        raise
