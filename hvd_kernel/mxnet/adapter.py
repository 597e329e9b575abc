"""MXNet's adapter: arrays, parameters, blocks, trainers and optimizers, for code that does not import MXNet."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import mxnet as mx
import numpy as np
from mxnet.gluon.parameter import Parameter, ParameterDict

from hvd_kernel.errors import ConfigError
from hvd_kernel.frameworks.adapter import Elements, FrameworkAdapter
from hvd_kernel.mxnet.optimizer import DistributedOptimizer
from hvd_kernel.numpy.adapter import elements_of

_SIMPLE = (type(None), bool, int, float, str)


class MxnetAdapter(FrameworkAdapter):
    """Adapter for MXNet; reading an array waits for the operation that writes it."""

    def facts(self, value: Any) -> Mapping[str, str] | None:
        """Return the shape, and the dtype with a device other than the CPU."""
        if not isinstance(value, mx.nd.NDArray):
            return None
        context = value.context
        device = "" if context.device_type == "cpu" else f" {context.device_type}:{context.device_id}"
        return {"shape": str(tuple(value.shape)), "dtype": np.dtype(value.dtype).name + device}

    def elements(self, value: Any) -> Elements | None:
        """Return the elements of a dense array; None for a sparse one."""
        dense = isinstance(value, mx.nd.NDArray) and value.stype == "default"
        return elements_of(value.asnumpy(), "tensor") if dense else None

    def state(self, value: Any) -> Any:
        """Return a block's parameters by their structure, a parameter's arrays, or an optimizer's state."""
        kinds = (kind for kind in _STATES if isinstance(value, kind))
        kind = next(kinds, None)
        return value if kind is None else _STATES[kind](value)

    def nbytes(self, value: Any) -> int | None:
        """Return the size of an array in bytes."""
        return int(value.size) * int(np.dtype(value.dtype).itemsize) if isinstance(value, mx.nd.NDArray) else None

    def gradient_bytes(self, value: Any) -> int:
        """Return the size of the gradients of a block, a parameter or an array."""
        holders = value.collect_params().values() if isinstance(value, mx.gluon.Block) else [value]
        arrays = [array for holder in holders for array in _data_of(holder)]
        return _total_bytes(_gradients_of(array for array in arrays if isinstance(array, mx.nd.NDArray)))

    def alive_bytes(self) -> Mapping[str, int]:
        """Return the size of all arrays that Python knows, of gradients, parameters and optimizer state.

        Arrays that share memory, such as a slice and its whole, count once.
        """
        with suppress(mx.MXNetError):  # an operation's error is raised where its result is read
            mx.nd.waitall()  # an array has its memory when the operation that writes it runs
        objects = gc.get_objects()
        arrays = [candidate for candidate in objects if issubclass(type(candidate), mx.nd.NDArray)]
        gradients = list(_gradients_of(arrays))
        updaters = [candidate for candidate in objects if issubclass(type(candidate), mx.optimizer.Updater)]
        states = list(_arrays_of(state for updater in updaters for state in updater.states.values()))
        parameters = [candidate for candidate in objects if issubclass(type(candidate), Parameter)]
        trained = [array for param in parameters if param.grad_req != "null" for array in _data_of(param)]
        parts = {"gradients": gradients, "optimizer state": states, "parameters": trained}
        sizes = {name: _total_bytes(part) for name, part in parts.items()}
        return {"tensors": _total_bytes([*arrays, *gradients])} | sizes

    def written(self) -> Iterable[type]:
        """Return MXNet's device class."""
        return (mx.Context,)

    def reduced(self, value: Any) -> Any:
        """Pickle a parameter so that it has a gradient again, which MXNet's own pickles lose."""
        if not isinstance(value, Parameter):
            return NotImplemented
        return type(value).__new__, (type(value),), dict(vars(value)), None, None, _set_state

    def device(self, local_rank: int, named: Sequence[int]) -> Any:
        """Return this rank's device: a GPU by turns of the local rank, or the CPU if MXNet sees no GPU."""
        count = 0
        with suppress(mx.MXNetError):  # MXNet was built without CUDA
            contexts: Any = mx.context
            count = contexts.num_gpus()
        if count < len(named):
            names = ",".join(map(str, named))
            raise ConfigError(
                f"--gpus {names}: MXNet {mx.__version__} sees {count} of these {len(named)} devices: install one with "
                "CUDA (mxnet-cu112), or leave --gpus out."
            )
        return mx.gpu(local_rank % count) if count else mx.cpu()


def _data_of(holder: Any) -> Iterable[Any]:
    """Return the arrays of a parameter, one per device, or an array itself."""
    return holder._data or () if isinstance(holder, Parameter) else [holder]  # noqa: SLF001 - data() raises if uninitialized


def _gradients_of(arrays: Iterable[Any]) -> Iterator[Any]:
    """Yield the gradients of arrays that have one."""
    for array in arrays:
        gradient = array.grad if array.stype == "default" else None
        if gradient is not None:
            yield gradient


def _arrays_of(states: Iterable[Any]) -> Iterator[Any]:
    """Yield the arrays in states of an optimizer: arrays, tuples of arrays, or None."""
    for state in states:
        if isinstance(state, mx.nd.NDArray):
            yield state
        elif isinstance(state, list | tuple):
            yield from _arrays_of(state)


def _total_bytes(arrays: Iterable[Any]) -> int:
    """Return the size of the memory that arrays occupy together; of a sparse array, of its elements."""
    size, end = 0, 0
    for begin, until in sorted(map(_span, arrays)):
        size += max(0, until - max(begin, end))
        end = max(end, until)
    return size


def _span(array: Any) -> tuple[int, int]:
    """Return the addresses of an array's begin and end."""
    pointer = ctypes.c_void_p()
    mx.base.check_call(mx.base._LIB.MXNDArrayGetData(array.handle, ctypes.byref(pointer)))  # noqa: SLF001 - its C API
    begin = pointer.value or 0
    elements = array.data.size if array.stype != "default" else array.size
    return begin, begin + int(elements) * int(np.dtype(array.dtype).itemsize) if begin else begin


def _set_state(parameter: Parameter, state: dict[str, Any]) -> None:
    vars(parameter).update(state)
    if parameter._data is not None and parameter.grad_req != "null":  # noqa: SLF001 - data() raises if uninitialized
        parameter._init_grad()  # noqa: SLF001 - as MXNet does when it initializes a parameter


def _of_optimizer(optimizer: Any) -> dict[str, Any]:
    plain = {name: value for name, value in vars(optimizer).items() if type(value) in _SIMPLE}
    return plain | {"updates": dict(optimizer._index_update_count)}  # noqa: SLF001 - MXNet has no public name for it


def _of_trainer(trainer: Any) -> dict[str, Any]:
    states = [dict(updater.states) for updater in trainer._updaters]  # noqa: SLF001 - MXNet has no public name for it
    return {"optimizer": trainer.optimizer, "states": states}


_STATES: dict[Any, Callable[[Any], Any]] = {
    Parameter: lambda parameter: list(_data_of(parameter)),
    ParameterDict: lambda parameters: dict(parameters.items()),
    mx.gluon.Block: lambda block: dict(block._collect_params_with_prefix()),  # noqa: SLF001 - names as in save_parameters
    mx.gluon.Trainer: _of_trainer,
    DistributedOptimizer: lambda optimizer: _of_optimizer(optimizer.wrapped),
    mx.optimizer.Optimizer: _of_optimizer,
    mx.optimizer.Updater: lambda updater: dict(updater.states),
}

ADAPTER = MxnetAdapter()
