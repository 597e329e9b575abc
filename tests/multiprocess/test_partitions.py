"""Two hosts and the line between them: cut, silent in one direction, losing frames, slow (rows F1 to F4)."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hvdtest.cluster import until
from hvdtest.hosts import HostPool, Hosts, why_not
from hvdtest.wire import Wire

pytestmark = [pytest.mark.mp, pytest.mark.skipif(bool(why_not()), reason=why_not() or "none")]

SILENT_S = 6  # longer than a busy machine keeps this process, which carries every frame, from its core
SETTINGS = {"HVD_SECRET_KEY": "0123456789abcdef0123456789abcdef", "HVD_NET_TIMEOUT": str(SILENT_S)}
SETTINGS |= {"HVD_START_TIMEOUT": "60"}
NAMED_WITHIN_S = SILENT_S + 20.0  # the rest is for a machine that does other things


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    with Hosts(2) as both:
        yield both


@pytest.fixture
def wire(hosts: Hosts) -> Iterator[Wire]:
    with Wire(hosts) as between:
        yield between


def sum_until_lost(folder: str) -> list[object]:
    """Sum for ever; give back the error, who is named, and when."""
    import torch

    import hvd_kernel.torch as hvd

    hvd.init()
    expected = float(sum(range(1, hvd.size() + 1)))
    try:
        while True:
            values = hvd.allreduce(torch.full((1 << 18,), hvd.rank() + 1.0), name="x", op=hvd.Sum)
            assert torch.equal(values, torch.full((1 << 18,), expected))
            Path(folder, str(hvd.rank())).touch()
    except hvd.HorovodInternalError as error:
        return [type(error).__name__, error.rank, str(error), time.monotonic()]


def cut(hosts: Hosts, wire: Wire, where: list[int], silent: frozenset[int], folder: Path) -> None:
    """Cut the line in the middle of allreduces: every rank names one of the other host, in time."""
    with HostPool(hosts, where, **SETTINGS) as pool, ThreadPoolExecutor(1) as aside:
        running = aside.submit(pool.run, sum_until_lost, str(folder))
        until(lambda: running.done() or len(list(folder.iterdir())) == len(where), "all ranks are in the middle of it")
        began = time.monotonic()
        wire.silent = silent
        found = running.result(90)
        wire.silent = frozenset()
    for rank, (kind, guilty, words, seen) in enumerate(found):
        assert kind == "RankDied", words
        assert where[guilty] != where[rank], f"rank {rank}: {words}"
        assert began < seen < began + NAMED_WITHIN_S
    said = " ".join(words for _, _, words, _ in found)
    assert re.search(r"its host does not answer: .*HVD_NET_TIMEOUT", said), said


@pytest.mark.parametrize("where", [[0, 1], [0, 0, 1, 1]], ids=["1+1", "2+2"])
def test_f1_a_line_that_is_cut_ends_the_wait_on_both_sides(
    hosts: Hosts, wire: Wire, where: list[int], tmp_path: Path
) -> None:
    cut(hosts, wire, where, frozenset({0, 1}), tmp_path)


@pytest.mark.parametrize("silent", [0, 1])
def test_f2_a_line_that_carries_one_way_only_ends_the_wait_on_both_sides(
    hosts: Hosts, wire: Wire, silent: int, tmp_path: Path
) -> None:
    cut(hosts, wire, [0, 1], frozenset({silent}), tmp_path)


def started() -> None:
    import hvd_kernel.torch as hvd

    hvd.init()
    hvd.barrier()


def sums(rounds: int, count: int) -> float:
    """Exact sums; give back how long they took. An error of a lost rank is told by its class."""
    import torch

    import hvd_kernel.torch as hvd

    began = time.monotonic()
    given = torch.arange(count, dtype=torch.float32) % 251
    for number in range(rounds):
        values = hvd.allreduce(given * (hvd.rank() + 1), name=f"x{number}", op=hvd.Sum)
        assert torch.equal(values, given * sum(range(1, hvd.size() + 1)))
    return time.monotonic() - began


def test_f3_a_line_that_loses_five_per_cent_is_slower_and_right(hosts: Hosts, wire: Wire) -> None:
    with HostPool(hosts, [0, 1], **SETTINGS | {"HVD_NET_TIMEOUT": "30"}) as pool:
        pool.run(started)
        wire.loss = 0.05
        pool.run(sums, 20, 1 << 16, timeout=120)
        wire.loss = 0.0
    assert wire.lost > 0


def test_f4_on_a_slow_line_nobody_is_taken_for_dead(hosts: Hosts, wire: Wire) -> None:
    with HostPool(hosts, [0, 1], **SETTINGS) as pool:
        pool.run(started)
        wire.slow_down("1mbit")
        took = pool.run(sums, 1, 300_000, timeout=120)
        wire.speed_up()
    assert max(took) > SILENT_S, "1.2 MB each way take 10 s at 1 Mbit/s: longer than a host may be silent"
