"""API pages: for each module a list of its public names by group, from ``__all__``; Sphinx writes a page for each name.

A public name that is in no group is an error, so that no name lacks a page.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType

from sphinx.ext.autodoc.mock import ismock, mock

from website.mocks import MOCKED, prepare
from website.sources import update

COMMON = {
    "Start and end": ("init", "shutdown", "is_initialized"),
    "Ranks": (*("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size", "is_homogeneous"),),
    "Process sets": ("ProcessSet", "add_process_set", "remove_process_set"),
    "Figures and files": (
        "log",
        "log_artifact",
        "log_model",
        "outputs_path",
        "bench",
        "start_timeline",
        "stop_timeline",
    ),
}
"""Names that are the same in each framework, and documented once."""
GROUPS = {
    "Training": (
        *("DistributedOptimizer", "PartialDistributedOptimizer", "DistributedTrainer", "DistributedGradientTape"),
        *("PartialDistributedGradientTape", "DistributedGradientTransformation", "SyncBatchNorm"),
        *("SyncBatchNormalization", "convert_sync_batchnorm", "broadcast_parameters", "broadcast_optimizer_state"),
        *("broadcast_variables", "broadcast_global_variables", "BroadcastGlobalVariablesHook", "load_model", "grad"),
        *("value_and_grad", "count_samples"),
    ),
    "Collectives": (
        *("allreduce", "allreduce_", "allgather", "broadcast", "broadcast_", "alltoall", "reducescatter"),
        *("barrier", "join"),
    ),
    "Collectives of many tensors": (
        *("grouped_allreduce", "grouped_allreduce_", "grouped_allgather", "grouped_broadcast"),
        *("grouped_reducescatter",),
    ),
    "Asynchronous collectives": (
        *("allreduce_async", "allreduce_async_", "allgather_async", "broadcast_async", "broadcast_async_"),
        *("alltoall_async", "reducescatter_async", "grouped_allreduce_async", "grouped_allreduce_async_"),
        *("grouped_allgather_async", "grouped_reducescatter_async", "sparse_allreduce_async", "synchronize", "poll"),
    ),
    "Python objects": ("broadcast_object", "broadcast_object_fn", "allgather_object"),
    "Memory": ("shared_empty", "release_shared"),
    "In a graph": (
        *("rank_op", "size_op", "local_rank_op", "local_size_op", "process_set_included_op"),
        *("handle_average_backwards_compatibility",),
    ),
}
FRAMEWORKS = {
    "torch": "PyTorch",
    "numpy": "NumPy",
    "tensorflow": "TensorFlow",
    "keras": "Keras",
    "jax": "JAX",
    "mxnet": "MXNet",
}
ELSEWHERE = {
    *("Average", "Sum", "Adasum", "Min", "Max", "Product", "global_process_set"),  # a table of the common page
    *("__version__", "elastic", "callbacks", "Compression", "HorovodInternalError", "translated"),
    *("ccl_built", "cuda_built", "ddl_built", "gloo_built", "gloo_enabled", "mpi_built", "mpi_enabled"),
    *("mpi_threads_supported", "nccl_built", "rocm_built"),  # answers of Horovod's build, for its scripts
}
"""Public names without a page of their own."""
OTHERS = {
    "elastic": (
        "Elastic training",
        "Every framework's `elastic` has these names, too. [Elastic jobs](../elastic.md) shows how to use them.",
        {"hvd_kernel.elastic": "Elastic training"},
    ),
    "spark": (
        "Spark",
        "[Spark](../spark.md) shows how to use these names.",
        {
            "hvd_kernel.spark": "Jobs",
            "hvd_kernel.spark.torch": "PyTorch estimators",
            "hvd_kernel.spark.lightning": "Lightning estimators",
            "hvd_kernel.spark.keras": "Keras estimators",
        },
    ),
    "ray": ("Ray", "[Ray](../ray.md) shows how to use these names.", {"hvd_kernel.ray": "Executors"}),
}
"""Page -> title, first paragraph, and its modules with their headings: every name of ``__all__``."""
_OPS = """## Reductions

| `op=` | Result |
| --- | --- |
| `Average` | the mean over all ranks (default) |
| `Sum` | the sum |
| `Min`, `Max` | the smallest, the largest |
| `Product` | the product |
| `Adasum` | the adaptive sum |

"""
_COMMON = """# Common to all frameworks

These names are the same in `hvd_kernel.torch`, `.numpy`, `.tensorflow`, `.keras`, `.jax` and `.mxnet`.

"""
_FRAMEWORK = """# {title}

```python
import hvd_kernel.{name} as hvd
```

`init`, `rank`, `size` and other names are the same in every framework: [](common.md).

"""
_ERRORS = """# Errors

Exceptions of the ranks, of cells and of `hvdrun`, in `hvd_kernel.errors`.
[Troubleshooting](../troubleshooting.md) lists their messages with the remedy of each.

```{eval-rst}
.. automodule:: hvd_kernel.errors
   :members:
   :show-inheritance:
   :no-index:
```
"""


def names_block(module: str, title: str, names: Iterable[str]) -> str:
    """Return a section with a table of names, each of which gets a page."""
    lines = [".. autosummary::", "   :toctree: generated", "   :nosignatures:", "", *(f"   {name}" for name in names)]
    return f"## {title}\n\n```{{eval-rst}}\n.. currentmodule:: {module}\n\n" + "\n".join(lines) + "\n```\n\n"


def ungrouped(names: Iterable[str], groups: Mapping[str, Iterable[str]]) -> list[str]:
    """Return public names that no group has."""
    grouped = {name for group in groups.values() for name in group}
    return sorted(set(names) - grouped - ELSEWHERE)


def framework(name: str, title: str) -> str:
    """Return the page of a framework."""
    module = importlib.import_module(f"hvd_kernel.{name}")
    missing = ungrouped(module.__all__, COMMON | GROUPS)
    if missing:
        raise ValueError(f"hvd_kernel.{name}: {', '.join(missing)} in no group of tools/website/reference.py")
    parts = [_FRAMEWORK.format(name=name, title=title)]
    for group, names in GROUPS.items():
        here = [public for public in names if public in module.__all__ and documented(module, public)]
        if here:
            parts.append(names_block(module.__name__, group, here))
    for part, heading in (("callbacks", "Callbacks"), ("elastic", "Elastic training")):
        if hasattr(module, part) and name != "numpy":
            below = importlib.import_module(f"{module.__name__}.{part}")
            shared = set(importlib.import_module("hvd_kernel.elastic").__all__) if part == "elastic" else set()
            names = [public for public in below.__all__ if public not in shared or public == "run"]
            parts.append(names_block(below.__name__, heading, names))
    return "".join(parts)


def documented(module: ModuleType, name: str) -> bool:
    """Return whether a name is ours: a stand-in of a missing framework has no docstring."""
    return not ismock(getattr(module, name))


def common() -> str:
    """Return the page of the names that all frameworks share."""
    parts = [_COMMON, *(names_block("hvd_kernel.numpy", group, names) for group, names in COMMON.items()), _OPS]
    package = names_block("hvd_kernel", "The package", ("run", "client", "keep", "resize", "load_ipython_extension"))
    return "".join([*parts, package])


def others(title: str, text: str, modules: Mapping[str, str]) -> str:
    """Return a page with every name of some modules."""
    parts = [f"# {title}\n\n{text}\n\n"]
    for module, heading in modules.items():
        parts.append(names_block(module, heading, importlib.import_module(module).__all__))
    return "".join(parts)


def write(folder: Path) -> None:
    """Write the API pages; names of frameworks that are missing are replaced."""
    with mock(MOCKED):
        prepare()
        pages = {name: framework(name, title) for name, title in FRAMEWORKS.items()}
        pages |= {name: others(*page) for name, page in OTHERS.items()} | {"common": common(), "errors": _ERRORS}
    for name, text in pages.items():
        update(folder / f"{name}.md", text)
