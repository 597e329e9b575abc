"""MXNet plugin ``libhvd_mxnet.so``, loaded once with the addresses of MXNet and the core; and its errors.

A call with an invalid argument raises a ``MxnetArgumentError``, which is a ValueError and an ``MXNetError``. A failed
operation raises its error at the next wait for one of its results, as MXNet's own operations do. The error is both an
``MXNetError`` and the class of ``hvd_kernel.errors`` that this failure has in other frameworks::

    try:
        loss = hvd.allreduce(loss).asscalar()
    except hvd.HorovodInternalError as error:
        print(error.rank)

The plugin is built without MXNet; ``native/mxnet`` has its sources.
"""

from __future__ import annotations

import ctypes
import functools
import os
import re
from collections.abc import Sequence
from typing import Any

import mxnet as mx
from mxnet.base import MXNetError, register_error

from hvd_kernel import errors
from hvd_kernel.core import deadlocks
from hvd_kernel.frameworks.plugin import core_table, load, path_of

_FILE = "libhvd_mxnet.so"
_COUNTERS = ("pushed", "run", "ended", "dropped")
_MESSAGE = re.compile(r"(?:.*?hvd_kernel\.errors\.\w+: )?(?:\[rank (?P<rank>\d+)\] )?(?P<text>.*)", re.DOTALL)
_KINDS = ("HorovodInternalError", "Mismatch", "RankFailed", "RankDied", "RankStalled", "HvdTimeout", "OutOfMemory")


class MxnetArgumentError(ValueError, MXNetError):
    """Invalid argument on this rank alone; raised by the call. Horovod raises MXNetError for it."""


class Request(ctypes.Structure):
    """An operation, in the layout of ``native/mxnet/call.h``."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("kind", ctypes.c_int32),
        ("set", ctypes.c_int32),
        ("op", ctypes.c_int32),
        ("root", ctypes.c_int32),
        ("prescale", ctypes.c_double),
        ("postscale", ctypes.c_double),
        ("count", ctypes.c_int32),
        ("priority", ctypes.c_int32),
        ("inputs", ctypes.POINTER(ctypes.c_void_p)),
        ("outputs", ctypes.POINTER(ctypes.c_void_p)),
    )


@functools.cache
def plugin() -> ctypes.CDLL:
    """Return the plugin.

    Raises
    ------
    ImportError
        The library, or the installed MXNet, cannot be used; the message has the reason.
    """
    if os.environ.get("MXNET_ENGINE_TYPE") == "NaiveEngine":
        raise ImportError(
            "hvd_kernel.mxnet: MXNet's NaiveEngine cannot carry operations that end later: unset MXNET_ENGINE_TYPE"
        )
    library = load(_FILE, "MXNet")
    deadlocks.delegate_waits_to("mxnet")
    library.hvd_mxnet_begin.restype = library.hvd_mxnet_push.restype = ctypes.c_char_p
    mxnet_path = str(mx.base._LIB._name).encode()  # noqa: SLF001 - MXNet has no public name for it
    trouble = library.hvd_mxnet_begin(mxnet_path, core_table()).decode() or _layout_trouble(library)
    if trouble:
        raise ImportError(f"{path_of(_FILE)} cannot be used with MXNet {mx.__version__}: {trouble}")
    return library


def push(request: Request) -> None:
    """Queue an operation in MXNet's engine.

    Raises
    ------
    MxnetArgumentError
        A tensor of the operation cannot be reduced or sent.
    """
    if trouble := plugin().hvd_mxnet_push(ctypes.byref(request)).decode():
        raise MxnetArgumentError(trouble)


def handles(arrays: Sequence[Any]) -> Any:
    """Return the handles of NDArrays as a C array."""
    return (ctypes.c_void_p * len(arrays))(*[array.handle for array in arrays])


def counters() -> dict[str, int]:
    """Return the plugin's counters.

    Returns
    -------
    dict
        ``pushed``: queued operations; ``run``: operations that MXNet has started; ``ended``: those that completed or
        failed; ``dropped``: those that MXNet has deleted, the last event of each operation.
    """
    numbers = (ctypes.c_int64 * len(_COUNTERS))()
    plugin().hvd_mxnet_counters(numbers)
    return dict(zip(_COUNTERS, numbers, strict=True))


def _layout_trouble(library: ctypes.CDLL) -> str:
    """Check the plugin's assumptions about the layout of an NDArray; return "" if they hold."""
    array, other = mx.nd.empty((4,)), mx.nd.empty((4,))
    is_same = [library.hvd_mxnet_same_memory(array.handle, second.handle) for second in (array[1:3], array, other)]
    return "" if is_same == [1, 1, 0] else "its NDArray is laid out otherwise than that of MXNet 1.9.1"


def _init_error(self: Any, message: str) -> None:
    """Initialize an error with the text and the failed rank in the message of MXNet's error."""
    match = _MESSAGE.fullmatch(message)
    assert match is not None
    RuntimeError.__init__(self, match["text"])
    self.rank = int(match["rank"] or -1)


def _register_error(name: str) -> type:
    """Create a class of errors that is both this package's and MXNet's, and register it with MXNet."""
    kind = getattr(errors, name)
    body = {"__init__": _init_error, "__module__": __name__, "__doc__": kind.__doc__}
    error = type(name, (kind, MXNetError), body)
    register_error(f"hvd_kernel.errors.{name}", error)
    return error


globals().update({name: _register_error(name) for name in _KINDS})  # by name, so that they can be pickled
