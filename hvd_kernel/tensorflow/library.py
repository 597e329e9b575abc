"""TensorFlow plugin ``libhvd_tf.so``: loaded once, told where the core is; and what its errors mean.

A call with an argument that cannot be used raises a ``TensorflowArgumentError``, which is a ValueError and
TensorFlow's InvalidArgumentError. An operation that fails raises one of ``tf.errors``, whose text ends with the class
that the same failure has elsewhere in this package and the rank that failed: ``[hvd_kernel.errors.RankDied, rank 2]``.
``translated`` gives that error.

The plugin is built without TensorFlow and works with 2.13 and newer; ``native/tf`` has its sources.
"""

from __future__ import annotations

import ctypes
import functools
import re
from typing import Any

import tensorflow as tf

from hvd_kernel import errors
from hvd_kernel.core import metrics, process_sets
from hvd_kernel.core.process_sets import ProcessSet
from hvd_kernel.frameworks.arguments import raised_as
from hvd_kernel.frameworks.plugin import core_table, path_of

_OURS = re.compile(
    r"(?:\{\{[^\n]*\}\} )?(?P<text>[^\n]*?) \[hvd_kernel\.errors\.(?P<name>\w+)(?:, rank (?P<rank>\d+))?\]"
)
_COUNTERS = ("calls", "forwarded", "given", "returned", "steps", "samples")


class TensorflowArgumentError(tf.errors.InvalidArgumentError, ValueError):
    """An argument that this rank alone cannot use: Horovod's class, and the ValueError of our other frontends."""


def argument_error(message: str) -> TensorflowArgumentError:
    """Return the error for an argument of a call; it belongs to no operation of a graph."""
    return TensorflowArgumentError(None, None, message)


@tf.autograph.experimental.do_not_convert
def set_id(process_set: ProcessSet, doing: str) -> int:
    """Return the id of a set that this rank may do something in.

    Raises
    ------
    TensorflowArgumentError
        The set is not registered, or this rank is not a member.
    """
    with raised_as(argument_error):
        return process_sets.set_id(process_set, doing)


@tf.autograph.experimental.do_not_convert
def check(process_set: ProcessSet) -> None:
    """Refuse a set that is not registered, with a TensorflowArgumentError."""
    with raised_as(argument_error):
        process_sets.check(process_set)


@functools.cache
def ops() -> Any:
    """Return the functions that TensorFlow has made of our operations: ``ops().hvd_allreduce(...)``.

    Raises
    ------
    ImportError
        The plugin, or TensorFlow's side of it, cannot be used; the message says why.
    """
    plugin = path_of("libhvd_tf.so")
    try:
        made = tf.load_op_library(str(plugin))
    except (tf.errors.OpError, OSError) as error:
        raise ImportError(f"{plugin} cannot be loaded, so there are no operations for TensorFlow: {error}") from None
    library = _plugin()
    library.hvd_tf_trouble.restype = ctypes.c_char_p
    if trouble := library.hvd_tf_trouble().decode():
        raise ImportError(f"{plugin} cannot be used with TensorFlow {tf.__version__}: {trouble}")
    library.hvd_tf_set_core(core_table())
    metrics.count_by(functools.partial(_trained, library))
    return made


def counters() -> dict[str, int]:
    """Return what the plugin has counted.

    Returns
    -------
    dict
        ``calls``: operations; ``forwarded``: inputs whose memory became the result's; ``given``: results that
        TensorFlow has taken over from the core as they were; ``returned``: those of them that it has given back;
        ``steps``: reductions of all gradients of a step, by tapes and optimizers, wherever they ran; ``samples``: what
        ``count_samples`` was given.
    """
    ops()
    return _counted(_plugin())


def calls_under_way() -> bool:
    """Tell whether an operation has begun and not ended."""
    return bool(_plugin().hvd_tf_under_way())


def begun() -> list[str]:
    """Return the names of the nodes that have begun in the runs of graphs in which operations are under way."""
    function = _plugin().hvd_tf_begun
    function.argtypes, function.restype = (ctypes.c_char_p, ctypes.c_int64), ctypes.c_int64
    text, size = ctypes.create_string_buffer(0), function(None, 0)
    while size > len(text):
        text = ctypes.create_string_buffer(size)
        size = function(text, size)
    return text.raw[:size].decode().splitlines()


def translated(error: BaseException) -> BaseException:
    """Return what an error of TensorFlow's means in this package; the error itself where it is none of ours.

    Returns
    -------
    BaseException
        A ``HorovodInternalError``, or the class derived from it that fits, with the rank whose fault it is.

    Example
    -------
    ::

        try:
            step(batch)
        except tf.errors.OpError as error:
            raise translated(error) from error
    """
    found = _OURS.search(str(error)) if isinstance(error, tf.errors.OpError) else None
    kind = getattr(errors, found["name"], None) if found else None
    if found is None or kind is None:
        return error
    ours: BaseException = kind(found["text"], int(found["rank"] or -1))
    return ours


def _counted(library: ctypes.CDLL) -> dict[str, int]:
    numbers = (ctypes.c_int64 * len(_COUNTERS))()
    library.hvd_tf_counters(numbers)
    return dict(zip(_COUNTERS, numbers, strict=True))


def _trained(library: ctypes.CDLL) -> tuple[int, int]:
    numbers = _counted(library)  # not counters(): telemetry may ask before ops() has returned
    return numbers["steps"], numbers["samples"]


@functools.cache
def _plugin() -> ctypes.CDLL:
    return ctypes.CDLL(str(path_of("libhvd_tf.so")))
