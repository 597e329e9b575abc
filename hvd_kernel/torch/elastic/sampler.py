"""Which samples of a dataset this rank gets, so that an interrupted epoch goes on with those that are left.

Words.
  order      the epoch's shuffle of all samples, the same on every rank
  processed  done in this epoch: the first ``processed_num`` of the order, and ``processed_indices``, wherever they are
  remaining  the rest of the order, dealt out to the ranks like cards when the sampler is made or reset; where it does
             not divide, the order's first are dealt again: the same ones whether the epoch was interrupted or not
  lockstep   all ranks do batches of the same size: so each knows by itself what all have processed together
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator, Sized
from typing import Any

from torch.utils.data import Sampler

from hvd_kernel.core import session


class ElasticSampler(Sampler[int]):
    """Deals the samples out to the ranks; what is recorded as processed is not dealt out again in this epoch.

    Give it to the ``TorchState``, call ``record_batch`` after every batch, and ``set_epoch`` at the END of an epoch.

    Parameters
    ----------
    dataset
        Anything with a length.
    shuffle
        Whether an epoch's order is shuffled, by ``seed`` and the epoch, alike on every rank.
    seed
        The same on every rank.

    Raises
    ------
    ValueError
        Before ``init``.

    Examples
    --------
    >>> sampler = hvd.elastic.ElasticSampler(range(4 * hvd.size()), shuffle=False)
    >>> len(sampler)
    4
    >>> sampler.record_batch(batch_idx=0, batch_size=3)  # three samples of every rank
    >>> sampler.reset()
    >>> len(sampler)
    1
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.processed_num = 0
        self.processed_indices: set[int] = set()
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch with another shuffle: nothing is processed."""
        self.epoch, self.processed_num, self.processed_indices = epoch, 0, set()
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:  # noqa: ARG002 - Horovod's signature
        """Record the next ``batch_size`` samples of every rank as processed: the ranks are in lockstep."""
        count = batch_size * self.num_replicas
        if self.processed_indices:  # the order has gaps: a number of its first samples does not say it all
            self.processed_indices.update(self.remaining_indices[self._taken : self._taken + count])
        else:
            self.processed_num += count
        self._taken += count

    def record_indices(self, indices: Iterable[int]) -> None:
        """Record samples of this rank as processed; the other ranks hear of them at the next commit."""
        self.processed_indices.update(int(index) for index in indices)

    def get_indices(self, batch_idx: int, batch_size: int) -> list[int]:
        """Return the samples of this rank's batch, counted from the last reset."""
        return self.indices[batch_idx * batch_size : (batch_idx + 1) * batch_size]

    def state_dict(self) -> dict[str, Any]:
        """Return what ``load_state_dict`` needs to go on from here."""
        return {
            "epoch": self.epoch,
            "processed_num": self.processed_num,
            "processed_indices": set(self.processed_indices),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from there, with the ranks that there are now."""
        self.epoch, self.processed_num = state_dict["epoch"], state_dict["processed_num"]
        self.processed_indices = set(state_dict.get("processed_indices", ()))
        self.reset()

    def reset(self) -> None:
        """Deal what remains out to the ranks that there are now."""
        self.num_replicas, self.rank = session.size(), session.rank()
        order = list(range(len(self.dataset)))
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(order)  # noqa: S311 - samples, not secrets
        rest = order[self.processed_num :]
        self.remaining_indices = [index for index in rest if index not in self.processed_indices]
        self.num_samples = -(-len(self.remaining_indices) // self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas
        padded = itertools.islice(itertools.chain(self.remaining_indices, itertools.cycle(order)), self.total_size)
        self.indices = list(padded)[self.rank :: self.num_replicas]
        self._taken = 0

    def __iter__(self) -> Iterator[int]:
        return iter(self.indices)

    def __len__(self) -> int:
        return self.num_samples
