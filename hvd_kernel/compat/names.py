"""Attributes that Horovod's modules have and ours lack, found when somebody asks for one.

A module of ours that is imported under Horovod's name gets a ``__getattr__``: Python asks it for what the module has
not. So nothing is imported, and nothing costs time, before it is wanted.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

_UTIL = "hvd_kernel.compat.tree.common.util"
_REGISTRY = "hvd_kernel.core.process_set_registry"
_RUN = "hvd_kernel.launch.run.api"  # a rank has no use for a launcher


def _basics() -> Any:
    basics = importlib.import_module("hvd_kernel.compat.tree.common.basics")
    return basics.HorovodBasics("", "mpi_lib_v2")


def _process_set_ids_and_ranks() -> Any:
    def get_process_set_ids_and_ranks() -> dict[int, list[int]]:
        """Return the ranks of each registered set by its id."""
        registry = importlib.import_module(_REGISTRY)
        return {number: list(ranks) for number, ranks in registry.registered().items()}

    return get_process_set_ids_and_ranks


def _of(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name)


_FOUND = {  # Horovod's module -> ours -> names that it finds there
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
        "hvd_kernel.tensorflow.training.helpers": "LocalGradientAggregationHelper",
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
        ("horovod.tensorflow.mpi_ops", f"{name}_grad"): partial(_of, "hvd_kernel.tensorflow.gradients", own)
        for name, own in _GRADIENTS.items()
    },
    **{
        (theirs, name): partial(_of, module, name)
        for theirs, modules in _FOUND.items()
        for module, names in modules.items()
        for name in names.split()
    },
}


def lend(fullname: str, module: ModuleType) -> None:
    """Let the module find what Horovod's module of that name has besides; first it looks by itself, where it does."""
    own = vars(module).get("__getattr__")
    if own is not None and hasattr(own, "lent"):
        return
    lent = finder_of(fullname, module)

    def find(name: str) -> Any:
        if own is not None:
            try:
                return own(name)
            except AttributeError:
                pass
        return lent(name)

    find.lent = True  # type: ignore[attr-defined] # a module has several names of Horovod's; the first one lends
    vars(module)["__getattr__"] = find


def finder_of(fullname: str, module: ModuleType) -> Callable[[str], Any]:
    """Return a ``__getattr__`` for the module that stands for Horovod's ``fullname``."""

    def find(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {fullname!r} has no attribute {name!r}", name=name)
        if (fullname, name) in OURS:
            return _kept(module, name, OURS[fullname, name]())
        below = _submodule(fullname, name)
        if below is not None:
            return below
        plumbing = importlib.import_module("hvd_kernel.compat.plumbing")
        return _kept(module, name, plumbing.find(fullname, name))

    return find


def _kept(module: ModuleType, name: str, value: Any) -> Any:
    """Remember the value: who asks again gets the same class, so that ``isinstance`` and ``except`` hold."""
    return vars(module).setdefault(name, value)


def _submodule(fullname: str, name: str) -> ModuleType | None:
    """Import what is below a package under Horovod's name: Python itself would look below the name that is ours."""
    if getattr(sys.modules.get(fullname), "__path__", None) is None:
        return None
    try:
        return importlib.import_module(f"{fullname}.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"{fullname}.{name}":
            raise
        return None
