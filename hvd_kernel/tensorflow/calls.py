"""Calls of TensorFlow operations: their names, and the inputs that keep TensorFlow from optimising them away.

Terms.
  eager   the operation runs now; in a graph it is recorded, to run later, any number of times
  ticket  the last input of a collective. In a graph it comes from an operation with a side effect, so TensorFlow does
          not compute the collective of constants while it optimises; a graph has one, since each costs 3 us when it
          runs. In eager mode it carries the caller's name: an attribute would leave a kernel behind for every name
  number  attribute of a collective, unique in its graph: TensorFlow merges nodes that are equal

The names, by which ranks match operations, are defined in native/tf/call.h.
"""

from __future__ import annotations

import functools
import hashlib
import re
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from hvd_kernel.tensorflow import blocked, library

_NO_XLA = (
    "{op} cannot be compiled by XLA, which runs a function as one program and cannot wait for other ranks in it. Use "
    "jit_compile=False: tf.function(jit_compile=False), model.compile(jit_compile=False)."
)
_TICKETS = "_hvd_kernel_ticket"
_KEPT = 1024  # names of eager calls whose tensors are kept
# Of a node's name: with its scopes, ranks agree by it without a message (native/transport/shm/fast_path.h).
_LONGEST = 120


def call(op: str, tensors: Any, name: str | None, **attributes: Any) -> Any:
    """Run an operation of the plugin, or add it to the graph that is being traced.

    Parameters
    ----------
    op
        Horovod's name of the operation: "Allreduce", "GroupedAllgather".
    tensors
        A tensor, a list of tensors for a grouped operation, or a tuple of an operation's inputs.
    name
        The caller's name for the call; None: a name after the tensor's.
    """
    inputs = tensors if isinstance(tensors, tuple) else (tensors,)
    function = _function(op)
    blocked.add_caller()
    if tf.executing_eagerly():
        return function(*inputs, ticket=_ticket_of(name or ""), **attributes)
    _refuse_xla(op)
    node = _node_name(name or _default_name(op, inputs[0]), flat=attributes["ignore_name_scope"])
    ticket, number = _graph_ticket()
    return function(*inputs, ticket=ticket, number=number, name=node, **attributes)


def order() -> None:
    """Make later collectives of this graph run after its operations with a side effect so far: a barrier, a join."""
    if not tf.executing_eagerly():
        setattr(tf.compat.v1.get_default_graph(), _TICKETS, (None, 0))


def _graph_ticket() -> tuple[Any, int]:
    """Return the graph's ticket, and the number of collectives that use it so far.

    The ticket is an attribute of the graph, as it refers to the graph itself. It is created outside of
    ``tf.control_dependencies``, which must not apply to later collectives. Loops and branches of version 1 are parts of
    their graph: each collective in one has a ticket of its own, within it.
    """
    graph = tf.compat.v1.get_default_graph()
    make = _function("Ticket")
    if graph._get_control_flow_context() is not None:  # noqa: SLF001 - TensorFlow has no public name for it
        return make(), 0
    ticket, number = getattr(graph, _TICKETS, (None, 0))
    if ticket is None:
        with tf.control_dependencies(None):
            ticket = make()
    setattr(graph, _TICKETS, (ticket, number + 1))
    return ticket, number


@functools.lru_cache(_KEPT)
def bits(factor: float) -> int:
    """Return the bits of a float64 as an integer; TensorFlow's float attributes have 32 bits."""
    number: int = struct.unpack("<q", struct.pack("<d", float(factor)))[0]
    return number


def factor(attribute: int) -> float:
    """Return the float64 of these bits."""
    number: float = struct.unpack("<d", struct.pack("<q", attribute))[0]
    return number


@functools.lru_cache(_KEPT)
def _ticket_of(name: str) -> Any:
    with tf.device("CPU:0"):
        return tf.constant(np.frombuffer(name.encode(), np.uint8))


@functools.cache
def _function(op: str) -> Any:
    """Return TensorFlow's function for an operation; cached, since the lookup takes 3 us."""
    operations = library.ops()
    blocked.watch()
    return getattr(operations, "hvd" + re.sub("([A-Z])", r"_\1", op).lower())


def _default_name(op: str, tensors: Any) -> str:
    """Return Horovod's name for a call: after the tensor, or after the first tensor of a group.

    The name of a tensor from outside of the graph is a number that differs between ranks, and is not used.
    """
    first = tensors[0] if isinstance(tensors, Sequence) else tensors
    has_name = tf.is_symbolic_tensor(first) and not first.name[0].isdigit()
    return f"Horovod{op}_{re.sub('[^a-zA-Z0-9]', '_', first.name)}" if has_name else f"Horovod{op}"


def _node_name(name: str, *, flat: bool) -> str:
    """Return a valid name for a node of TensorFlow; with ``flat`` the name is one part, without slashes.

    The end of a long name is replaced by a digest: the names of consecutive operations contain each other.
    """
    allowed = re.sub(r"[^\w.\-]" if flat else r"[^\w.\-/]", "_", name, flags=re.ASCII)
    if len(allowed) > _LONGEST:
        digest = hashlib.blake2b(name.encode(), digest_size=8).hexdigest()
        allowed = f"{allowed[: _LONGEST - len(digest) - 1]}_{digest}"
    return allowed if re.match(r"[A-Za-z0-9.]", allowed) else f"n{allowed}"


def _refuse_xla(op: str) -> None:
    """Raise an error in a function with jit_compile=True; TensorFlow's own error names no remedy."""
    compiled = _in_xla()
    if compiled is not None and compiled(tf.compat.v1.get_default_graph()):
        raise ValueError(_NO_XLA.format(op=f"hvd_kernel's {op}"))


@functools.cache
def _in_xla() -> Any:
    """Return TensorFlow's private test for XLA; None if this version lacks it, and then raises its own error."""
    try:
        from tensorflow.python.ops import control_flow_util  # noqa: PLC0415 - private
    except ImportError:
        return None
    return getattr(control_flow_util, "GraphOrParentsInXlaContext", None)
