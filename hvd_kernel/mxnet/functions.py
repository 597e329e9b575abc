"""Broadcast of parameters and objects. Horovod's signatures."""

from __future__ import annotations

from typing import Any

from mxnet.gluon.parameter import DeferredInitializationError, Parameter, ParameterDict

from hvd_kernel.core import ops, session
from hvd_kernel.core.process_sets import ProcessSet, global_process_set
from hvd_kernel.mxnet.mpi_ops import broadcast_

__all__ = ["allgather_object", "broadcast_object", "broadcast_parameters"]


def broadcast_parameters(params: Any, root_rank: int = 0, prefix: str | None = None) -> None:
    """Overwrite parameters with the root's: ``net.collect_params()``, or the dicts of ``Module.get_params()``.

    A parameter without a shape is overwritten when it gets one, in the first forward pass.

    Parameters
    ----------
    params
        A dict or ParameterDict, with the same names, shapes and types on all ranks.
    prefix
        Prefix of the operations' names; needed if two sets of parameters are broadcast at the same time.

    Raises
    ------
    ValueError
        ``params`` has another type.
    HorovodInternalError
        At the next wait for a parameter: the parameters of the ranks differ in shape or type.

    Examples
    --------
    ::

        hvd.broadcast_parameters(net.collect_params(), root_rank=0)
    """
    if not isinstance(params, dict | ParameterDict):
        raise ValueError(f"invalid params of type: {type(params)}")  # noqa: TRY004 - Horovod's
    for key, value in sorted(params.items()):
        name = f"{prefix or ''}{key}"
        if not isinstance(value, Parameter):
            broadcast_(value, root_rank, name)
            continue
        try:
            _broadcast(value, root_rank, name)
        except DeferredInitializationError:
            _broadcast_later(value, root_rank, name)


def _broadcast(parameter: Parameter, root_rank: int, name: str) -> None:
    for number, data in enumerate(parameter.list_data()):  # one for each device of this process
        broadcast_(data, root_rank, f"{name}.{number}" if number else name)


def _broadcast_later(parameter: Parameter, root_rank: int, name: str) -> None:
    """Broadcast a parameter once, when it is initialized."""

    def initialize(*args: Any, **kwargs: Any) -> None:
        vars(parameter).pop("_init_impl", None)  # uncovers the method of the class
        parameter._init_impl(*args, **kwargs)  # noqa: SLF001 - allocates the parameter
        if session.is_initialized():
            _broadcast(parameter, root_rank, name)

    parameter._init_impl = initialize  # noqa: SLF001


def broadcast_object(
    obj: Any, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Return the root's object on every rank; ``obj`` of other ranks is ignored.

    Ranks must agree on ``name``.
    """
    return ops.broadcast_object(obj, root_rank, name, process_set)


def allgather_object(obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[Any]:
    """Return the objects of all ranks, in rank order. Ranks must agree on ``name``; types of objects may differ."""
    return ops.allgather_object(obj, name, process_set)
