"""MXNet plugin ``libhvd_mxnet.so``: loaded once, told where MXNet and the core are; and its errors.

A call with an argument that cannot be used raises a ``MxnetArgumentError``, which is a ValueError and an
``MXNetError``. An operation that fails raises at the next wait for one of its results, as MXNet's own operations do.
The error is both an ``MXNetError`` and the class of ``hvd_kernel.errors`` that the same failure has elsewhere in this
package::

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
_SAID = re.compile(r"(?:.*?hvd_kernel\.errors\.\w+: )?(?:\[rank (?P<rank>\d+)\] )?(?P<text>.*)", re.DOTALL)
_KINDS = ("HorovodInternalError", "Mismatch", "RankFailed", "RankDied", "RankStalled", "HvdTimeout", "OutOfMemory")


class MxnetArgumentError(ValueError, MXNetError):
    """An argument that this rank alone cannot use; raised by the call. Horovod raises MXNetError for it."""


class Request(ctypes.Structure):
    """An operation, as ``native/mxnet/call.h`` reads it."""

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
        It, or this MXNet, cannot be used; the message says why.
    """
    if os.environ.get("MXNET_ENGINE_TYPE") == "NaiveEngine":
        raise ImportError(
            "hvd_kernel.mxnet: MXNet's NaiveEngine cannot carry operations that end later: unset MXNET_ENGINE_TYPE"
        )
    library = load(_FILE, "MXNet")
    deadlocks.delegate_waits_to("mxnet")
    library.hvd_mxnet_begin.restype = library.hvd_mxnet_push.restype = ctypes.c_char_p
    mxnets = str(mx.base._LIB._name).encode()  # noqa: SLF001 - its path
    trouble = library.hvd_mxnet_begin(mxnets, core_table()).decode() or _unlike(library)
    if trouble:
        raise ImportError(f"{path_of(_FILE)} cannot be used with MXNet {mx.__version__}: {trouble}")
    return library


def push(request: Request) -> None:
    """Queue an operation in MXNet's engine.

    Raises
    ------
    MxnetArgumentError
        A tensor of it cannot be reduced or sent.
    """
    if trouble := plugin().hvd_mxnet_push(ctypes.byref(request)).decode():
        raise MxnetArgumentError(trouble)


def handles(arrays: Sequence[Any]) -> Any:
    """Return NDArrays as C takes them."""
    return (ctypes.c_void_p * len(arrays))(*[array.handle for array in arrays])


def counters() -> dict[str, int]:
    """Return what the plugin has counted.

    Returns
    -------
    dict
        ``pushed``: operations queued; ``run``: those that MXNet has let begin; ``ended``: those that have ended, well
        or not; ``dropped``: those that MXNet has forgotten, the last thing to happen to each.
    """
    numbers = (ctypes.c_int64 * len(_COUNTERS))()
    plugin().hvd_mxnet_counters(numbers)
    return dict(zip(_COUNTERS, numbers, strict=True))


def _unlike(library: ctypes.CDLL) -> str:
    """Try what the plugin takes for granted of an NDArray; "" where it is so."""
    one, other = mx.nd.empty((4,)), mx.nd.empty((4,))
    same = [library.hvd_mxnet_same_memory(one.handle, each.handle) for each in (one[1:3], one, other)]
    return "" if same == [1, 1, 0] else "its NDArray is laid out otherwise than that of MXNet 1.9.1"


def _told(self: Any, said: str) -> None:
    """Return the message and the rank that failed, from the text of MXNet's error."""
    found = _SAID.fullmatch(said)
    assert found is not None
    RuntimeError.__init__(self, found["text"])
    self.rank = int(found["rank"] or -1)


def _both(name: str) -> type:
    """Make a class of errors that is this package's and MXNet's, and have MXNet raise it."""
    kind = getattr(errors, name)
    body = {"__init__": _told, "__module__": __name__, "__doc__": kind.__doc__}
    made = type(name, (kind, MXNetError), body)
    register_error(f"hvd_kernel.errors.{name}", made)
    return made


globals().update({name: _both(name) for name in _KINDS})  # they can be pickled
