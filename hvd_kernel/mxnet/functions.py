"""Broadcast of one rank's parameters or objects to all. Horovod's signatures."""

from __future__ import annotations

from typing import Any

from mxnet.gluon.parameter import DeferredInitializationError, Parameter, ParameterDict

from hvd_kernel.core import ops, session
from hvd_kernel.core.process_sets import ProcessSet, global_process_set
from hvd_kernel.mxnet.mpi_ops import broadcast_

__all__ = ["allgather_object", "broadcast_object", "broadcast_parameters"]


def broadcast_parameters(params: Any, root_rank: int = 0, prefix: str | None = None) -> None:
    """Overwrite parameters by the root's: ``net.collect_params()``, or the dicts of ``Module.get_params()``.

    One that has no shape yet is overwritten when it gets it, with the first forward pass.

    Parameters
    ----------
    params
        A dict or ParameterDict; all ranks have the same names in it, of the same shapes and types.
    prefix
        Of the operations' names: two sets of parameters that are broadcast at a time need two.

    Raises
    ------
    ValueError
        It is something else.
    HorovodInternalError
        At the next wait for a parameter: the ranks' do not fit together.

    Example
    -------
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
    """Do it once, when the parameter is initialized."""

    def initialize(*args: Any, **kwargs: Any) -> None:
        vars(parameter).pop("_init_impl", None)  # its class's is found again
        parameter._init_impl(*args, **kwargs)  # noqa: SLF001 - where MXNet gives a parameter its memory
        if session.is_initialized():
            _broadcast(parameter, root_rank, name)

    parameter._init_impl = initialize  # noqa: SLF001


def broadcast_object(
    obj: Any, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Return the root's object on every rank; what the others pass as ``obj`` is ignored.

    Ranks must agree on ``name``.
    """
    return ops.broadcast_object(obj, root_rank, name, process_set)


def allgather_object(obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[Any]:
    """Return every rank's object, in rank order. Ranks must agree on ``name``; their objects may be of any types."""
    return ops.allgather_object(obj, name, process_set)
