"""Import finders that map module names of Horovod, and of Polyaxon's tracking, to ours.

A module of ours that is imported under Horovod's name gets a ``__getattr__`` for the attributes that Horovod's has and
ours lacks, so nothing is imported before it is used. ``from polyaxon import tracking`` in ranks is ours if Polyaxon's
is not installed, and always on ranks above 0: Polyaxon's would create one run per rank.

Terms.
  alias      two names in ``sys.modules`` for the same module: horovod.torch is hvd_kernel.torch
  target     our module for a name of Horovod's; several names may share one
  synthetic  a module without a file: an empty package, or names of Horovod's without a counterpart (``plumbing``)
  stand-in   our module of one of Polyaxon's names

Importing a missing part raises an error that says what is available; ``importlib.util.find_spec`` returns None for it.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from importlib.abc import InspectLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import CodeType, FrameType, ModuleType
from typing import Any, ClassVar

NAME = "horovod"
ROOT = "hvd_kernel.compat.tree"
_UTIL = "horovod.runner.common.util"
TABLE = {  # a module and those below it; the longest match counts
    NAME: ROOT,
    "horovod.common.basics": f"{ROOT}.util",
    "horovod.common.exceptions": f"{ROOT}.util",
    "horovod.common.util": f"{ROOT}.util",
    f"{_UTIL}.config_parser": f"{ROOT}.launch",
    f"{_UTIL}.hosts": f"{ROOT}.hosts",
    f"{_UTIL}.safe_shell_exec": f"{ROOT}.safe_shell_exec",
    f"{_UTIL}.settings": f"{ROOT}.hosts",
    **{
        f"{_UTIL}.{name}": f"{ROOT}.utilities"
        for name in ("codec", "env", "host_hash", "secret", "timeout", "tiny_shell_exec")
    },
    **{f"horovod.runner.elastic.{name}": f"{ROOT}.hosts" for name in ("constants", "discovery")},
    "horovod.runner.elastic.settings": f"{ROOT}.hosts",
    **{f"horovod.runner.{name}": f"{ROOT}.launchers" for name in ("gloo_run", "js_run", "mpi_run")},
    "horovod.runner.launch": f"{ROOT}.launch",
    **{f"horovod.runner.util.{name}": f"{ROOT}.utilities" for name in ("cache", "threads")},
    **{f"horovod.runner.util.{name}": f"{ROOT}.hosts" for name in ("lsf", "network", "remote")},
    "horovod.torch": "hvd_kernel.torch",
    "horovod.tensorflow": "hvd_kernel.tensorflow",
    "horovod.tensorflow.gradient_aggregation": "hvd_kernel.tensorflow.gradient_aggregation",
    "horovod.tensorflow.gradient_aggregation_eager": "hvd_kernel.tensorflow.gradient_aggregation",
    "horovod.mxnet": "hvd_kernel.mxnet",
    "horovod.mxnet.compression": "hvd_kernel.frameworks.compression",
    "horovod.keras": "hvd_kernel.keras",
    **{f"horovod._keras{name}": "hvd_kernel.keras.impl" for name in ("", ".callbacks", ".elastic")},
    "horovod.data": "hvd_kernel.data",
    "horovod.ray": "hvd_kernel.ray",
    "horovod.spark": "hvd_kernel.spark",
    "horovod.spark.lightning.legacy": "hvd_kernel.spark.lightning.remote",
    "horovod.spark.task": "hvd_kernel.spark.task",
    "horovod.common.process_sets": "hvd_kernel.core.process_sets",
    "horovod.common.elastic": "hvd_kernel.elastic",
    "horovod.runner.elastic.worker": "hvd_kernel.elastic.updates",
}
PACKAGES = {
    "horovod.common",
    "horovod.runner",
    "horovod.runner.common",
    _UTIL,
    "horovod.runner.elastic",
    "horovod.runner.util",
}
"""Packages that have only modules below them."""
_SUBMODULES = {  # modules that are imported with a package
    "horovod.torch": ("horovod.torch.mpi_ops", "horovod.torch.optimizer"),
    "horovod.tensorflow": ("horovod.tensorflow.mpi_ops",),
    "horovod.mxnet": ("horovod.mxnet.mpi_ops",),
}
_AVAILABLE = (
    "horovod, horovod.torch, horovod.tensorflow, horovod.mxnet, horovod.keras, horovod.data, horovod.spark, "
    "horovod.ray, horovod.common and horovod.runner"
)
_FIND_SPEC = importlib.util.find_spec.__code__


class HorovodFinder(MetaPathFinder):
    """Finder of the modules of horovod."""

    def __init__(self, shadow: bool) -> None:
        self.shadow = shadow

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of our module, or None if the name is not Horovod's or the real Horovod is used.

        Raises
        ------
        ModuleNotFoundError
            We stand in for Horovod and lack this part of it; the message lists what is available.
        """
        del path, target  # of Python's interface
        if fullname == NAME:
            return None if not self.shadow and real_exists() else _spec(fullname)
        if fullname.startswith(NAME + ".") and ours(sys.modules.get(NAME)):
            return _spec(fullname)
        return None


class _AliasLoader(InspectLoader):
    """Loader that returns the target itself as the module."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._own_spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:  # noqa: ARG002 - of Python's interface
        module = importlib.import_module(self._target)
        self._own_spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Restore the module's own spec, which Python has replaced by the alias's: reload uses it."""
        module.__spec__ = self._own_spec

    def is_package(self, fullname: str) -> bool:
        return self._spec_of_target(fullname).submodule_search_locations is not None

    def get_source(self, fullname: str) -> str | None:
        source: str | None = self._real_loader(fullname).get_source(self._target)
        return source

    def get_code(self, fullname: str) -> CodeType | None:
        """Return the code that ``python -m`` runs."""
        code: CodeType | None = self._real_loader(fullname).get_code(self._target)
        return code

    def _real_loader(self, fullname: str) -> Any:
        return self._spec_of_target(fullname).loader

    def _spec_of_target(self, fullname: str) -> ModuleSpec:
        spec = _find_target(self._target)
        if spec is None:
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)
        return spec


class _HorovodLoader(_AliasLoader):
    """Loader that adds the names that only Horovod's modules have to the target and its submodules."""

    def __init__(self, target: str, fullname: str) -> None:
        super().__init__(target)
        self._names = (fullname, *_SUBMODULES.get(fullname, ()))

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        for name in self._names:
            lend(name, sys.modules[target_of(name)])


class _SyntheticLoader(InspectLoader):
    """Loader of packages and of the modules of ``plumbing``; makes each once, so that its classes stay the same."""

    _modules: ClassVar[dict[str, ModuleType]] = {}

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._modules.setdefault(spec.name, ModuleType(spec.name))

    def exec_module(self, module: ModuleType) -> None:
        """Add the attributes of the module, which are resolved on first use."""
        if module.__name__ not in PACKAGES:
            module.__doc__ = f"Names of Horovod's ``{module.__name__}``, which has no counterpart in hvd_kernel."
            vars(module)["__all__"] = _plumbing().public(module.__name__)
        lend(module.__name__, module)

    def is_package(self, fullname: str) -> bool:
        return fullname in PACKAGES or bool(_plumbing().is_package(fullname))

    def get_source(self, fullname: str) -> str | None:
        """Return the code that ``python -m`` runs, which raises."""
        return f"from hvd_kernel.compat.plumbing import run_as_main\nrun_as_main({fullname!r})\n"


def target_of(fullname: str) -> str:
    """Return the name of our module for one of Horovod's, whether it exists or not; a package is its own target."""
    if fullname in PACKAGES:
        return fullname
    parts = fullname.split(".")
    prefix = next(prefix for end in range(len(parts), 0, -1) if (prefix := ".".join(parts[:end])) in TABLE)
    return TABLE[prefix] + fullname.removeprefix(prefix)


def ours(module: ModuleType | None) -> bool:
    """Return whether the module imported as horovod is our stand-in."""
    return module is not None and module.__name__ == ROOT


def real_exists() -> bool:
    """Return whether this Python has the real Horovod; a namespace package of that name does not count."""
    if NAME in sys.modules:
        return not ours(sys.modules[NAME])
    others = (finder for finder in sys.meta_path if not isinstance(finder, HorovodFinder))
    specs = (finder.find_spec(NAME, None) for finder in others)
    first = next((spec for spec in specs if spec is not None), None)
    return first is not None and first.origin is not None


def _spec(fullname: str) -> ModuleSpec | None:
    if fullname in PACKAGES:
        return ModuleSpec(fullname, _SyntheticLoader(), is_package=True)
    target = target_of(fullname)
    target_spec = _find_target(target)
    if target_spec is None and fullname in _plumbing().PLUMBING:
        return ModuleSpec(fullname, _SyntheticLoader(), is_package=_plumbing().is_package(fullname))
    if target_spec is None and _called_by_find_spec():
        return None
    if target_spec is None:
        raise ModuleNotFoundError(
            f"No module named {fullname!r}: hvd_kernel stands in for Horovod in this process and has {_AVAILABLE}. "
            "For its other frontends and launchers install horovod itself.",
            name=fullname,
        )
    return _alias_spec(fullname, _HorovodLoader(target, fullname), target_spec)


def alias(fullname: str, target: str) -> ModuleSpec:
    """Return a spec that makes ``fullname`` another name of the existing module ``target``."""
    target_spec = _find_target(target)
    assert target_spec is not None, target
    return _alias_spec(fullname, _AliasLoader(target), target_spec)


def _alias_spec(fullname: str, loader: _AliasLoader, target: ModuleSpec) -> ModuleSpec:
    package = target.submodule_search_locations is not None
    spec = ModuleSpec(fullname, loader, origin=target.origin, is_package=package)
    if package:
        spec.submodule_search_locations = list(target.submodule_search_locations or [])
    return spec


def _plumbing() -> Any:
    """Import the table of stand-ins, which most ranks never need."""
    return importlib.import_module("hvd_kernel.compat.plumbing")


def _called_by_find_spec() -> bool:
    """Return whether ``importlib.util.find_spec`` called the import machinery, which does not pass that on."""
    frame: FrameType | None = sys._getframe()  # noqa: SLF001 - inspect's is the same, and costs every rank its import
    while frame is not None and frame.f_globals.get("__name__") in {__name__, "importlib._bootstrap"}:
        frame = frame.f_back
    return frame is not None and frame.f_code is _FIND_SPEC


def _find_target(target: str) -> ModuleSpec | None:
    if target.startswith(f"{ROOT}.") and target not in TABLE.values():
        return None  # the modules of this folder are all in the table
    try:
        return importlib.util.find_spec(target)
    except ModuleNotFoundError as error:
        if error.name and (target == error.name or target.startswith(error.name + ".")):
            return None  # the module or one of its parents does not exist
        raise


_TREE_UTIL = "hvd_kernel.compat.tree.util"
_REGISTRY = "hvd_kernel.core.process_set_registry"
_RUN = "hvd_kernel.launch.run.api"  # not imported here: ranks never use the launcher


def _basics() -> Any:
    basics = importlib.import_module("hvd_kernel.compat.tree.util")
    return basics.HorovodBasics("", "mpi_lib_v2")


def _process_set_ids_and_ranks() -> Any:
    def get_process_set_ids_and_ranks() -> dict[int, list[int]]:
        """Return the ranks of each registered process set by its id."""
        registry = importlib.import_module(_REGISTRY)
        return {number: list(ranks) for number, ranks in registry.registered().items()}

    return get_process_set_ids_and_ranks


def _of(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name)


_ATTRIBUTES = {  # Horovod's module -> our module -> names of attributes that it takes from ours
    "horovod.common.process_sets": {_TREE_UTIL: "is_iterable"},
    "horovod.torch.mpi_ops": {
        _TREE_UTIL: "check_installed_version get_average_backwards_compatibility_fun gpu_available num_rank_is_power_2"
    },
    "horovod.torch.optimizer": {_TREE_UTIL: "split_list"},
    "horovod.mxnet": {_TREE_UTIL: "split_list"},
    "horovod.mxnet.mpi_ops": {_TREE_UTIL: "check_installed_version"},
    "horovod.tensorflow": {
        _TREE_UTIL: "gpu_available",
        "hvd_kernel.tensorflow.util": "_cache _executing_eagerly _make_subgraph",
        "hvd_kernel.tensorflow.gradient_aggregation": "LocalGradientAggregationHelper",
    },
    "horovod.tensorflow.mpi_ops": {
        _TREE_UTIL: "check_installed_version get_average_backwards_compatibility_fun get_ext_suffix gpu_available "
        "num_rank_is_power_2",
        "hvd_kernel.tensorflow.util": "_executing_eagerly _normalize_name",
        "hvd_kernel.core.process_sets": "add_process_set remove_process_set",
    },
}
_GRADIENTS = {  # of TensorFlow's operations -> ours
    "_allreduce": "_allreduce",
    "_grouped_allreduce": "_grouped_allreduce",
    "_allgather": "_allgather",
    "_grouped_allgather": "_allgather",
    "_broadcast": "_broadcast",
    "_alltoall": "_alltoall",
    "_reducescatter": "_reducescatter",
    "_grouped_reducescatter": "_reducescatter",
}
OURS: dict[tuple[str, str], Callable[[], Any]] = {
    ("horovod", "run"): partial(_of, _RUN, "run"),
    ("horovod.runner", "run"): partial(_of, _RUN, "run"),
    ("horovod.common.process_sets", "get_process_set_ids_and_ranks"): _process_set_ids_and_ranks,
    ("horovod.torch.mpi_ops", "_basics"): _basics,
    ("horovod.torch.mpi_ops", "_handle_map"): partial(_of, "hvd_kernel.core.handles", "_live"),
    ("horovod.torch.mpi_ops", "_NULL"): str,
    ("horovod.mxnet.mpi_ops", "_basics"): _basics,
    ("horovod.tensorflow", "check_num_rank_power_of_2"): partial(_of, _TREE_UTIL, "num_rank_is_power_2"),
    ("horovod.tensorflow.mpi_ops", "check_num_rank_power_of_2"): partial(_of, _TREE_UTIL, "num_rank_is_power_2"),
    ("horovod.tensorflow.mpi_ops", "_basics"): _basics,
    **{
        ("horovod.tensorflow.mpi_ops", f"{name}_grad"): partial(_of, "hvd_kernel.tensorflow.gradients", gradient)
        for name, gradient in _GRADIENTS.items()
    },
    **{
        (fullname, name): partial(_of, module, name)
        for fullname, modules in _ATTRIBUTES.items()
        for module, names in modules.items()
        for name in names.split()
    },
}


def lend(fullname: str, module: ModuleType) -> None:
    """Add the missing attributes of Horovod's module ``fullname`` to ours; its own ``__getattr__`` has precedence.

    A module that several of Horovod's names share has the attributes of all names under which it was imported.
    """
    previous = vars(module).get("__getattr__")
    lenders: set[str] = getattr(previous, "lenders", set())
    if fullname in lenders:
        return
    lent = finder_of(fullname, module)

    def find(name: str) -> Any:
        if previous is not None:
            with suppress(AttributeError):
                return previous(name)
        return lent(name)

    find.lenders = lenders | {fullname}  # type: ignore[attr-defined] # of a function
    vars(module)["__getattr__"] = find


def finder_of(fullname: str, module: ModuleType) -> Callable[[str], Any]:
    """Return a ``__getattr__`` for our module for Horovod's ``fullname``."""

    def find(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {fullname!r} has no attribute {name!r}", name=name)
        if (fullname, name) in OURS:
            return _store(module, name, OURS[fullname, name]())
        submodule = _submodule(fullname, name)
        if submodule is not None:
            return submodule
        plumbing = importlib.import_module("hvd_kernel.compat.plumbing")
        return _store(module, name, plumbing.find(fullname, name))

    return find


def _store(module: ModuleType, name: str, value: Any) -> Any:
    """Store the value in the module: the same class each time, so that ``isinstance`` and ``except`` work."""
    return vars(module).setdefault(name, value)


def _submodule(fullname: str, name: str) -> ModuleType | None:
    """Import a submodule under Horovod's name, as Python would search below our name of the package."""
    if getattr(sys.modules.get(fullname), "__path__", None) is None:
        return None
    try:
        return importlib.import_module(f"{fullname}.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"{fullname}.{name}":
            raise
        return None


TRACKING_ROOT = "hvd_kernel.tracking.alias"
TRACKING_PACKAGES = ("polyaxon", "traceml")
TRACKING_TABLE = dict.fromkeys(TRACKING_PACKAGES, TRACKING_ROOT) | {
    f"{package}.tracking": f"{TRACKING_ROOT}.tracking" for package in TRACKING_PACKAGES
}


class TrackingFinder(MetaPathFinder):
    """Finder of the packages and their module ``tracking``."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of our stand-in, or None for other modules or if Polyaxon's is used."""
        del path, target  # of Python's interface
        if fullname not in TRACKING_TABLE:
            return None
        package, _, module = fullname.partition(".")
        if not module:
            return None if _has_real(package) else alias(fullname, TRACKING_TABLE[fullname])
        if all(map(_has_real, TRACKING_PACKAGES)) and _rank_number() == 0:
            return None
        return alias(fullname, TRACKING_TABLE[fullname])


def stand_ins() -> list[str]:
    """Return the names under which stand-ins are imported."""
    return [name for name, target in TRACKING_TABLE.items() if getattr(sys.modules.get(name), "__name__", "") == target]


def _has_real(package: str) -> bool:
    """Return whether this Python has the package itself; ``tracking`` needs both packages."""
    others = (finder for finder in sys.meta_path if not isinstance(finder, TrackingFinder))
    specs = (finder.find_spec(package, None) for finder in others)
    return any(spec is not None and spec.origin is not None for spec in specs)


def _rank_number() -> int:
    """Return this process's rank; imports late, as every Python process of a rank imports this module at its start."""
    rank: int = importlib.import_module("hvd_kernel.tracking.process").rank()
    return rank
