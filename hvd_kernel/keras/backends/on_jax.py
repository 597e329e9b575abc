"""JAX backend of Keras 3: gradients are reduced in the program of the step, or as NumPy arrays if it runs eagerly."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hvd_kernel.core import ops
from hvd_kernel.core.process_sets import check
from hvd_kernel.core.tensor import Sum
from hvd_kernel.jax.ops import Compression, allreduce
from hvd_kernel.jax.optimizer import reduce_gradients
from hvd_kernel.keras.backends.reduction import EagerReduction
from hvd_kernel.keras.flavour import array_of, keras

__all__ = ["Compression", "JaxReduction", "restore_failed_steps"]


class JaxReduction(EagerReduction):
    """Reduces gradients of JAX, in a program that is being traced or eagerly."""

    def __call__(self, grads: Sequence[Any], sources: Sequence[Any]) -> list[Any]:
        """Return the reduced gradients."""
        if any(isinstance(grad, jax.core.Tracer) for grad in grads):
            return self._in_program(grads, sources)
        return super().__call__(grads, sources)

    def _in_program(self, grads: Sequence[Any], sources: Sequence[Any]) -> list[Any]:
        """Add the reduction to the program. Gradients that are None on some ranks only are a Mismatch on all ranks."""
        settings, result = self.settings, list(grads)
        check(settings.process_set)
        if not settings.process_set.included():
            return result
        present = [place for place, grad in enumerate(grads) if grad is not None]
        shared = [place for place in present if id(sources[place]) not in self.local]
        groups = None if settings.groups is None else self._groups([sources[place] for place in shared])
        reduced = reduce_gradients(
            [result[place] for place in shared],
            op=settings.op,
            compression=settings.compression,
            groups=groups,
            gradient_predivide_factor=settings.predivide,
            process_set=settings.process_set,
            name=settings.name,
        )
        for place, grad in zip(shared, reduced, strict=True):
            result[place] = grad
        local = sorted(set(present) - set(shared)) if settings.scale_local else []
        if local:  # the number of ranks when the program runs, which may differ from now
            name, process_set = f"{settings.name}.ranks", settings.process_set
            ranks = allreduce(jnp.ones((), jnp.float32), Sum, name, process_set=process_set)
        for place in local:
            result[place] = result[place] / ranks.astype(result[place].dtype)
        return result

    def _to_reducible(self, grad: Any) -> Any:
        return array_of(grad)

    def _to_tensor(self, grad: Any) -> Any:
        return keras.ops.convert_to_tensor(grad)

    def _zeros(self, source: Any) -> Any:
        return np.zeros(source.shape, array_of(source).dtype)

    def _mask(self, present: list[bool], like: Any) -> Any:  # noqa: ARG002 - arrays are on no device
        return np.array(present, np.float32)

    def _grouped(self, tensors: list[Any], name: str) -> list[Any]:
        settings = self.settings
        return ops.grouped_allreduce(
            [np.ascontiguousarray(tensor) for tensor in tensors],
            name,
            settings.op,
            1.0 / settings.predivide,
            settings.predivide,
            settings.process_set,
        )


_STATE_NAMES = ("trainable_variables", "non_trainable_variables", "optimizer_variables", "metrics_variables")


def restore_failed_steps(is_distributed: Callable[[Any], bool]) -> None:
    """Change Keras so that a failed training step leaves a model with ``is_distributed(model)`` as it was before.

    While Keras trains on JAX, the values of a model's variables are in a state that is passed from step to step. Keras
    donates it: after a failed step, for example when a rank has died, neither the old values nor new ones would exist.
    Here the state is not donated, and restored. This needs the memory of one more copy of the weights and the
    optimizer's state.
    """
    make = keras.Model.make_train_function

    @functools.wraps(make)
    def make_train_function(model: Any, force: bool = False) -> None:
        if (model.train_function is not None and not force) or not is_distributed(model) or _manages_own_values():
            make(model, force)
            return
        compiled = model.jit_compile and not model.run_eagerly
        step = jax.jit(model.train_step) if compiled else model.train_step
        model.train_function = _restoring(model, model._make_function(step))  # noqa: SLF001 - there is no public name

    keras.Model.make_train_function = make_train_function


def _restoring(model: Any, step: Callable[..., Any]) -> Callable[..., Any]:
    def train(state: Any, iterator: Any) -> Any:
        try:
            return step(state, iterator)
        except BaseException:
            model._jax_state = dict(zip(_STATE_NAMES, state, strict=True))  # noqa: SLF001 - jax_state_sync() reads it
            model._jax_state_synced = False  # noqa: SLF001
            model.jax_state_sync()
            raise

    return train


def _manages_own_values() -> bool:
    """Return whether Keras uses several devices in this process, or keeps its variables in flax."""
    return keras.distribution.distribution() is not None or keras.config.is_nnx_enabled()
