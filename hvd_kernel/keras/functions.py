"""Collectives on numbers, arrays and tensors, which return tensors; broadcast of variables."""
# ruff: noqa: PLR0917 - Horovod's signatures

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hvd_kernel.core import ops, training_steps
from hvd_kernel.core.ops import Average
from hvd_kernel.core.process_sets import ProcessSet, global_process_set
from hvd_kernel.core.tensor import reduction_of
from hvd_kernel.frameworks.arguments import raised_as
from hvd_kernel.keras.backends import argument_error
from hvd_kernel.keras.flavour import array_of, assign, eager_array_of, path_of, tensor_of

_REBUILD = "Build the same model with the same optimizer on every rank before the training."


@raised_as(argument_error)
def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: int | None = None,
    compression: Any = None,  # noqa: ARG001 - Horovod's parameter; values are small
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return the average (or ``op=Sum``, Min, Max, Product) of a number, an array or a tensor as a tensor.

    Parameters
    ----------
    value
        A value of the same shape and type on all ranks. Python numbers become float32 and int32, as in ``tf.constant``.

    Returns
    -------
    Any
        A tensor of Keras's backend; a NumPy array in a graph of TensorFlow 1, and on JAX for types of 64 bits.

    Raises
    ------
    ValueError
        Both ``average`` and ``op`` are set, or the process set does not exist. On TensorFlow the error is an
        InvalidArgumentError too.

    Examples
    --------
    ::

        hvd.allreduce(loss, name="loss").numpy()     # 2 ranks with 1.0 and 3.0: 2.0
    """
    chosen = reduction_of(op, average, warns=False)  # Horovod does not warn here either
    return tensor_of(ops.allreduce(eager_array_of(value), name, chosen, prescale_factor, postscale_factor, process_set))


@raised_as(argument_error)
def allgather(value: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> Any:
    """Return the rows of all ranks, concatenated, as a tensor."""
    return tensor_of(ops.allgather(eager_array_of(value), name, process_set))


@raised_as(argument_error)
def broadcast(value: Any, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set) -> Any:
    """Return the root's value as a tensor. Shapes and types must be the same on all ranks."""
    return tensor_of(ops.broadcast(eager_array_of(value), root_rank, name, process_set))


@raised_as(argument_error)
def reducescatter(
    value: Any, name: str | None = None, op: int = Average, process_set: ProcessSet = global_process_set
) -> Any:
    """Reduce, and return this rank's share of the rows as a tensor."""
    return tensor_of(ops.reducescatter(eager_array_of(value), name, op, process_set))


def broadcast_variables(variables: Sequence[Any], root_rank: int, name: str = "broadcast_variables") -> None:
    """Overwrite variables with the root's. Collective.

    Raises
    ------
    ValueError
        On every rank: the variables of the ranks differ; the message names the first difference.
    """
    _check_equal(variables, name)
    arrays = map(array_of, variables)
    assign(variables, [ops.broadcast(array, root_rank, f"{name}.{n}") for n, array in enumerate(arrays)])
    training_steps.begin_exchange()


def broadcast_global_variables(root_rank: int) -> None:
    """Raise an error, as Keras has no list of all variables outside of a graph of TensorFlow 1.

    Raises
    ------
    RuntimeError
        Always; the message has the remedy.
    """
    raise RuntimeError(
        "hvd.broadcast_global_variables() does not support eager execution. Please use "
        f"`hvd.callbacks.BroadcastGlobalVariablesCallback({root_rank})`, or `hvd.broadcast_variables(model.weights, "
        f"{root_rank})`."
    )


def _check_equal(variables: Sequence[Any], name: str) -> None:
    """Raise an error on every rank if the ranks' variables differ in number, shape or type. Collective.

    Raises
    ------
    ValueError
        The variables differ.
    """
    forms = [
        (tuple(map(int, variable.shape)), str(array_of(variable).dtype), path_of(variable)) for variable in variables
    ]
    first, *others = ops.allgather_object(forms, name=f"{name}.forms")
    for rank, other in enumerate(others, 1):
        if [form[:2] for form in other] == [form[:2] for form in first]:
            continue
        pairs = zip(first, other, strict=False)
        difference = next(
            (f"{a[2]} is {a[:2]}, and {b[2]} is {b[:2]}" for a, b in pairs if a[:2] != b[:2]), "some are missing"
        )
        raise ValueError(
            f"Rank 0 has {len(first)} variables and rank {rank} has {len(other)}: {difference}. {_REBUILD}"
        )
