"""JAX backend of Keras 3: gradients are reduced in the program of the step; where Python runs it, as NumPy arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hvd_kernel.core import ops
from hvd_kernel.core.process_sets import check
from hvd_kernel.core.tensor import Sum
from hvd_kernel.jax.compression import Compression
from hvd_kernel.jax.ops import allreduce
from hvd_kernel.jax.optimizer import reduce_gradients
from hvd_kernel.keras.backends.reduction import Together
from hvd_kernel.keras.flavour import array_of, keras

__all__ = ["Compression", "JaxReduction"]


class JaxReduction(Together):
    """Reduces what a program is traced with, or arrays."""

    def __call__(self, grads: Sequence[Any], sources: Sequence[Any]) -> list[Any]:
        """Return the gradients, reduced."""
        if any(isinstance(each, jax.core.Tracer) for each in grads):
            return self._in_program(grads, sources)
        return super().__call__(grads, sources)

    def _in_program(self, grads: Sequence[Any], sources: Sequence[Any]) -> list[Any]:
        """Add the reduction to the program. Where gradients are None on some ranks only, all are told: a Mismatch."""
        how, result = self.settings, list(grads)
        check(how.process_set)
        if not how.process_set.included():
            return result
        present = [place for place, grad in enumerate(grads) if grad is not None]
        shared = [place for place in present if id(sources[place]) not in self.local]
        groups = None if how.groups is None else self._groups([sources[place] for place in shared])
        reduced = reduce_gradients(
            [result[place] for place in shared],
            op=how.op,
            compression=how.compression,
            groups=groups,
            gradient_predivide_factor=how.predivide,
            process_set=how.process_set,
            name=how.name,
        )
        for place, grad in zip(shared, reduced, strict=True):
            result[place] = grad
        own = sorted(set(present) - set(shared)) if how.scale_local else []
        if own:  # their number is asked when the program runs
            ranks = allreduce(jnp.ones((), jnp.float32), Sum, f"{how.name}.ranks", process_set=how.process_set)
        for place in own:
            result[place] = result[place] / ranks.astype(result[place].dtype)
        return result

    def _ready(self, grad: Any) -> Any:
        return array_of(grad)

    def _back(self, grad: Any) -> Any:
        return keras.ops.convert_to_tensor(grad)

    def _zeros(self, source: Any) -> Any:
        return np.zeros(source.shape, array_of(source).dtype)

    def _mask(self, present: list[bool], beside: Any) -> Any:  # noqa: ARG002 - arrays are on no device
        return np.array(present, np.float32)

    def _grouped(self, tensors: list[Any], name: str) -> list[Any]:
        how = self.settings
        return ops.grouped_allreduce(
            [np.ascontiguousarray(each) for each in tensors],
            name,
            how.op,
            1.0 / how.predivide,
            how.predivide,
            how.process_set,
        )
