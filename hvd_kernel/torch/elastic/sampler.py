"""``ElasticSampler``: which samples of a dataset this rank gets; an interrupted epoch goes on with those that are left.

Terms.
  order      the epoch's shuffle of all samples, the same on every rank
  deal       the rest of the order given out to the ranks like cards, when the sampler is made or reset; where it does
             not divide, the order's first are dealt again: the same ones whether the epoch was interrupted or not
  recorded   what this rank says it has processed: the first so many samples of its part of the deal, and single ones
  agreed     what all ranks know to be processed, by the last exchange of what each has recorded
  processed  the first ``processed_num`` of the order, and ``processed_indices``, wherever they are

Nothing is concluded from one rank's batches about another's: ranks may do batches of other sizes, or more of them.
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
    """What was dealt out to how many ranks. The rank ``r`` of ``size`` has ``cards[r::size]``."""

    epoch: int
    order: list[int]
    processed: tuple[int, frozenset[int]]  # before it: so many of the order's first, and these
    remaining: list[int]
    cards: list[int]
    size: int

    @classmethod
    def of(cls, epoch: int, order: list[int], processed: tuple[int, Iterable[int]], size: int) -> Deal:
        """Deal what is not processed out."""
        first, others = prefix_and_rest(order, processed)
        remaining = [index for index in order[first:] if index not in others]
        total = -(-len(remaining) // size) * size
        cards = list(itertools.islice(itertools.chain(remaining, itertools.cycle(order)), total))
        return cls(epoch, order, (first, others), remaining, cards, size)

    def after(self, progress: Progress) -> tuple[int, frozenset[int]]:
        """Return what is processed when the ranks have come so far."""
        counted = enumerate(progress.taken)
        taken = [self.cards[rank : rank + count * self.size : self.size] for rank, count in counted]
        first, others = self.processed
        return prefix_and_rest(self.order, (first, others.union(progress.single, *taken)))


def prefix_and_rest(order: list[int], processed: tuple[int, Iterable[int]]) -> tuple[int, frozenset[int]]:
    """Return the same samples with as many as possible of them counted from the order's first.

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
    """How far the ranks have come with a deal."""

    taken: tuple[int, ...]  # of each rank how many of its samples
    single: frozenset[int] = frozenset()  # and samples recorded one by one


class ElasticSampler(Sampler[int]):
    """Deals the samples out to the ranks; what is recorded as processed is not dealt out again in this epoch.

    Give it to the ``TorchState``, call ``record_batch`` after every batch, and ``set_epoch`` at the END of an epoch.
    The other ranks hear of what is recorded at each commit and sync of the state; batches may differ between ranks.

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
    _taken: int  # what this rank has recorded of its part
    _single: set[int]

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self._begin(0, (0, ()))

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch with another shuffle: nothing is processed."""
        self._begin(epoch, (0, ()))

    def record_batch(self, batch_idx: int, batch_size: int) -> None:  # noqa: ARG002 - Horovod's signature
        """Record this rank's next ``batch_size`` samples as processed, but for those recorded already."""
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
        """Return what ``load_state_dict`` needs to go on from what all ranks agree on, and what this one has recorded.

        Right after a commit of the state that is what all ranks have recorded.
        """
        return _named(self.epoch, self._deal.after(self._known(self._agreed)))

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from there, with the ranks that there are now; also from a state of Horovod's sampler."""
        processed = state_dict.get("processed_num", 0), state_dict.get("processed_indices", ())
        self._begin(state_dict["epoch"], processed)

    def reset(self) -> None:
        """Deal what remains out to the ranks that there are now: what all agree on, or this one where it is alone."""
        if self.num_replicas == 1:
            self._agreed = self._known(self._agreed)
        self.go_back(self.progress())

    @property
    def processed_num(self) -> int:
        """How many of the order's first samples are processed, as this rank knows."""
        return int(self.state_dict()["processed_num"])

    @property
    def processed_indices(self) -> set[int]:
        """What other samples are processed, as this rank knows."""
        return set(self.state_dict()["processed_indices"])

    # What the state's handler asks.

    def recorded(self) -> npt.NDArray[np.int64]:
        """Return what the other ranks have to hear: epoch, samples taken, how many single ones, and those."""
        single = sorted(self._single)
        return np.array([self.epoch, self._taken, len(single), *single], np.int64)

    def hear(self, everyone: npt.NDArray[np.int64]) -> None:
        """Take note of what the ranks have recorded: their ``recorded``, one after the other."""
        taken, single = list(self._agreed.taken), set(self._agreed.single)
        numbers = iter(everyone.tolist())
        for rank in range(self.num_replicas):
            epoch, count, more = itertools.islice(numbers, 3)
            singles = list(itertools.islice(numbers, more))
            if epoch == self.epoch:
                taken[rank] = count
                single.update(singles)
        self._agreed = Progress(tuple(taken), frozenset(single))

    def progress(self) -> tuple[Deal, Progress, frozenset[int]]:
        """Return where the ranks are, and what this one has recorded since, as values that do not change any more."""
        return self._deal, self._agreed, frozenset(self._since())

    def go_back(self, progress: tuple[Deal, Progress, frozenset[int]]) -> None:
        """Deal what remained there out to the ranks that there are now, whatever was dealt since."""
        deal, agreed, since = progress
        self._begin(deal.epoch, deal.after(agreed))
        self._single = set(since)

    def told(self) -> tuple[dict[str, Any], set[int]]:
        """Return what is agreed, and what this rank has recorded since."""
        return self.agreed(self.progress()), self._since()

    def agreed(self, progress: tuple[Deal, Progress, frozenset[int]]) -> dict[str, Any]:
        """Return what all ranks knew to be processed then, as ``load_state_dict`` takes it."""
        deal, agreed, _ = progress
        return _named(deal.epoch, deal.after(agreed))

    def merged(self, everyone: Sequence[tuple[dict[str, Any], set[int]]], root: int) -> dict[str, Any]:
        """Return what the root has agreed on with what all have recorded since, each in the root's epoch."""
        state, _ = everyone[root]
        since = [more for theirs, more in everyone if theirs["epoch"] == state["epoch"]]
        return {**state, "processed_indices": set(state["processed_indices"]).union(*since)}

    def _since(self) -> set[int]:
        taken = self.indices[self._agreed.taken[self.rank] : self._taken]
        return {*taken, *(self._single - self._agreed.single)}

    def _known(self, agreed: Progress) -> Progress:
        """Return what is agreed, and what this rank has recorded since."""
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


def _named(epoch: int, processed: tuple[int, frozenset[int]]) -> dict[str, Any]:
    return {"epoch": epoch, "processed_num": processed[0], "processed_indices": set(processed[1])}
