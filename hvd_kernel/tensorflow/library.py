"""TensorFlow plugin ``libhvd_tf.so``, loaded once with the core's address; and translation of its errors.

A call with an invalid argument raises a ``TensorflowArgumentError``, which is a ValueError and TensorFlow's
InvalidArgumentError. An operation that fails raises one of ``tf.errors``, whose text ends with the name of this
package's error class and the rank that failed: ``[hvd_kernel.errors.RankDied, rank 2]``. ``translated`` returns that
error.

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
    """Invalid argument on this rank alone: Horovod's class, and the ValueError of the other frontends."""


def argument_error(message: str) -> TensorflowArgumentError:
    """Return the error for an argument of a call, without an operation of a graph."""
    return TensorflowArgumentError(None, None, message)


@tf.autograph.experimental.do_not_convert
def set_id(process_set: ProcessSet, doing: str) -> int:
    """Return the id of a process set that this rank may use.

    Raises
    ------
    TensorflowArgumentError
        The set is not registered, or this rank is not a member.
    """
    with raised_as(argument_error):
        return process_sets.set_id(process_set, doing)


@tf.autograph.experimental.do_not_convert
def check(process_set: ProcessSet) -> None:
    """Raise a TensorflowArgumentError for a process set that is not registered."""
    with raised_as(argument_error):
        process_sets.check(process_set)


@functools.cache
def ops() -> Any:
    """Return the module of functions that TensorFlow generates for our operations: ``ops().hvd_allreduce(...)``.

    Raises
    ------
    ImportError
        The plugin cannot be loaded, or does not work with this TensorFlow; the message has the reason.
    """
    plugin = path_of("libhvd_tf.so")
    try:
        module = tf.load_op_library(str(plugin))
    except (tf.errors.OpError, OSError) as error:
        raise ImportError(f"{plugin} cannot be loaded, so there are no operations for TensorFlow: {error}") from None
    library = _plugin()
    library.hvd_tf_trouble.restype = ctypes.c_char_p
    if trouble := library.hvd_tf_trouble().decode():
        raise ImportError(f"{plugin} cannot be used with TensorFlow {tf.__version__}: {trouble}")
    library.hvd_tf_set_core(core_table())
    metrics.count_by(functools.partial(_trained, library))
    return module


def counters() -> dict[str, int]:
    """Return the plugin's counters.

    Returns
    -------
    dict
        ``calls``: operations; ``forwarded``: inputs whose memory became the result's; ``given``: results whose memory
        TensorFlow took over from the core; ``returned``: those of them that it has released; ``steps``: reductions of
        all gradients of a step, by tapes and optimizers, in graphs and in eager mode; ``samples``: the sum of the
        arguments of ``count_samples``.
    """
    ops()
    return _counters_of(_plugin())


def has_calls_in_progress() -> bool:
    """Return whether an operation is in progress."""
    return bool(_plugin().hvd_tf_under_way())


def begun() -> list[str]:
    """Return the names of the nodes that have started, in runs of graphs with operations in progress."""
    function = _plugin().hvd_tf_begun
    function.argtypes, function.restype = (ctypes.c_char_p, ctypes.c_int64), ctypes.c_int64
    text, size = ctypes.create_string_buffer(0), function(None, 0)
    while size > len(text):
        text = ctypes.create_string_buffer(size)
        size = function(text, size)
    return text.raw[:size].decode().splitlines()


def translated(error: BaseException) -> BaseException:
    """Return this package's error for an error of TensorFlow; the error itself if this package did not raise it.

    Returns
    -------
    BaseException
        A ``HorovodInternalError`` or a class derived from it, with the rank that failed.

    Examples
    --------
    ::

        try:
            step(batch)
        except tf.errors.OpError as error:
            raise translated(error) from error
    """
    match = _OURS.search(str(error)) if isinstance(error, tf.errors.OpError) else None
    kind = getattr(errors, match["name"], None) if match else None
    if match is None or kind is None:
        return error
    ours: BaseException = kind(match["text"], int(match["rank"] or -1))
    return ours


def _counters_of(library: ctypes.CDLL) -> dict[str, int]:
    numbers = (ctypes.c_int64 * len(_COUNTERS))()
    library.hvd_tf_counters(numbers)
    return dict(zip(_COUNTERS, numbers, strict=True))


def _trained(library: ctypes.CDLL) -> tuple[int, int]:
    numbers = _counters_of(library)  # not counters(): telemetry may call this before ops() has returned
    return numbers["steps"], numbers["samples"]


@functools.cache
def _plugin() -> ctypes.CDLL:
    return ctypes.CDLL(str(path_of("libhvd_tf.so")))
