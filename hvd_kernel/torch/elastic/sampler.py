"""``ElasticSampler``: the samples of a dataset for this rank; an interrupted epoch continues with those that remain.

Terms.
  order      the epoch's shuffle of all samples, the same on every rank
  deal       the remaining order, dealt to the ranks like cards when the sampler is created or reset; if it cannot be
             divided equally, the first samples of the order are dealt again: the same ones in an interrupted epoch
  recorded   the samples that this rank has processed: the first ones of its part of the deal, and single ones
  agreed     the samples that all ranks know to be processed, by the last exchange of records
  processed  the first ``processed_num`` of the order, and ``processed_indices`` at any position

The batches of one rank imply nothing about those of another: sizes and numbers of batches may differ.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from torch.utils.data import Sampler

from hvd_kernel.core import session


@dataclass(frozen=True)
class Deal:
    """Samples dealt to a number of ranks. Rank ``r`` of ``size`` has ``cards[r::size]``."""

    epoch: int
    order: list[int]
    processed: tuple[int, frozenset[int]]  # before the deal: the number of first samples of the order, and others
    remaining: list[int]
    cards: list[int]
    size: int

    @classmethod
    def of(cls, epoch: int, order: list[int], processed: tuple[int, Iterable[int]], size: int) -> Deal:
        """Deal the samples that are not processed."""
        first, others = prefix_and_rest(order, processed)
        remaining = [index for index in order[first:] if index not in others]
        total = -(-len(remaining) // size) * size
        cards = list(itertools.islice(itertools.chain(remaining, itertools.cycle(order)), total))
        return cls(epoch, order, (first, others), remaining, cards, size)

    def after(self, progress: Progress) -> tuple[int, frozenset[int]]:
        """Return the processed samples after the ranks' progress."""
        counted = enumerate(progress.taken)
        taken = [self.cards[rank : rank + count * self.size : self.size] for rank, count in counted]
        first, others = self.processed
        return prefix_and_rest(self.order, (first, others.union(progress.single, *taken)))


def prefix_and_rest(order: list[int], processed: tuple[int, Iterable[int]]) -> tuple[int, frozenset[int]]:
    """Return the same processed samples, with as many of them as possible in the prefix of the order.

    >>> prefix_and_rest([3, 0, 2, 1], (1, [1, 0]))
    (2, frozenset({1}))
    """
    first, others = min(processed[0], len(order)), set(processed[1]).difference(order[: processed[0]])
    while first < len(order) and order[first] in others:
        others.discard(order[first])
        first += 1
    return first, frozenset(others)


@dataclass(frozen=True)
class Progress:
    """Progress of the ranks in a deal."""

    taken: tuple[int, ...]  # the number of samples of each rank
    single: frozenset[int] = frozenset()  # samples that were recorded one by one


class ElasticSampler(Sampler[int]):
    """Deals samples to the ranks; recorded samples are not dealt again in the same epoch.

    Add it to the ``TorchState``, call ``record_batch`` after every batch, and ``set_epoch`` at the END of an epoch.
    The ranks exchange their records at each commit and sync of the state; batches may differ between ranks.

    Parameters
    ----------
    dataset
        An object with a length.
    shuffle
        Shuffle the order of an epoch, by ``seed`` and the epoch's number, equally on every rank.
    seed
        The same number on every rank.

    Raises
    ------
    ValueError
        Horovod is not initialized.

    Examples
    --------
    >>> sampler = hvd.elastic.ElasticSampler(range(4 * hvd.size()), shuffle=False)
    >>> state = hvd.elastic.TorchState(sampler=sampler)
    >>> len(sampler)
    4
    >>> sampler.record_batch(batch_idx=0, batch_size=3)  # three samples of this rank's
    >>> state.commit()
    >>> sampler.reset()
    >>> len(sampler)
    1
    """

    _deal: Deal
    _agreed: Progress
    _taken: int  # the number of samples that this rank has recorded of its part
    _single: set[int]

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self._begin(0, (0, ()))

    def set_epoch(self, epoch: int) -> None:
        """Start an epoch with another shuffle, without processed samples."""
        self._begin(epoch, (0, ()))

    def record_batch(self, batch_idx: int, batch_size: int) -> None:  # noqa: ARG002 - Horovod's signature
        """Record this rank's next ``batch_size`` samples as processed, skipping samples that are recorded already."""
        while batch_size > 0 and self._taken < self.num_samples:
            batch_size -= self.indices[self._taken] not in self._single
            self._taken += 1

    def record_indices(self, indices: Iterable[int]) -> None:
        """Record samples of this rank as processed."""
        self._single.update(int(index) for index in indices)

    def get_indices(self, batch_idx: int, batch_size: int) -> list[int]:
        """Return the samples of this rank's batch, counted from the last reset."""
        return self.indices[batch_idx * batch_size : (batch_idx + 1) * batch_size]

    def state_dict(self) -> dict[str, Any]:
        """Return the state for ``load_state_dict``: the agreed samples, and those that this rank has recorded since.

        After a commit of the state, these are the samples that all ranks have recorded.
        """
        return _state_dict(self.epoch, self._deal.after(self._with_recorded(self._agreed)))

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a state, also of Horovod's sampler, with the current ranks."""
        processed = state_dict.get("processed_num", 0), state_dict.get("processed_indices", ())
        self._begin(state_dict["epoch"], processed)

    def reset(self) -> None:
        """Deal the remaining samples to the current ranks; a single rank's records count as agreed."""
        if self.num_replicas == 1:
            self._agreed = self._with_recorded(self._agreed)
        self.go_back(self.progress())

    @property
    def processed_num(self) -> int:
        """Number of processed samples at the start of the order, as far as this rank knows."""
        return int(self.state_dict()["processed_num"])

    @property
    def processed_indices(self) -> set[int]:
        """Other processed samples, as far as this rank knows."""
        return set(self.state_dict()["processed_indices"])

    # Methods for the state's handler.

    def recorded(self) -> npt.NDArray[np.int64]:
        """Return this rank's record for the other ranks: epoch, samples taken, number of single samples, and these."""
        single = sorted(self._single)
        return np.array([self.epoch, self._taken, len(single), *single], np.int64)

    def update_agreed(self, records: npt.NDArray[np.int64]) -> None:
        """Update the agreed samples by the concatenated ``recorded`` of all ranks."""
        taken, single = list(self._agreed.taken), set(self._agreed.single)
        numbers = iter(records.tolist())
        for rank in range(self.num_replicas):
            epoch, count, single_count = itertools.islice(numbers, 3)
            singles = list(itertools.islice(numbers, single_count))
            if epoch == self.epoch:
                taken[rank] = count
                single.update(singles)
        self._agreed = Progress(tuple(taken), frozenset(single))

    def progress(self) -> tuple[Deal, Progress, frozenset[int]]:
        """Return the deal, the agreed progress, and this rank's records since then, as immutable values."""
        return self._deal, self._agreed, frozenset(self._since())

    def go_back(self, progress: tuple[Deal, Progress, frozenset[int]]) -> None:
        """Deal the samples that remained at an earlier progress to the current ranks."""
        deal, agreed, since = progress
        self._begin(deal.epoch, deal.after(agreed))
        self._single = set(since)

    def agreed_and_since(self) -> tuple[dict[str, Any], set[int]]:
        """Return the agreed state, and the samples that this rank has recorded since."""
        return self.agreed(self.progress()), self._since()

    def agreed(self, progress: tuple[Deal, Progress, frozenset[int]]) -> dict[str, Any]:
        """Return the agreed samples at a progress, as a state for ``load_state_dict``."""
        deal, agreed, _ = progress
        return _state_dict(deal.epoch, deal.after(agreed))

    def merged(self, states: Sequence[tuple[dict[str, Any], set[int]]], root: int) -> dict[str, Any]:
        """Return the root's agreed state with the later records of all ranks in the root's epoch."""
        root_state, _ = states[root]
        since = [recorded for state, recorded in states if state["epoch"] == root_state["epoch"]]
        return {**root_state, "processed_indices": set(root_state["processed_indices"]).union(*since)}

    def _since(self) -> set[int]:
        taken = self.indices[self._agreed.taken[self.rank] : self._taken]
        return {*taken, *(self._single - self._agreed.single)}

    def _with_recorded(self, agreed: Progress) -> Progress:
        """Return the agreed progress, extended by this rank's records."""
        taken = list(agreed.taken)
        taken[self.rank] = max(taken[self.rank], self._taken)
        return replace(agreed, taken=tuple(taken), single=agreed.single | self._single)

    def _begin(self, epoch: int, processed: tuple[int, Iterable[int]]) -> None:
        self._place(Deal.of(epoch, self._order(epoch), processed, session.size()))
        self._agreed, self._taken, self._single = Progress((0,) * self.num_replicas), 0, set[int]()

    def _order(self, epoch: int) -> list[int]:
        order = list(range(len(self.dataset)))
        if self.shuffle:
            random.Random(self.seed + epoch).shuffle(order)  # noqa: S311 - samples, not secrets
        return order

    def _place(self, deal: Deal) -> None:
        self._deal = deal
        self.epoch, self.num_replicas, self.rank = deal.epoch, deal.size, session.rank()
        self.remaining_indices = deal.remaining
        self.total_size = len(deal.cards)
        self.num_samples = self.total_size // self.num_replicas
        self.indices = deal.cards[self.rank :: self.num_replicas]

    def __iter__(self) -> Iterator[int]:
        return iter(self.indices)

    def __len__(self) -> int:
        return self.num_samples


def _state_dict(epoch: int, processed: tuple[int, frozenset[int]]) -> dict[str, Any]:
    return {"epoch": epoch, "processed_num": processed[0], "processed_indices": set(processed[1])}
