"""MXNet's adapter: arrays, parameters, blocks, trainers and optimizers, for everything that has not heard of MXNet."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import mxnet as mx
import numpy as np
from mxnet.gluon.parameter import Parameter, ParameterDict

from hvd_kernel.errors import ConfigError
from hvd_kernel.frameworks.adapter import Elements, FrameworkAdapter
from hvd_kernel.mxnet import memory
from hvd_kernel.mxnet.optimizer import DistributedOptimizer
from hvd_kernel.numpy.adapter import elements_of

_SIMPLE = (type(None), bool, int, float, str)


class MxnetAdapter(FrameworkAdapter):
    """MXNet's; to read an array is to wait for it."""

    def facts(self, value: Any) -> Mapping[str, str] | None:
        """Return the shape, and the type with the device where that is not the CPU."""
        if not isinstance(value, mx.nd.NDArray):
            return None
        where = value.context
        device = "" if where.device_type == "cpu" else f" {where.device_type}:{where.device_id}"
        return {"shape": str(tuple(value.shape)), "dtype": np.dtype(value.dtype).name + device}

    def elements(self, value: Any) -> Elements | None:
        """Return the elements of an array; a sparse one has none of its own."""
        dense = isinstance(value, mx.nd.NDArray) and value.stype == "default"
        return elements_of(value.asnumpy(), "tensor") if dense else None

    def state(self, value: Any) -> Any:
        """Return a block's parameters by their places in it, a parameter's arrays, what an optimizer remembers."""
        kinds = (kind for kind in _STATES if isinstance(value, kind))
        kind = next(kinds, None)
        return value if kind is None else _STATES[kind](value)

    def nbytes(self, value: Any) -> int | None:
        """Return an array's size."""
        return int(value.size) * int(np.dtype(value.dtype).itemsize) if isinstance(value, mx.nd.NDArray) else None

    def gradient_bytes(self, value: Any) -> int:
        """Return the size of a block's, a parameter's or an array's gradients."""
        held = value.collect_params().values() if isinstance(value, mx.gluon.Block) else [value]
        arrays = [array for each in held for array in (each._data or () if isinstance(each, Parameter) else [each])]  # noqa: SLF001 - data() raises before there is one
        return memory.together(memory.gradients_of(each for each in arrays if isinstance(each, mx.nd.NDArray)))

    def alive_bytes(self) -> Mapping[str, int]:
        """Return the size of all arrays that Python knows, and of parts of them."""
        return memory.alive()

    def written(self) -> Iterable[type]:
        """Return the class of devices."""
        return (mx.Context,)

    def reduced(self, value: Any) -> Any:
        """Have a parameter remember the gradient that it trains with, which MXNet's own pickles forget."""
        if not isinstance(value, Parameter):
            return NotImplemented
        return type(value).__new__, (type(value),), dict(vars(value)), None, None, _arrived

    def device(self, local_rank: int, named: Sequence[int]) -> Any:
        """Return this rank's turn among the GPUs that MXNet sees, else the CPU."""
        there = 0
        with suppress(mx.MXNetError):  # it was built without CUDA
            contexts: Any = mx.context
            there = contexts.num_gpus()
        if there < len(named):
            names = ",".join(map(str, named))
            raise ConfigError(
                f"--gpus {names}: MXNet {mx.__version__} sees {there} of these {len(named)} devices: install one with "
                "CUDA (mxnet-cu112), or leave --gpus out."
            )
        return mx.gpu(local_rank % there) if there else mx.cpu()


def _arrived(parameter: Parameter, state: dict[str, Any]) -> None:
    vars(parameter).update(state)
    if parameter._data is not None and parameter.grad_req != "null":  # noqa: SLF001 - data() raises before there is one
        parameter._init_grad()  # noqa: SLF001 - as MXNet does when it initializes one


def _of_optimizer(optimizer: Any) -> dict[str, Any]:
    plain = {name: value for name, value in vars(optimizer).items() if type(value) in _SIMPLE}
    return plain | {"updates": dict(optimizer._index_update_count)}  # noqa: SLF001 - MXNet has no public way to ask


def _of_trainer(trainer: Any) -> dict[str, Any]:
    states = [dict(updater.states) for updater in trainer._updaters]  # noqa: SLF001 - MXNet has no public way to ask
    return {"optimizer": trainer.optimizer, "states": states}


_STATES: dict[Any, Callable[[Any], Any]] = {
    Parameter: lambda it: list(it._data or ()),  # noqa: SLF001 - data() raises before there is one
    ParameterDict: lambda it: dict(it.items()),
    mx.gluon.Block: lambda it: dict(it._collect_params_with_prefix()),  # noqa: SLF001 - as save_parameters names them
    mx.gluon.Trainer: _of_trainer,
    DistributedOptimizer: lambda it: _of_optimizer(it.wrapped),
    mx.optimizer.Optimizer: _of_optimizer,
    mx.optimizer.Updater: lambda it: dict(it.states),
}

ADAPTER = MxnetAdapter()
