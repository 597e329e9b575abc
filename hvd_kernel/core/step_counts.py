"""Step counts of plain Keras optimizers and MXNet trainers, for the guard against training apart (training_steps.py).

Keras counts the steps of an optimizer in its variable ``iterations``, also in a compiled program, so telemetry reads
that variable. What is hooked is the method that makes it, once per optimizer. While ``fit`` runs on JAX, the variable
keeps the value from the end of the previous epoch. The steps of a gluon trainer are counted in its ``_update``.

An optimizer that reduces gradients on its own (``DistributedOptimizer``, ``DistributedTrainer``) is not followed.
"""

from __future__ import annotations

import functools
import logging
import math
import os
import re
import sys
import weakref
from collections.abc import Callable, Iterable
from contextlib import suppress
from types import ModuleType
from typing import Any
from zlib import crc32

import numpy as np

from hvd_kernel.core import training_steps
from hvd_kernel.protocol import modules

_LOG = logging.getLogger("hvd_kernel")
_DIGITS = re.compile(r"(\d+)\D*$")
_followed: weakref.WeakSet[Any] = weakref.WeakSet()
_updates: weakref.WeakKeyDictionary[Any, list[int]] = weakref.WeakKeyDictionary()  # of gluon trainers


@functools.cache
def attach(module: ModuleType) -> None:
    """Follow every optimizer of Keras, or trainer of ``mxnet.gluon.trainer``, that is made from now on."""
    try:
        if module.__name__ == "mxnet.gluon.trainer":
            _hook(module.Trainer, "_update", _count_update)
        else:
            _attach_keras(module.optimizers)
    except Exception as error:  # noqa: BLE001 - of an unknown version: training goes on
        _LOG.debug("optimizer steps of %s are not counted: %s", module.__name__, error)


def attach_loaded(*names: str) -> None:
    """Attach those of these modules that the process has imported."""
    for module in filter(None, map(modules.loaded, names)):
        attach(module)


def _attach_keras(optimizers: Any) -> None:
    legacy = getattr(getattr(optimizers, "legacy", None), "Optimizer", None)  # Keras 2 has both
    for kind, method in ((optimizers.Optimizer, "build"), (legacy, "_create_all_weights")):
        if base := next((base for base in reversed(getattr(kind, "__mro__", ())) if method in vars(base)), None):
            _hook(base, method, _follow_keras)


def _hook(kind: type, name: str, after: Callable[[Any, Any], None]) -> None:
    """Call ``after`` with the object and the first argument whenever this method has returned."""
    method = getattr(kind, name)

    @functools.wraps(method)
    def hooked(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = method(self, *args, **kwargs)
        with suppress(Exception):
            after(self, args[0] if args else None)
        return result

    setattr(kind, name, hooked)


def _follow_keras(optimizer: Any, variables: Iterable[Any]) -> None:
    is_outer = hasattr(optimizer, "wrapping") or hasattr(optimizer, "inner_optimizer")  # ours, or a LossScaleOptimizer
    if is_outer or optimizer in _followed:
        return
    _followed.add(optimizer)
    iterations = getattr(optimizer, "_iterations", None)  # the property may be an expression of it
    iterations = optimizer.iterations if iterations is None else iterations
    shapes = [(tuple(variable.shape), variable.dtype) for variable in variables]
    _follow(optimizer, shapes, lambda: int(np.asarray(iterations)), _keras_is_connected)


def _count_update(trainer: Any, _ignored: Any) -> None:
    if getattr(type(trainer), "reduces_gradients", False):
        return
    if trainer not in _updates:
        reference, count = weakref.ref(trainer), [0]
        _updates[trainer] = count
        trained = [parameter for parameter in trainer._params if parameter.grad_req != "null"]  # noqa: SLF001 - MXNet's
        _follow(
            trainer,
            [(tuple(parameter.shape), np.dtype(parameter.dtype)) for parameter in trained],
            lambda: count[0],
            lambda: "dist" in str(getattr(getattr(reference(), "_kvstore", None), "type", "")),
        )
    _updates[trainer][0] += 1


def _follow(optimizer: Any, shapes: list[Any], count: Callable[[], int], connected: Callable[[], bool]) -> None:
    nbytes = sum(math.prod(shape) * _item_bytes(dtype) for shape, dtype in shapes)
    described = crc32(repr([(shape, str(dtype)) for shape, dtype in shapes]).encode())
    name = f"{type(optimizer).__module__}.{type(optimizer).__name__} {len(shapes)} {described:x}"
    training_steps.follow(optimizer, name, nbytes, count=count, connected=connected)


def _item_bytes(dtype: Any) -> int:
    bits = _DIGITS.search(str(getattr(dtype, "name", dtype)))
    return int(bits[1]) // 8 if bits else 4


def _keras_is_connected() -> bool:
    """Return whether TensorFlow, torch or JAX connects the processes on its own."""
    distributed = modules.loaded("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return bool(distributed.get_world_size() > 1)
    jax = getattr(sys.modules.get("jax._src.distributed"), "global_state", None)
    return "TF_CONFIG" in os.environ or (getattr(jax, "num_processes", None) or 1) > 1
