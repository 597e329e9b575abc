"""A hundred operations one after the other on any number of ranks: every value by a formula of rank, size and step.

Collectives, joins and process sets come in an order drawn from a seed, the same on every rank; errors stand in the middle of
them, and the operation after each of them is right again.

Terms.
  step  the number of an operation, from 0
  team  the ranks that take part in it, ascending: all of them, or a process set's
"""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hvdtest.exact import raises
from hvdtest.launch import RankPool
from hvdtest.pools import layouts

pytestmark = pytest.mark.mp

STEPS = 100
DTYPES = ("int32", "int64", "float32", "float64")
FRONTENDS = ("hvd_kernel.numpy", "hvd_kernel.torch")
layout = layouts(
    (3, "tcp"),
    nightly=((1, "auto"), (2, "shm"), (2, "tcp"), (3, "shm"), (4, "shm"), (4, "tcp"), (5, "shm"), (5, "tcp")),
)


class Ranks:
    """One rank's view: the frontend under test, whose arrays are inputs and results."""

    def __init__(self, frontend: str) -> None:
        self.hvd = importlib.import_module(frontend)
        self.torch = importlib.import_module("torch") if frontend.endswith("torch") else None
        self.hvd.shutdown()
        self.hvd.init(process_sets="dynamic")
        self.rank, self.size = self.hvd.rank(), self.hvd.size()
        head, tail, even = range(self.size - 1), range(1, self.size), range(0, self.size, 2)
        wanted = dict.fromkeys(tuple(each) for each in (head, tail, even) if 0 < len(each) < self.size)
        self.sets = [self.hvd.add_process_set(list(each)) for each in wanted]

    def array(self, value: np.ndarray) -> Any:
        value = np.ascontiguousarray(value).reshape(value.shape)
        return value if self.torch is None else self.torch.from_numpy(value)

    def check(self, got: Any, want: np.ndarray) -> None:
        assert type(got) is type(self.array(want)), type(got)
        found = np.asarray(got)
        assert (found.dtype, found.shape) == (want.dtype, want.shape), (
            found.dtype,
            found.shape,
            want.dtype,
            want.shape,
        )
        np.testing.assert_array_equal(found, want)


def rows(step: int, rank: int, count: int = 3) -> np.ndarray:
    """Return a rank's rows in a step: small integers, exact in every data type also when multiplied."""
    numbers = (np.arange(count * 2) + step + 3 * rank) % 4 + 1
    return numbers.reshape(count, 2).astype(DTYPES[step % len(DTYPES)])


def summed(parts: list[np.ndarray]) -> np.ndarray:
    return np.sum(parts, axis=0, dtype=parts[0].dtype)


def reduced(on: Ranks, step: int, team: list[int], **how: Any) -> None:
    parts, mine = [rows(step, rank) for rank in team], on.array(rows(step, on.rank))
    formulas = {"Sum": summed, "Min": lambda p: np.min(p, axis=0), "Max": lambda p: np.max(p, axis=0)}
    formulas["Product"] = lambda p: np.prod(p, axis=0, dtype=p[0].dtype)
    op = list(formulas)[step % len(formulas)]
    on.check(on.hvd.allreduce(mine, name="reduced", op=getattr(on.hvd, op), **how), formulas[op](parts))


def scaled(on: Ranks, step: int, team: list[int], **how: Any) -> None:
    """A mean of equal numbers, twice as large before and four times as large afterwards, is exact."""
    mine = on.array(np.full((step % 5, 2), step, np.float64))
    got = on.hvd.allreduce(mine, name="scaled", op=on.hvd.Average, prescale_factor=2.0, postscale_factor=4.0, **how)
    on.check(got, np.full((step % 5, 2), step * 8, np.float64))


def grouped(on: Ranks, step: int, team: list[int], **how: Any) -> None:
    counts = [1 + (step + each) % 3 for each in range(1 + step % 3)]
    mine = [on.array(rows(step, on.rank, count)) for count in counts]
    got = on.hvd.grouped_allreduce(mine, name=f"grouped{len(counts)}", op=on.hvd.Sum, **how)
    for each, count in zip(got, counts, strict=True):
        on.check(each, summed([rows(step, rank, count) for rank in team]))


def gathered(on: Ranks, step: int, team: list[int], **how: Any) -> None:
    """Ranks have different numbers of rows, some none."""
    got = on.hvd.allgather(on.array(rows(step, on.rank, (on.rank + step) % 3)), name="gathered", **how)
    on.check(got, np.concatenate([rows(step, rank, (rank + step) % 3) for rank in team]))


def broadcast(on: Ranks, step: int, team: list[int], **how: Any) -> None:
    root = team[step % len(team)]
    on.check(on.hvd.broadcast(on.array(rows(step, on.rank)), root, name="broadcast", **how), rows(step, root))


def exchanged(on: Ranks, step: int, team: list[int], **how: Any) -> None:
    """Each rank sends every other one its own number of rows."""

    def splits(rank: int) -> list[int]:
        return [(rank + 2 * to + step) % 3 for to in team]

    def sent(rank: int) -> list[np.ndarray]:
        ends = np.cumsum(splits(rank))
        return np.split(rows(step, rank, int(ends[-1])), ends[:-1])

    mine, counts = rows(step, on.rank, sum(splits(on.rank))), np.array(splits(on.rank), np.int32)
    got, received = on.hvd.alltoall(on.array(mine), on.array(counts), name="exchanged", **how)
    place = team.index(on.rank)
    on.check(got, np.concatenate([sent(rank)[place] for rank in team]))
    on.check(received, np.array([splits(rank)[place] for rank in team], np.int32))


def scattered(on: Ranks, step: int, team: list[int], **how: Any) -> None:
    """Return the scattered rows: the first ranks get one row more if the number does not divide."""
    count = len(team) + step % (len(team) + 1)
    got = on.hvd.reducescatter(on.array(rows(step, on.rank, count)), name="scattered", op=on.hvd.Sum, **how)
    shares = np.array_split(summed([rows(step, rank, count) for rank in team]), len(team))
    on.check(got, shares[team.index(on.rank)])


def objects(on: Ranks, step: int, team: list[int], **how: Any) -> None:
    root = team[step % len(team)]
    assert on.hvd.broadcast_object({"from": on.rank, "step": step}, root, **how) == {"from": root, "step": step}
    assert on.hvd.allgather_object("x" * (on.rank + step % 2), **how) == ["x" * (rank + step % 2) for rank in team]


def barrier(on: Ranks, step: int, team: list[int], **how: Any) -> None:
    on.hvd.barrier(**how)


def joined(on: Ranks, step: int, team: list[int]) -> None:
    """Ranks have 1 to size batches, turn by turn; the one with the most joins last."""

    def batches(rank: int) -> int:
        return (rank + step) % on.size + 1

    for batch in range(batches(on.rank)):
        got = on.hvd.allreduce(on.array(rows(step, on.rank)), name=f"batch{batch}", op=on.hvd.Sum)
        on.check(got, summed([rows(step, rank) for rank in team if batches(rank) > batch]))
    assert on.hvd.join() == max(team, key=batches)


def another_set(on: Ranks, step: int, team: list[int]) -> None:
    """Remove a set, and add it again."""
    if on.sets:
        old = on.sets.pop(0)
        ranks = old.ranks
        assert on.hvd.remove_process_set(old)
        on.sets.append(on.hvd.add_process_set(ranks))
        assert (on.sets[-1].ranks, old.process_set_id) == (ranks, None)


def mismatch(on: Ranks, step: int, team: list[int]) -> None:
    """One rank sends something else, and every rank gets the error; the same name works right after."""
    from hvd_kernel.errors import Mismatch

    odd, mine = on.rank == step % on.size, rows(step, on.rank)
    wrong = [mine[:-1], mine.astype("uint8")][step % 2] if odd else mine
    if on.size > 1:
        raises(Mismatch, "Mismatched", on.hvd.allreduce, on.array(wrong), name="reduced", op=on.hvd.Sum)
    else:
        raises(ValueError, "op=77 does not exist", on.hvd.allreduce, on.array(mine), name="reduced", op=77)
    reduced(on, step, team)


IN_ANY_TEAM = (reduced, scaled, grouped, gathered, broadcast, exchanged, scattered, objects, barrier)
OF_ALL = (joined, another_set)
ERRORS_AT = (STEPS // 4, STEPS // 2, STEPS - 2)


def drawn(seed: int) -> list[tuple[Callable[..., None], float]]:
    """The operation of each step, and a number from 0 to 1 that chooses its team."""
    source = random.Random(seed)
    draws = [(source.choice(IN_ANY_TEAM + OF_ALL), source.random()) for _ in range(STEPS)]
    return [(mismatch if step in ERRORS_AT else each, choice) for step, (each, choice) in enumerate(draws)]


def operations(frontend: str, seed: int) -> int:
    on, done = Ranks(frontend), 0
    everybody = list(range(on.size))
    for step, (operation, choice) in enumerate(drawn(seed)):
        teams = [None, *on.sets] if operation in IN_ANY_TEAM else [None]
        team = teams[int(choice * len(teams))]
        try:
            if team is None:
                operation(on, step, everybody)
            elif on.rank in team.ranks:
                operation(on, step, team.ranks, process_set=team)
        except BaseException as error:
            error.add_note(f"step {step}: {operation.__name__} in {team or 'all'}, {frontend}, seed {seed}")
            raise
        done += 1
    return done


@pytest.mark.parametrize("seed", [1, *(pytest.param(each, marks=pytest.mark.nightly) for each in range(2, 8))])
@pytest.mark.parametrize("frontend", FRONTENDS)
def test_a_hundred_operations(ranks: RankPool, frontend: str, seed: int) -> None:
    assert ranks.run(operations, frontend, seed) == [STEPS] * ranks.np


def test_the_daily_seed_has_every_operation() -> None:
    assert {operation for operation, _ in drawn(1)} == {*IN_ANY_TEAM, *OF_ALL, mismatch}
