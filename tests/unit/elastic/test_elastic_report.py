"""Verdict of an elastic job: the worker named by its last line and its exit status."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hvd_kernel.launch.elastic.events import EndJob
from hvd_kernel.launch.elastic.job import outcome, report
from hvd_kernel.launch.elastic.workers import Streams, Workers
from hvd_kernel.protocol.elastic import Place

HERE: Any = SimpleNamespace(name="a")
RELEASED = "hvd_kernel.errors.RankFailed: rank 1 has failed: ValueError: bad shard"
RELEASED_BY_MXNET = "hvd_kernel.mxnet.library.HorovodInternalError: Horovod has been shut down."
OWN = "ValueError: bad shard"
Ended = tuple[int, str, int]  # exit status, the last line of its traceback, its generation


def job(*ended: Ended) -> tuple[Workers, list[bytes]]:
    """Return a job whose workers have ended with these results, those of a generation in rank order, and its output."""
    written: list[bytes] = []
    workers = Workers(Streams(written.append, written.append, prefix=False, timestamp=False, folder=None, digits=1))
    size = len(ended)
    for number, (status, last, generation) in enumerate(ended):
        rank = sum(each.place is not None and each.place.generation == generation for each in workers)
        one = workers.add(number, HERE, number)
        one.place = Place(generation, rank, size, rank, size, 0, 1, "a", "127.0.0.1", 1, "secret")
        one.write("stderr", f"Traceback (most recent call last):\n{last}\n".encode())
        one.end(status)
    workers.generation = max(generation for *_, generation in ended)
    return workers, written


@pytest.mark.parametrize(
    ("ended", "rank"),
    [
        (((1, RELEASED, 0), (1, OWN, 0)), 1),  # rank 0, which rank 1 has released, ended first: the verdict names it
        (((1, RELEASED_BY_MXNET, 0), (1, OWN, 0)), 1),
        (((1, OWN, 0), (1, OWN, 0)), 0),
        (((1, RELEASED, 0), (-15, OWN, 0)), 0),  # ended by us
        (((1, RELEASED, 0), (0, "", 0)), 0),
    ],
)
def test_the_rank_that_raised_is_blamed_if_it_exits_second(ended: tuple[Ended, ...], rank: int) -> None:
    workers, written = job(*ended)
    end = EndJob("failed", "no reset is left", 0)
    report(written.append, end, workers, quiet=False)
    assert written[-1].decode() == (
        f"hvdrun: rank {rank} failed (exit status 1); no reset is left; all ranks have ended.\n"
    )
    assert written[-2].decode().endswith(f"\n{ended[rank][1]}\n"), "its traceback is the last one"
    found = outcome(end, workers)
    assert (found.status, found.failed, found.failed_worker) == (1, rank, rank)


def test_failure_of_an_earlier_generation_is_not_named() -> None:
    workers, _ = job((1, OWN, 0), (1, RELEASED, 1))
    assert outcome(EndJob("failed", "", 1), workers).failed_worker == 1
