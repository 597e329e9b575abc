"""JAX's adapter: arrays, keys of random numbers, and trees of them, for everything that has not heard of JAX."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from hvd_kernel.errors import ConfigError
from hvd_kernel.frameworks.adapter import Elements, FrameworkAdapter
from hvd_kernel.numpy.adapter import elements_of


class JaxAdapter(FrameworkAdapter):
    """JAX's; what stands for an array while a program is traced has no elements."""

    def facts(self, value: Any) -> Mapping[str, str] | None:
        """Return the shape, and the type with the device where that is not the CPU."""
        if not isinstance(value, jax.Array):
            return None
        devices = [] if isinstance(value, jax.core.Tracer) else list(value.devices())
        others = sorted(str(each) for each in devices if each.platform != "cpu")
        return {"shape": str(tuple(value.shape)), "dtype": " ".join([str(value.dtype), *others])}

    def elements(self, value: Any) -> Elements | None:
        """Return the elements of an array; of a key those that it is made of."""
        if not _has_elements(value):
            return None
        if jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
            return elements_of(np.asarray(jax.random.key_data(value)), "tensor")
        return elements_of(np.asarray(value), "tensor")

    def nbytes(self, value: Any) -> int | None:
        """Return an array's size."""
        return int(value.nbytes) if _has_elements(value) else None

    unseen = "JAX keeps no gradients and knows no parameters: those that have a name are among the variables"

    def alive_bytes(self) -> Mapping[str, int]:
        """Return the size of all arrays that are alive, and of those in states of optax."""
        states = [each for each in gc.get_objects() if _is_of_optax(type(each))]
        held = {id(leaf): int(leaf.nbytes) for leaf in jax.tree.leaves(states) if _has_elements(leaf)}
        alive = sum(int(each.nbytes) for each in jax.live_arrays() if not each.is_deleted())
        return {"tensors": alive, "optimizer state": sum(held.values())}

    def written(self) -> Iterable[type]:
        """Return the class of devices."""
        return (jax.Device,)

    def device(self, local_rank: int, named: Sequence[int]) -> Any:
        """Return this rank's turn among the GPUs that JAX sees, else the CPU: for ``jax.default_device``."""
        gpus = [each for each in jax.local_devices() if each.platform == "gpu"]
        if len(gpus) < len(named):
            names = ",".join(map(str, named))
            raise ConfigError(
                f"--gpus {names}: JAX {jax.__version__} sees {len(gpus)} of these {len(named)} devices: install one "
                "with CUDA (pip install 'jax[cuda12]'), or leave --gpus out."
            )
        return gpus[local_rank % len(gpus)] if gpus else jax.local_devices(backend="cpu")[0]


def _has_elements(value: Any) -> bool:
    return isinstance(value, jax.Array) and not isinstance(value, jax.core.Tracer) and not value.is_deleted()


def _is_of_optax(kind: type) -> bool:
    return issubclass(kind, tuple) and str(kind.__module__).partition(".")[0] == "optax"


ADAPTER = JaxAdapter()
