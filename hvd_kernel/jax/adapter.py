"""JAX's adapter: arrays, random keys, and trees of them, for code that does not import JAX."""

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
    """Adapter for JAX; tracers, which represent arrays while a program is traced, have no elements."""

    def facts(self, value: Any) -> Mapping[str, str] | None:
        """Return the shape, and the dtype with the devices other than the CPU."""
        if not isinstance(value, jax.Array):
            return None
        devices = [] if isinstance(value, jax.core.Tracer) else list(value.devices())
        others = sorted(str(device) for device in devices if device.platform != "cpu")
        return {"shape": str(tuple(value.shape)), "dtype": " ".join([str(value.dtype), *others])}

    def elements(self, value: Any) -> Elements | None:
        """Return the elements of an array, or of the data of a random key."""
        if not _has_elements(value):
            return None
        if jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
            return elements_of(np.asarray(jax.random.key_data(value)), "tensor")
        return elements_of(np.asarray(value), "tensor")

    def nbytes(self, value: Any) -> int | None:
        """Return the size of an array in bytes."""
        return int(value.nbytes) if _has_elements(value) else None

    unseen = "JAX keeps no gradients and knows no parameters: those that have a name are among the variables"

    def alive_bytes(self) -> Mapping[str, int]:
        """Return the size of all live arrays, and of those in states of optax."""
        states = [candidate for candidate in gc.get_objects() if _is_of_optax(type(candidate))]
        sizes = {id(leaf): int(leaf.nbytes) for leaf in jax.tree.leaves(states) if _has_elements(leaf)}
        alive = sum(int(array.nbytes) for array in jax.live_arrays() if not array.is_deleted())
        return {"tensors": alive, "optimizer state": sum(sizes.values())}

    def written(self) -> Iterable[type]:
        """Return JAX's device class."""
        return (jax.Device,)

    def device(self, local_rank: int, named: Sequence[int]) -> Any:
        """Return this rank's value for ``jax.default_device``: a GPU by local rank, or the CPU without GPUs."""
        gpus = [device for device in jax.local_devices() if device.platform == "gpu"]
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
