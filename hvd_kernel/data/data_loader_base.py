"""``horovod.data.data_loader_base``: a loader of batches, and what reads them ahead in a thread.

::

    class Batches(BaseDataLoader):
        def __len__(self): ...
        def _iterate(self): ...                        # yields the batches of one epoch

    class BatchesAhead(AsyncDataLoaderMixin, Batches): ...

Unlike Horovod's, every epoch has a thread of its own, which begins with the epoch: an epoch that was left early leaves
no batches to the next one, and ``_iterate`` sees what was set before it (``sampler.set_epoch``).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any

from hvd_kernel.data.prefetch import Prefetch

_LOG = logging.getLogger("hvd_kernel")


class BaseDataLoader:
    """Batches, one epoch after the other."""

    def __len__(self) -> int:
        """Return the number of batches of an epoch."""
        raise NotImplementedError

    def _iterate(self) -> Iterable[Any]:
        """Return the batches of an epoch."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[Any]:
        for batch in self._iterate():
            yield self._process_batch(batch)

    def _process_batch(self, batch: Any) -> Any:
        """Return what the user gets of a batch: a trainer's hook."""
        return batch


if TYPE_CHECKING:
    _Mixed = BaseDataLoader  # among the bases it comes after the mixin
else:
    _Mixed = object


class AsyncDataLoaderMixin(_Mixed):
    """Goes before a BaseDataLoader among the bases: a thread runs ``_iterate``, ``_process_batch`` stays with the user.

    ``async_loader_queue_size``: how many batches may wait; 0: no thread. ``debug_data_loader``: log what it does.
    """

    def __init__(
        self, async_loader_queue_size: int = 64, debug_data_loader: bool = False, *args: Any, **kwargs: Any
    ) -> None:
        if async_loader_queue_size < 0:
            raise ValueError(f"async_loader_queue_size={async_loader_queue_size} must be 0 (no thread) or more.")
        self.async_loader_queue_size = async_loader_queue_size
        self.debug_data_loader = debug_data_loader
        self._readings: list[Prefetch] = []
        super().__init__(*args, **kwargs)

    def __iter__(self) -> Iterator[Any]:
        if self.async_loader_queue_size == 0:
            yield from super().__iter__()
            return
        with closing(self._begin().take()) as batches:
            for batch in batches:
                yield self._process_batch(batch)

    def close_async_loader(self) -> None:
        """End the threads, and wait until they have ended: each with the batch that it is at."""
        for reading in self._readings:
            reading.stop()
        for reading in self._readings:
            reading.join()
        self._readings = []
        self._say("no thread reads any more")

    def _begin(self) -> Prefetch:
        alive = [one for one in self._readings if one.alive]
        # One that was stopped may still be at a batch, and two of them at a time would be too many for a file.
        stopped = [one for one in alive if one.stopped]
        reading = Prefetch(self._iterate, self.async_loader_queue_size, after=stopped)
        self._readings = [*alive, reading]
        self._say("a thread reads up to %d batches ahead", self.async_loader_queue_size)
        return reading

    def _say(self, text: str, *values: Any) -> None:
        if self.debug_data_loader:
            _LOG.warning("%s: " + text, type(self).__name__, *values)
