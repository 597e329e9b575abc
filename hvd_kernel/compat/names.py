"""Attributes that Horovod's modules have and ours lack, resolved on first use.

A module of ours that is imported under Horovod's name gets a ``__getattr__``, which Python calls for missing
attributes. So nothing is imported before it is used.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import ModuleType
from typing import Any

_UTIL = "hvd_kernel.compat.tree.util"
_REGISTRY = "hvd_kernel.core.process_set_registry"
_RUN = "hvd_kernel.launch.run.api"  # not imported here: ranks never use the launcher


def _basics() -> Any:
    basics = importlib.import_module("hvd_kernel.compat.tree.basics")
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
    "horovod.common.process_sets": {_UTIL: "is_iterable"},
    "horovod.torch.mpi_ops": {
        _UTIL: "check_installed_version get_average_backwards_compatibility_fun gpu_available num_rank_is_power_2"
    },
    "horovod.torch.optimizer": {_UTIL: "split_list"},
    "horovod.mxnet": {_UTIL: "split_list"},
    "horovod.mxnet.mpi_ops": {_UTIL: "check_installed_version"},
    "horovod.tensorflow": {
        _UTIL: "gpu_available",
        "hvd_kernel.tensorflow.util": "_cache _executing_eagerly _make_subgraph",
        "hvd_kernel.tensorflow.gradient_aggregation": "LocalGradientAggregationHelper",
    },
    "horovod.tensorflow.mpi_ops": {
        _UTIL: "check_installed_version get_average_backwards_compatibility_fun get_ext_suffix gpu_available "
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
    ("horovod.tensorflow", "check_num_rank_power_of_2"): partial(_of, _UTIL, "num_rank_is_power_2"),
    ("horovod.tensorflow.mpi_ops", "check_num_rank_power_of_2"): partial(_of, _UTIL, "num_rank_is_power_2"),
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
