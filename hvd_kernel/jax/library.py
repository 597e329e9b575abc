"""JAX plugin ``libhvd_jax.so``: loaded once, told where the core is, registered with XLA; and what its errors mean.

In a compiled program an operation that fails raises one of ``RAISED``, whose text ends with the class that the same
failure has elsewhere in this package and the rank that failed: ``[hvd_kernel.errors.RankDied, rank 2]``.
``translated`` gives that error. Outside of programs that error itself is raised.

The plugin is built without JAX; ``native/jax`` has its sources.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import os
import re
from typing import Any

import jax

from hvd_kernel import errors
from hvd_kernel.core import metrics
from hvd_kernel.frameworks.plugin import core_table, load
from hvd_kernel.jax import blocked, installed

TARGET = "hvd_jax"
TOGETHER = "hvd_jax_together"
CHOICE = "HVD_JAX"
STREAM = "stream"
RAISED = (jax.errors.JaxRuntimeError, ValueError)
"""What JAX raises where an operation has failed: a ValueError where it fails before it has begun."""

_OURS = re.compile(r"(?P<text>.*?) \[hvd_kernel\.errors\.(?P<name>\w+)(?:, rank (?P<rank>\d+))?\]", re.DOTALL)
_CODE = re.compile(r"^[A-Z_]+: ")
_COUNTERS = ("calls", "at_once", "aliased", "ended", "steps", "samples")


@functools.cache
def ffi() -> Any:
    """Return JAX's module of that name: ``jax.ffi``, before 0.5 ``jax.extend.ffi``."""
    try:
        return importlib.import_module("jax.ffi")
    except ModuleNotFoundError:
        return importlib.import_module("jax.extend.ffi")


@functools.cache
def plugin() -> ctypes.CDLL:
    """Return the plugin, registered with XLA for the CPU, and for GPUs where ``HVD_JAX=stream`` asks for it.

    Raises
    ------
    ImportError
        It cannot be loaded; the message says why.
    """
    library = load("libhvd_jax.so", "JAX")
    library.hvd_jax_begin(core_table())
    for target, handler in ((TARGET, library.hvd_jax_handler), (TOGETHER, library.hvd_jax_together)):
        ffi().register_ffi_target(target, ffi().pycapsule(handler), platform="cpu", api_version=1)
    if os.environ.get(CHOICE) == STREAM:
        device = ffi().pycapsule(library.hvd_jax_device_handler)
        ffi().register_ffi_target(TARGET, device, platform="CUDA", api_version=1)
    metrics.count_by(functools.partial(_trained, library))
    if not installed.BEGAN_BEFORE:
        blocked.watch(library.hvd_jax_under_way)
    return library


def counters() -> dict[str, int]:
    """Return what the plugin has counted.

    Returns
    -------
    dict
        ``calls``: operations of compiled programs; ``at_once``: those of them that ended on XLA's own thread;
        ``aliased``: results in the memory of their operands; ``ended``: operations that have ended, well or not;
        ``steps``: reductions of all gradients of a step; ``samples``: what went into them, where it is known.
    """
    return _counted(plugin())


def calls_under_way() -> bool:
    """Tell whether an operation of a program has begun and not ended."""
    return bool(plugin().hvd_jax_under_way())


def translated(error: BaseException) -> BaseException:
    """Return what an error of JAX's means in this package; the error itself where it is none of ours.

    Example
    -------
    ::

        try:
            params = step(params, batch)
        except jax.errors.JaxRuntimeError as error:
            raise hvd.translated(error) from error
    """
    found = _OURS.search(str(error)) if isinstance(error, RAISED) else None
    kind = getattr(errors, found["name"], None) if found else None
    if found is None or kind is None:
        return error
    ours: BaseException = kind(_CODE.sub("", found["text"]), int(found["rank"] or -1))
    return ours


def _counted(library: ctypes.CDLL) -> dict[str, int]:
    numbers = (ctypes.c_int64 * len(_COUNTERS))()
    library.hvd_jax_counters(numbers)
    return dict(zip(_COUNTERS, numbers, strict=True))


def _trained(library: ctypes.CDLL) -> tuple[int, int]:
    numbers = _counted(library)  # not counters(): telemetry may ask before plugin() has returned
    return numbers["steps"], numbers["samples"]
