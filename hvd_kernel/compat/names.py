"""Attributes that Horovod's modules have and ours lack, found when somebody asks for one.

A module of ours that is imported under Horovod's name gets a ``__getattr__``: Python asks it for what the module has
not. So nothing is imported, and nothing costs time, before it is wanted.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

_TF_UTIL = "hvd_kernel.tensorflow.util"
_TF_GRADIENTS = "hvd_kernel.tensorflow.gradients"
_PROBES = "hvd_kernel.core.build_info"
_SETS = "hvd_kernel.core.process_sets"
_REGISTRY = "hvd_kernel.core.process_set_registry"
_RUN = "hvd_kernel.launch.run.api"  # a rank has no use for a launcher


def _basics() -> Any:
    basics = importlib.import_module("hvd_kernel.compat.tree.common.basics")
    return basics.HorovodBasics("", "mpi_lib_v2")


def _run() -> Any:
    return importlib.import_module(_RUN).run


def _process_set_ids_and_ranks() -> Any:
    def get_process_set_ids_and_ranks() -> dict[int, list[int]]:
        """Return the ranks of each registered set by its id."""
        registry = importlib.import_module(_REGISTRY)
        return {number: list(ranks) for number, ranks in registry.registered().items()}

    return get_process_set_ids_and_ranks


def _util(name: str) -> Any:
    return _of("hvd_kernel.compat.tree.common.util", name)


def _of(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name)


OURS: dict[tuple[str, str], Callable[[], Any]] = {
    ("horovod", "run"): _run,
    ("horovod.runner", "run"): _run,
    ("horovod.common.process_sets", "get_process_set_ids_and_ranks"): _process_set_ids_and_ranks,
    ("horovod.common.process_sets", "is_iterable"): lambda: _util("is_iterable"),
    ("horovod.torch.mpi_ops", "_basics"): _basics,
    ("horovod.torch.mpi_ops", "_handle_map"): lambda: importlib.import_module("hvd_kernel.core.handles")._live,  # noqa: SLF001
    ("horovod.torch.mpi_ops", "_NULL"): str,
    ("horovod.torch.mpi_ops", "get_average_backwards_compatibility_fun"): lambda: _util(
        "get_average_backwards_compatibility_fun"
    ),
    ("horovod.torch.mpi_ops", "num_rank_is_power_2"): lambda: _util("num_rank_is_power_2"),
    ("horovod.torch.mpi_ops", "check_installed_version"): lambda: _util("check_installed_version"),
    ("horovod.torch.mpi_ops", "gpu_available"): lambda: _util("gpu_available"),
    ("horovod.torch.optimizer", "split_list"): lambda: _util("split_list"),
    ("horovod.mxnet", "split_list"): lambda: _util("split_list"),
    ("horovod.mxnet.mpi_ops", "_basics"): _basics,
    ("horovod.mxnet.mpi_ops", "check_installed_version"): lambda: _util("check_installed_version"),
    ("horovod.tensorflow", "_executing_eagerly"): lambda: _of(_TF_UTIL, "_executing_eagerly"),
    ("horovod.tensorflow", "_make_subgraph"): lambda: _of(_TF_UTIL, "_make_subgraph"),
    ("horovod.tensorflow", "_cache"): lambda: _of(_TF_UTIL, "_cache"),
    ("horovod.tensorflow", "check_num_rank_power_of_2"): lambda: _util("num_rank_is_power_2"),
    ("horovod.tensorflow", "gpu_available"): lambda: _util("gpu_available"),
    ("horovod.tensorflow", "LocalGradientAggregationHelper"): lambda: _of(
        "hvd_kernel.tensorflow.training.helpers", "LocalGradientAggregationHelper"
    ),
    ("horovod.tensorflow.mpi_ops", "_basics"): _basics,
    **{
        ("horovod.tensorflow.mpi_ops", name): functools.partial(_of, _PROBES, name)
        for name in (
            "mpi_threads_supported",
            "mpi_enabled",
            "mpi_built",
            "gloo_enabled",
            "gloo_built",
            "nccl_built",
            "ddl_built",
            "ccl_built",
            "cuda_built",
            "rocm_built",
        )
    },
    **{
        ("horovod.tensorflow.mpi_ops", f"{name}_grad"): functools.partial(_of, _TF_GRADIENTS, name)
        for name in ("_allreduce", "_grouped_allreduce", "_allgather", "_broadcast", "_alltoall", "_reducescatter")
    },
    ("horovod.tensorflow.mpi_ops", "_grouped_allgather_grad"): lambda: _of(_TF_GRADIENTS, "_allgather"),
    ("horovod.tensorflow.mpi_ops", "_grouped_reducescatter_grad"): lambda: _of(_TF_GRADIENTS, "_reducescatter"),
    ("horovod.tensorflow.mpi_ops", "_normalize_name"): lambda: _of(_TF_UTIL, "_normalize_name"),
    ("horovod.tensorflow.mpi_ops", "gpu_available"): lambda: _util("gpu_available"),
    ("horovod.tensorflow.mpi_ops", "get_ext_suffix"): lambda: _util("get_ext_suffix"),
    ("horovod.tensorflow.mpi_ops", "num_rank_is_power_2"): lambda: _util("num_rank_is_power_2"),
    ("horovod.tensorflow.mpi_ops", "add_process_set"): lambda: _of(_SETS, "add_process_set"),
    ("horovod.tensorflow.mpi_ops", "remove_process_set"): lambda: _of(_SETS, "remove_process_set"),
    ("horovod.tensorflow.mpi_ops", "_executing_eagerly"): lambda: _of(_TF_UTIL, "_executing_eagerly"),
    ("horovod.tensorflow.mpi_ops", "check_num_rank_power_of_2"): lambda: _util("num_rank_is_power_2"),
    ("horovod.tensorflow.mpi_ops", "check_installed_version"): lambda: _util("check_installed_version"),
    ("horovod.tensorflow.mpi_ops", "get_average_backwards_compatibility_fun"): lambda: _util(
        "get_average_backwards_compatibility_fun"
    ),
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
