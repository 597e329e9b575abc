"""``horovod.data.data_loader_base``: a loader of batches, and a mixin that reads them ahead in a thread.

::

    class Batches(BaseDataLoader):
        def __len__(self): ...
        def _iterate(self): ...                        # yields the batches of one epoch

    class BatchesAhead(AsyncDataLoaderMixin, Batches): ...

Unlike in Horovod, every epoch has its own thread, which starts with the epoch: batches of an epoch that was left early
never appear in the next one, and ``_iterate`` sees what was set before the epoch (``sampler.set_epoch``).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any

from hvd_kernel.data.prefetch import Prefetch

_LOG = logging.getLogger("hvd_kernel")


class BaseDataLoader:
    """Iterable over the batches of one epoch."""

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
        """Return the batch that the user receives; a hook for trainers."""
        return batch


if TYPE_CHECKING:
    _Mixed = BaseDataLoader  # follows the mixin among the bases
else:
    _Mixed = object


class AsyncDataLoaderMixin(_Mixed):
    """Mixin before BaseDataLoader: a thread runs ``_iterate``, and the caller's thread runs ``_process_batch``.

    ``async_loader_queue_size`` is the number of batches that are read ahead; with 0 there is no thread.
    ``debug_data_loader`` logs the start and end of threads.
    """

    def __init__(
        self, async_loader_queue_size: int = 64, debug_data_loader: bool = False, *args: Any, **kwargs: Any
    ) -> None:
        if async_loader_queue_size < 0:
            raise ValueError(f"async_loader_queue_size={async_loader_queue_size} must be 0 (no thread) or more.")
        self.async_loader_queue_size = async_loader_queue_size
        self.debug_data_loader = debug_data_loader
        self._epochs: list[Prefetch] = []
        super().__init__(*args, **kwargs)

    def __iter__(self) -> Iterator[Any]:
        if self.async_loader_queue_size == 0:
            yield from super().__iter__()
            return
        with closing(self._start().items()) as batches:
            for batch in batches:
                yield self._process_batch(batch)

    def close_async_loader(self) -> None:
        """Stop the threads, and wait until each has finished its current batch."""
        for epoch in self._epochs:
            epoch.stop()
        for epoch in self._epochs:
            epoch.join()
        self._epochs = []
        self._log("no thread reads any more")

    def _start(self) -> Prefetch:
        """Start the thread of an epoch."""
        alive = [epoch for epoch in self._epochs if epoch.alive]
        # A stopped thread may still read its current batch, and two threads must not read the same file at once.
        stopped = [epoch for epoch in alive if epoch.stopped]
        epoch = Prefetch(self._iterate, self.async_loader_queue_size, after=stopped)
        self._epochs = [*alive, epoch]
        self._log("a thread reads up to %d batches ahead", self.async_loader_queue_size)
        return epoch

    def _log(self, text: str, *values: Any) -> None:
        if self.debug_data_loader:
            _LOG.warning("%s: " + text, type(self).__name__, *values)
