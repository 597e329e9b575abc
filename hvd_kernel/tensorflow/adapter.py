"""TensorFlow's adapter: tensors, variables, modules and generators, for everything that has not heard of TensorFlow."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from hvd_kernel.errors import ConfigError
from hvd_kernel.frameworks.adapter import Elements, FrameworkAdapter
from hvd_kernel.numpy.adapter import elements_of


class TensorflowAdapter(FrameworkAdapter):
    """TensorFlow's; a tensor of a graph has no elements yet."""

    def facts(self, value: Any) -> Mapping[str, str] | None:
        """Return the shape, and the type with the device where that is not the CPU."""
        if not isinstance(value, tf.Tensor | tf.Variable):
            return None
        where = tf.DeviceSpec.from_string(value.device or "")
        device = "" if where.device_type in {None, "CPU"} else f" {where.device_type}:{where.device_index}"
        return {"shape": str(value.shape), "dtype": f"{value.dtype.name}{device}"}

    def elements(self, value: Any) -> Elements | None:
        """Return the elements of an eager tensor or a variable that are numbers."""
        return elements_of(np.asarray(value.numpy()), "tensor") if _has_numbers(value) else None

    def state(self, value: Any) -> Any:
        """Return a module's variables by their order, the state of a random generator."""
        if isinstance(value, tf.random.Generator):
            return value.state
        return list(value.variables) if isinstance(value, tf.Module) and not isinstance(value, tf.Variable) else value

    def nbytes(self, value: Any) -> int | None:
        """Return the size of a tensor or variable that has one."""
        return int(value.dtype.size * value.shape.num_elements()) if _has_numbers(value) else None

    unseen = "TensorFlow keeps no gradients, and what runs in a graph has memory that nobody can list"

    def alive_bytes(self) -> Mapping[str, int]:
        """Return the size of all variables and eager tensors that Python knows."""
        found = [each for each in gc.get_objects() if issubclass(type(each), tf.Tensor | tf.Variable)]
        return {"tensors": sum(self.nbytes(each) or 0 for each in found)}

    def written(self) -> Iterable[type]:
        """Return the classes of types and shapes."""
        return tf.DType, tf.TensorShape

    def reduced(self, value: Any) -> Any:
        """Have NumPy's bfloat16 be that of the TensorFlow there: up to 2.13 it is a class of no module."""
        return (_bfloat16, ()) if value is tf.bfloat16.as_numpy_dtype else NotImplemented

    def device(self, local_rank: int, named: Sequence[int]) -> str:
        """Return this rank's turn among the GPUs that TensorFlow sees, else the CPU: a name for ``tf.device``."""
        there = len(tf.config.list_physical_devices("GPU"))
        if there < len(named):
            names = ",".join(map(str, named))
            raise ConfigError(
                f"--gpus {names}: TensorFlow {tf.__version__} sees {there} of these {len(named)} devices: install one "
                "with CUDA (pip install 'tensorflow[and-cuda]'), or leave --gpus out."
            )
        return f"/GPU:{local_rank % there}" if there else "/CPU:0"


def _bfloat16() -> Any:
    return tf.bfloat16.as_numpy_dtype


def _has_numbers(value: Any) -> bool:
    if not isinstance(value, tf.Tensor | tf.Variable) or not hasattr(value, "numpy"):
        return False
    return bool(value.dtype not in {tf.string, tf.resource, tf.variant} and value.shape.is_fully_defined())


ADAPTER = TensorflowAdapter()
