"""JAX plugin ``libhvd_jax.so``: loaded once with the core's address and registered with XLA; translation of its errors.

In a compiled program an operation that fails raises one of ``RAISED``, whose text ends with the name of this package's
error class and the rank that failed: ``[hvd_kernel.errors.RankDied, rank 2]``. ``translated`` returns that error.
Outside of programs the error itself is raised.

The plugin is built without JAX; ``native/jax`` has its sources. Importing this module makes programs on the CPU run one
after the other: JAX would run two at a time, in an order that differs between ranks.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import os
import re
import warnings
from typing import Any

import jax

from hvd_kernel import errors
from hvd_kernel.core import metrics
from hvd_kernel.frameworks.plugin import core_table, load
from hvd_kernel.jax import blocked

TARGET = "hvd_jax"
TOGETHER = "hvd_jax_together"
CHOICE = "HVD_JAX"
STREAM = "stream"
RAISED = (jax.errors.JaxRuntimeError, ValueError)
"""JAX's errors of a failed operation: a ValueError if it fails before it has started."""

_OURS = re.compile(r"(?P<text>.*?) \[hvd_kernel\.errors\.(?P<name>\w+)(?:, rank (?P<rank>\d+))?\]", re.DOTALL)
_CODE = re.compile(r"^[A-Z_]+: ")
_COUNTERS = ("calls", "at_once", "aliased", "ended", "steps", "samples")


def _run_programs_in_order() -> bool:
    """Make programs on the CPU run one after the other; return whether JAX had computed before, which prevents this."""
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    bridge = importlib.import_module("jax._src.xla_bridge")
    has_begun = bool(getattr(bridge, "backends_are_initialized", bool)())
    if has_begun:
        warnings.warn(
            "JAX has computed before hvd_kernel.jax was imported, so it runs programs at a time, in an order that may "
            "differ between ranks: import hvd_kernel.jax first.",
            stacklevel=2,
        )
    return has_begun


_BEGAN_BEFORE = _run_programs_in_order()


@functools.cache
def ffi() -> Any:
    """Return JAX's module ``ffi``: ``jax.ffi``, before JAX 0.5 ``jax.extend.ffi``."""
    try:
        return importlib.import_module("jax.ffi")
    except ModuleNotFoundError:
        return importlib.import_module("jax.extend.ffi")


@functools.cache
def plugin() -> ctypes.CDLL:
    """Return the plugin, registered with XLA for the CPU, and with ``HVD_JAX=stream`` for GPUs.

    Raises
    ------
    ImportError
        The library cannot be loaded; the message has the reason.
    """
    library = load("libhvd_jax.so", "JAX")
    library.hvd_jax_begin(core_table())
    for target, handler in ((TARGET, library.hvd_jax_handler), (TOGETHER, library.hvd_jax_together)):
        ffi().register_ffi_target(target, ffi().pycapsule(handler), platform="cpu", api_version=1)
    if os.environ.get(CHOICE) == STREAM:
        device = ffi().pycapsule(library.hvd_jax_device_handler)
        ffi().register_ffi_target(TARGET, device, platform="CUDA", api_version=1)
    metrics.count_by(functools.partial(_trained, library))
    if not _BEGAN_BEFORE:
        blocked.watch(library.hvd_jax_under_way)
    return library


def counters() -> dict[str, int]:
    """Return the plugin's counters.

    Returns
    -------
    dict
        ``calls``: operations of compiled programs; ``at_once``: those that completed on XLA's own thread;
        ``aliased``: results in the memory of their operands; ``ended``: operations that completed or failed;
        ``steps``: reductions of all gradients of a step; ``samples``: the samples of these steps, where known.
    """
    return _counters_of(plugin())


def translated(error: BaseException) -> BaseException:
    """Return this package's error for an error of JAX; the error itself if this package did not raise it.

    Examples
    --------
    ::

        try:
            params = step(params, batch)
        except jax.errors.JaxRuntimeError as error:
            raise hvd.translated(error) from error
    """
    match = _OURS.search(str(error)) if isinstance(error, RAISED) else None
    kind = getattr(errors, match["name"], None) if match else None
    if match is None or kind is None:
        return error
    ours: BaseException = kind(_CODE.sub("", match["text"]), int(match["rank"] or -1))
    return ours


def _counters_of(library: ctypes.CDLL) -> dict[str, int]:
    numbers = (ctypes.c_int64 * len(_COUNTERS))()
    library.hvd_jax_counters(numbers)
    return dict(zip(_COUNTERS, numbers, strict=True))


def _trained(library: ctypes.CDLL) -> tuple[int, int]:
    numbers = _counters_of(library)  # not counters(): telemetry may call this before plugin() has returned
    return numbers["steps"], numbers["samples"]
