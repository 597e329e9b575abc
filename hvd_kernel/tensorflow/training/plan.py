"""Plan of gradient reduction: what tapes and optimizers are told, checked once, and which gradients go together.

Terms.
  source  what a gradient belongs to: a variable, as a rule
  group   sources whose gradients are reduced together or not at all
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any

import tensorflow as tf

from hvd_kernel.core.process_sets import ProcessSet
from hvd_kernel.tensorflow.compression import Compressor
from hvd_kernel.tensorflow.mpi_ops import Average

Groups = int | tuple[tuple[int, ...], ...] | None  # how many, or the keys of the sources of each
Parts = tuple[tuple[int, ...], ...]  # positions of gradients that go together


@dataclass(frozen=True)
class ReductionPlan:
    """Equal plans reduce alike: what one of them has traced, the other one uses."""

    name: str
    device_dense: str
    device_sparse: str
    compression: type[Compressor]
    sparse_as_dense: bool
    op: int
    predivide: float
    groups: Groups
    process_set: ProcessSet

    @property
    def scales(self) -> dict[str, float]:
        """The factors before and after the sum, which come on top of what Average does by itself."""
        return {"prescale_factor": 1.0 / self.predivide, "postscale_factor": self.predivide}

    def parts(self, grads: Sequence[Any], sources: Sequence[Any]) -> Parts:
        """Return which gradients go together; those that are None go nowhere."""
        places = [place for place, grad in enumerate(grads) if grad is not None]
        if self.groups is None:
            return tuple((place,) for place in places)
        if isinstance(self.groups, int):
            return _cut(places, self.groups)
        place_of = {key_of(sources[place]): place for place in places}
        grouped = [tuple(place_of[key] for key in group if key in place_of) for group in self.groups]
        alone = set(places) - set(chain.from_iterable(grouped))
        return tuple(part for part in [*grouped, *((place,) for place in sorted(alone))] if part)


def checked_groups(num_groups: int, groups: Any) -> Groups:
    """Return the groups that were asked for.

    Raises
    ------
    ValueError
        ``groups`` is neither a positive number nor a list of lists of variables.
    """
    if num_groups:
        said = "Parameter `num_groups` has been replaced by `groups` and will be removed in v0.23.0."
        warnings.warn(said, DeprecationWarning, stacklevel=3)
        groups = num_groups if groups is None else groups
    if groups is None or (isinstance(groups, int) and groups > 0):
        return groups
    if not isinstance(groups, list) or not all(isinstance(group, list | tuple) for group in groups):
        raise ValueError("groups should be a non-negative integer or a list of list of tf.Variable.")
    return tuple(tuple(key_of(variable) for variable in group) for group in groups)


def check_predivide(factor: float, op: int) -> None:
    """Refuse a factor that only an average can be split by."""
    if factor != 1.0 and op != Average:
        raise ValueError("gradient_predivide_factor not supported with op != Average")


def key_of(source: Any) -> int:
    """Return what tells sources apart; a variable of Keras 3 is the variable of TensorFlow's in it."""
    inner = getattr(source, "value", None)
    return id(inner if isinstance(inner, tf.Variable) else source)


def _cut(places: list[int], count: int) -> Parts:
    """Cut into consecutive parts of nearly equal length, the longer ones first."""
    each, more = divmod(len(places), count)
    ends = [each * part + min(part, more) for part in range(count + 1)]
    return tuple(tuple(places[start:end]) for start, end in pairwise(ends) if end > start)
