"""TensorFlow's adapter: tensors, variables, modules and generators, for code that does not import TensorFlow."""

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
    """Adapter for TensorFlow; symbolic tensors of a graph have no elements."""

    def facts(self, value: Any) -> Mapping[str, str] | None:
        """Return the shape, and the dtype with a device other than the CPU."""
        if not isinstance(value, tf.Tensor | tf.Variable):
            return None
        spec = tf.DeviceSpec.from_string(value.device or "")
        device = "" if spec.device_type in {None, "CPU"} else f" {spec.device_type}:{spec.device_index}"
        return {"shape": str(value.shape), "dtype": f"{value.dtype.name}{device}"}

    def elements(self, value: Any) -> Elements | None:
        """Return the elements of an eager tensor or a variable; None if they are not numbers."""
        return elements_of(np.asarray(value.numpy()), "tensor") if _has_numbers(value) else None

    def state(self, value: Any) -> Any:
        """Return a module's variables in order, or the state of a random generator."""
        if isinstance(value, tf.random.Generator):
            return value.state
        return list(value.variables) if isinstance(value, tf.Module) and not isinstance(value, tf.Variable) else value

    def nbytes(self, value: Any) -> int | None:
        """Return the size in bytes of an eager tensor or a variable with numbers."""
        return int(value.dtype.size * value.shape.num_elements()) if _has_numbers(value) else None

    unseen = "TensorFlow keeps no gradients, and the memory of running graphs cannot be listed"

    def alive_bytes(self) -> Mapping[str, int]:
        """Return the size of all variables and eager tensors that Python knows."""
        tensors = [candidate for candidate in gc.get_objects() if issubclass(type(candidate), tf.Tensor | tf.Variable)]
        return {"tensors": sum(self.nbytes(tensor) or 0 for tensor in tensors)}

    def written(self) -> Iterable[type]:
        """Return TensorFlow's classes of dtypes and shapes."""
        return tf.DType, tf.TensorShape

    def reduced(self, value: Any) -> Any:
        """Pickle NumPy's bfloat16 as the receiving TensorFlow's; up to 2.13 its class belongs to no module."""
        return (_bfloat16, ()) if value is tf.bfloat16.as_numpy_dtype else NotImplemented

    def device(self, local_rank: int, named: Sequence[int]) -> str:
        """Return this rank's device for ``tf.device``: a GPU by local rank, or the CPU without GPUs."""
        count = len(tf.config.list_physical_devices("GPU"))
        if count < len(named):
            names = ",".join(map(str, named))
            raise ConfigError(
                f"--gpus {names}: TensorFlow {tf.__version__} sees {count} of these {len(named)} devices: install one "
                "with CUDA (pip install 'tensorflow[and-cuda]'), or leave --gpus out."
            )
        return f"/GPU:{local_rank % count}" if count else "/CPU:0"


def _bfloat16() -> Any:
    return tf.bfloat16.as_numpy_dtype


def _has_numbers(value: Any) -> bool:
    if not isinstance(value, tf.Tensor | tf.Variable) or not hasattr(value, "numpy"):
        return False
    return bool(value.dtype not in {tf.string, tf.resource, tf.variant} and value.shape.is_fully_defined())


ADAPTER = TensorflowAdapter()
