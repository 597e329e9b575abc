"""Reduction of the gradients of a step over all ranks: the base of the backends' reductions.

Terms.
  source  the variable that a gradient belongs to
  local   a source of this rank alone: its gradient is not reduced
  mask    1 for gradients that a rank has, 0 for others; reduced with them, so that a gradient that is None on some
          ranks only counts as zeros there
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hvd_kernel.core import metrics
from hvd_kernel.core.ops import Average, Sum
from hvd_kernel.core.process_sets import ProcessSet, check


@dataclass(frozen=True)
class OptimizerSettings:
    """Options of a DistributedOptimizer."""

    name: str
    device_dense: str
    device_sparse: str
    compression: Any
    sparse_as_dense: bool
    predivide: float
    op: int
    groups: Any
    process_set: ProcessSet
    scale_local: bool

    def __post_init__(self) -> None:
        """Check the options.

        Raises
        ------
        ValueError
            The options contradict each other.
        """
        if self.op not in {Average, Sum}:
            raise ValueError("op currently only supports Average and Sum with Keras")
        if self.predivide != 1.0 and self.op != Average:
            raise ValueError("gradient_predivide_factor not supported with op != Average")
        number = isinstance(self.groups, int) and self.groups > 0
        lists = isinstance(self.groups, list) and all(isinstance(group, list | tuple) for group in self.groups)
        if self.groups is not None and not number and not lists:
            raise ValueError("groups should be a non-negative integer or a list of list of tf.Variable.")


class BackendReduction(ABC):
    """Reduces the gradients of a step; a gradient that is None on all ranks stays None."""

    def __init__(self, settings: OptimizerSettings) -> None:
        self.settings = settings
        self.local: dict[int, Any] = {}

    def register_local(self, source: Any) -> None:
        """Exclude the gradient of this variable from the reduction."""
        self.local[id(source)] = source  # kept alive, so that its id stays unique

    @abstractmethod
    def __call__(self, grads: Sequence[Any], sources: Sequence[Any]) -> list[Any]:
        """Return the reduced gradients."""


class EagerReduction(BackendReduction):
    """Reduces gradients after all have been computed; for backends that run eagerly."""

    def __call__(self, grads: Sequence[Any], sources: Sequence[Any]) -> list[Any]:
        """Return the reduced gradients."""
        settings, result = self.settings, list(grads)
        check(settings.process_set)
        if not settings.process_set.included():
            return result
        metrics.step()
        shared = [place for place, source in enumerate(sources) if id(source) not in self.local]
        if shared:
            local = [
                self._zeros(sources[place]) if grads[place] is None else self._to_reducible(grads[place])
                for place in shared
            ]
            mask = self._mask([grads[place] is not None for place in shared], local[0])
            groups = self._groups([sources[place] for place in shared])
            for place, grad in zip(shared, self._reduced(local, mask, groups), strict=True):
                result[place] = grad
        for place in range(len(result)) if settings.scale_local else ():
            if place not in shared and result[place] is not None:
                result[place] = result[place] / settings.process_set.size()
        return result

    def _groups(self, sources: Sequence[Any]) -> list[list[int]]:
        """Return the indices of the sources of each group; each index once."""
        groups, places = self.settings.groups, list(range(len(sources)))
        if groups is None:
            return [places]
        if isinstance(groups, int):
            return [part for part in (places[number::groups] for number in range(groups)) if part]
        place_of = {id(source): place for place, source in enumerate(sources)}
        listed = [[place_of[id(source)] for source in group if id(source) in place_of] for group in groups]
        alone = [[place] for place in places if not any(place in group for group in listed)]
        return [group for group in [*listed, *alone] if group]

    def _reduced(self, grads: list[Any], mask: Any, groups: list[list[int]]) -> list[Any]:
        """Return the reduced gradients, None if the sum of the masks is 0. The mask is part of the first group."""
        settings, result = self.settings, [None] * len(grads)
        counts: Any = ()
        for number, group in enumerate(groups):
            pairs = [settings.compression.compress(grads[place]) for place in group]
            tensors = [small for small, _ in pairs]
            reduced = self._grouped([*tensors, mask] if number == 0 else tensors, f"{settings.name}.group_{number}")
            if number == 0:
                counts = reduced[-1]
            for place, small, (_, ctx) in zip(group, reduced, pairs, strict=False):
                result[place] = settings.compression.decompress(small, ctx)
        return [self._to_tensor(grad) if float(count) else None for grad, count in zip(result, counts, strict=True)]

    @abstractmethod
    def _to_reducible(self, grad: Any) -> Any:
        """Return a gradient as an operand of the reduction."""

    @abstractmethod
    def _to_tensor(self, grad: Any) -> Any:
        """Return a result of the reduction as a tensor of the backend."""

    @abstractmethod
    def _zeros(self, source: Any) -> Any:
        """Return a gradient of zeros."""

    @abstractmethod
    def _mask(self, present: list[bool], like: Any) -> Any:
        """Return 1.0 for gradients that exist, 0.0 for others, on the device of the tensor ``like``."""

    @abstractmethod
    def _grouped(self, tensors: list[Any], name: str) -> list[Any]:
        """Reduce tensors as a group."""
