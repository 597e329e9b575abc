"""Samples of the batches of torch's DataLoaders in any layout: dicts, tuples, packed or (seq, batch, feature).

Terms.
  batch size   the DataLoader's ``batch_size``; None if it has none, as with a batch sampler of one's own
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from contextlib import suppress
from functools import cache, wraps
from types import ModuleType
from typing import Any


class LoaderBatches:
    """The samples that DataLoaders have yielded since the last step."""

    def __init__(self) -> None:
        self.count = 0  # of batches, so far
        self._loader = 0  # id of the sampler of the latest batch
        self._samples = 0

    def add(self, loader: int, samples: int) -> None:
        """Add a batch; batches of another loader, as for validation, do not count towards the step."""
        if loader != self._loader:
            self._loader, self._samples = loader, 0
        self.count += 1
        self._samples += samples

    def pop(self) -> int:
        """Return the samples since the last call."""
        samples, self._samples = self._samples, 0
        return samples


batches = LoaderBatches()


@cache
def attach(torch: ModuleType) -> None:
    """Count the batches of all DataLoaders, once per process."""
    iterator = getattr(importlib.import_module(f"{torch.__name__}.utils.data.dataloader"), "_BaseDataLoaderIter", None)
    if iterator is None:
        return
    following = iterator.__next__

    @wraps(following)
    def count(self: Any) -> Any:
        batch = following(self)
        with suppress(Exception):  # an unusual batch: training goes on without a count
            sampler = self._index_sampler
            batches.add(id(sampler), samples_of(batch, getattr(sampler, "batch_size", None)))
        return batch

    iterator.__next__ = count


def samples_of(batch: Any, batch_size: int | None = None) -> int:
    """Return the number of samples of a batch, or of a model's arguments; 0 if it has no tensor.

    It is the first dimension of the first tensor, unless ``batch_size`` shows that samples lie along the second one.

    Examples
    --------
    >>> samples_of({"ids": torch.zeros(32, 128)}), samples_of((torch.zeros(50, 32, 8), None), batch_size=32)
    (32, 32)
    """
    sizes = getattr(batch, "batch_sizes", None)
    if sizes is not None:  # a PackedSequence: the sequences that have a first element
        return int(sizes[0])
    shape = getattr(batch, "shape", None)
    if shape is not None:
        return _along(tuple(shape), batch_size)
    if isinstance(batch, Mapping):
        return next(filter(None, (samples_of(value, batch_size) for value in batch.values())), 0)
    if isinstance(batch, list | tuple):
        if len(batch) == batch_size:  # one item for each sample
            return len(batch)
        return next(filter(None, (samples_of(value, batch_size) for value in batch)), 0)
    return 0


def _along(shape: tuple[int, ...], batch_size: int | None) -> int:
    if not shape:
        return 0
    if batch_size is None or shape[0] == batch_size or len(shape) == 1:
        return shape[0]
    if shape[1] == batch_size or shape[0] > batch_size:  # the last batch may be smaller
        return min(shape[1], batch_size)
    return shape[0]
