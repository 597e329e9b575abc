"""The elastic sampler, with ranks played one after the other: no sample is lost, none is done twice."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hvd_kernel.core import session
from hvd_kernel.errors import NotInitialized
from hvd_kernel.torch.elastic import ElasticSampler
from hvd_kernel.torch.elastic import sampler as samplers


@dataclass
class Played:
    """A fake session of the rank whose turn it is."""

    now: tuple[int, int] = (0, 1)

    def rank(self) -> int:
        return self.now[0]

    def size(self) -> int:
        return self.now[1]


@pytest.fixture(scope="module", autouse=True)
def played() -> Iterator[Played]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(samplers, "session", PLAYED)
        yield PLAYED


PLAYED = Played()


class Ranks:
    """Samplers of ranks that train together; processed samples count when the state is recorded."""

    def __init__(self, size: int, length: int, seed: int) -> None:
        self.length, self.seed = length, seed
        self.samplers: list[ElasticSampler] = []
        self.done: Counter[int] = Counter()  # what the parameters have seen
        self.pads = 0
        self.places: list[int] = []  # of each rank how many of its samples it has done since the deal
        for rank in range(size):
            PLAYED.now = rank, size
            self.samplers.append(self.new())
        self._dealt()
        self.commit()

    def new(self) -> ElasticSampler:
        return ElasticSampler(range(self.length), seed=self.seed)

    def each(self, call: Callable[[ElasticSampler], Any]) -> list[Any]:
        results = []
        for rank, sampler in enumerate(self.samplers):
            PLAYED.now = rank, len(self.samplers)
            results.append(call(sampler))
        return results

    def batch(self, rank: int, size: int, one_by_one: bool) -> None:
        """Process a batch on one rank; batches of ranks may differ in number and size."""
        sampler, place = self.samplers[rank], self.places[rank]
        samples = sampler.indices[place : place + size]
        self.done.update(samples)
        self.places[rank] += len(samples)
        PLAYED.now = rank, len(self.samplers)
        if one_by_one:
            sampler.record_indices(samples)
        else:
            sampler.record_batch(0, size)

    def agree(self) -> None:
        told = np.concatenate(self.each(ElasticSampler.recorded))
        self.each(lambda sampler: sampler.update_agreed(told))

    def commit(self) -> None:
        self.agree()
        self.kept = self.each(ElasticSampler.progress), self.done.copy()

    def fail(self, survivors: list[int], newcomers: int) -> None:
        """Kill some ranks; the others restore the commit, and all load the first one's state."""
        places, self.done = self.kept[0], self.kept[1].copy()
        self._meet(survivors, newcomers, lambda old, sampler: sampler.go_back(places[old]))

    def leave(self, survivors: list[int], newcomers: int) -> None:
        """Change the ranks as planned: processed samples remain processed."""
        self.agree()
        self._meet(survivors, newcomers, lambda _, sampler: sampler.reset())

    def _meet(self, survivors: list[int], newcomers: int, go_on: Callable[[int, ElasticSampler], None]) -> None:
        old = [self.samplers[rank] for rank in survivors]
        self.samplers = old
        size = len(old) + newcomers
        for rank, (number, sampler) in enumerate(zip(survivors, old, strict=True)):
            PLAYED.now = rank, size
            go_on(number, sampler)
            sampler.reset()
        for rank in range(len(old), size):
            PLAYED.now = rank, size
            self.samplers.append(self.new())
        if newcomers:
            states = self.each(ElasticSampler.agreed_and_since)
            self.each(lambda sampler: sampler.load_state_dict(sampler.merged(states, 0)))
        self._dealt()
        self.commit()

    def _dealt(self) -> None:
        first = self.samplers[0]
        assert all(sampler._deal == first._deal for sampler in self.samplers), "all ranks deal alike"
        assert sum(len(sampler) for sampler in self.samplers) == first.total_size
        self.places = [0] * len(self.samplers)
        self.pads += first.total_size - len(first.remaining_indices)

    def finish(self) -> None:
        for rank, sampler in enumerate(self.samplers):
            self.batch(rank, len(sampler), one_by_one=False)
        self.agree()
        assert set(self.done) == set(range(self.length)), "every sample of the dataset"
        assert sum(self.done.values()) - self.length <= self.pads, "each once, but for what fills up"
        assert self.each(ElasticSampler.state_dict) == [
            {"epoch": 0, "processed_num": self.length, "processed_indices": set()}
        ] * len(self.samplers)


ranks = st.integers(0, 4)
events = st.lists(
    st.one_of(
        st.tuples(st.just("batch"), ranks, st.integers(0, 9), st.booleans()),
        st.tuples(st.just("commit")),
        st.tuples(st.sampled_from(["fail", "leave"]), st.sets(ranks, min_size=1), st.integers(0, 2)),
    ),
    max_size=30,
)


@given(st.integers(1, 5), st.integers(1, 60), st.integers(0, 3), events)
def test_no_sample_is_lost_or_done_twice(size: int, length: int, seed: int, schedule: list[tuple[Any, ...]]) -> None:
    there = Ranks(size, length, seed)
    for what, *details in schedule:
        now = len(there.samplers)
        if what == "batch":
            there.batch(details[0] % now, details[1], details[2])
        elif what == "commit":
            there.commit()
        else:
            survivors = sorted({rank % now for rank in details[0]})
            getattr(there, what)(survivors, details[1])
    there.finish()


def at(rank: int, size: int) -> None:
    PLAYED.now = rank, size


def dealt(size: int, **kwargs: Any) -> list[list[int]]:
    parts = []
    for rank in range(size):
        at(rank, size)
        sampler = ElasticSampler(range(10), **kwargs)
        assert len(sampler) == len(list(sampler))
        parts.append(list(sampler))
    return parts


def test_order_equals_horovods() -> None:
    order = list(range(10))
    random.Random(7).shuffle(order)
    assert dealt(1, seed=7) == [order]
    assert dealt(4, seed=7) == [[*order, *order[:2]][rank::4] for rank in range(4)]
    assert dealt(2, shuffle=False) == [[0, 2, 4, 6, 8], [1, 3, 5, 7, 9]]


def test_epoch_continues_with_more_ranks() -> None:
    at(1, 2)
    sampler = ElasticSampler(range(12), shuffle=False)
    assert [sampler.get_indices(0, 2), sampler.get_indices(2, 2)] == [[1, 3], [9, 11]]
    sampler.record_batch(0, 2)
    assert sampler.state_dict() == {"epoch": 0, "processed_num": 0, "processed_indices": {1, 3}}, "rank 0 may differ"
    sampler.update_agreed(np.array([0, 2, 0, 0, 2, 0]))
    assert sampler.state_dict() == {"epoch": 0, "processed_num": 4, "processed_indices": set()}
    assert len(sampler) == 6, "dealt out anew only by a reset"
    at(2, 3)
    sampler.reset()
    assert list(sampler) == [6, 9, 0], "eight for three ranks: one that is done is dealt again"
    assert sampler.remaining_indices == list(range(4, 12))
    sampler.set_epoch(1)
    assert sampler.state_dict() == {"epoch": 1, "processed_num": 0, "processed_indices": set()}
    assert sorted(sampler.remaining_indices) == list(range(12))


def test_one_rank_processed_an_extra_batch() -> None:
    """Horovod assumes equal batch counts on all ranks: it would lose two samples of rank 1, or repeat two of rank 0."""
    at(0, 2)
    sampler = ElasticSampler(range(12), shuffle=False)
    sampler.update_agreed(np.array([0, 4, 0, 0, 2, 0]))
    assert sampler.state_dict() == {"epoch": 0, "processed_num": 5, "processed_indices": {6}}
    sampler.reset()
    assert sampler.remaining_indices == [5, 7, 8, 9, 10, 11]


def test_last_batch_may_be_smaller_than_recorded() -> None:
    at(0, 1)
    sampler = ElasticSampler(range(10), shuffle=False)
    for batch in range(3):
        sampler.record_batch(batch, 4)
    assert sampler.state_dict()["processed_num"] == 10


def test_batches_and_single_samples_mix() -> None:
    at(0, 2)
    sampler = ElasticSampler(range(12), shuffle=False)
    sampler.record_batch(0, 1)
    sampler.record_indices([7, torch.tensor(9)])
    sampler.record_batch(1, 1)
    assert (sampler.processed_num, sampler.processed_indices) == (1, {2, 7, 9})
    other = ElasticSampler(range(12), shuffle=False)
    other.load_state_dict(sampler.state_dict())
    assert other.remaining_indices == [1, 3, 4, 5, 6, 8, 10, 11]


def test_more_ranks_than_samples_are_left() -> None:
    at(4, 5)
    sampler = ElasticSampler(range(2), shuffle=False)
    assert list(sampler) == [0]
    sampler.update_agreed(np.array([0, 1, 0] * 5))
    sampler.reset()
    assert (len(sampler), list(sampler)) == (0, [])


def test_state_dict_of_horovod_is_loaded() -> None:
    at(0, 1)
    sampler = ElasticSampler(range(6), shuffle=False)
    sampler.load_state_dict({"epoch": 3, "processed_num": 2})
    assert (sampler.epoch, list(sampler)) == (3, [2, 3, 4, 5])
    sampler.load_state_dict({"epoch": 1, "processed_indices": [0, 1, 4]})  # of its older releases
    assert (sampler.epoch, list(sampler)) == (1, [2, 3, 5])


def test_a_sampler_needs_init(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samplers, "session", session)
    session.shutdown()
    with pytest.raises(NotInitialized):
        ElasticSampler(range(2))
