"""Two hosts and the line between them: cut, silent in one direction, losing frames, slow (rows F1 to F4).

The clock of a silent host is the kernel's: the first test looks at its setting, on the one connection that ends the others.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hvdtest.cluster import until
from hvdtest.hosts import HostPool, Hosts, why_not
from hvdtest.wire import Wire

pytestmark = [pytest.mark.mp, pytest.mark.skipif(bool(why_not()), reason=why_not() or "none")]

SILENT_S = 6  # longer than a busy machine keeps this process, which carries every frame, from its core
SETTINGS = {"HVD_SECRET_KEY": "0123456789abcdef0123456789abcdef", "HVD_START_TIMEOUT": "60"}


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    with Hosts(2) as both:
        yield both


@pytest.fixture
def wire(hosts: Hosts) -> Iterator[Wire]:
    with Wire(hosts) as between:
        yield between


@pytest.fixture(scope="module")
def one_each(hosts: Hosts) -> Iterator[HostPool]:
    with HostPool(hosts, [0, 1], **SETTINGS) as pool:
        yield pool


def started(silent_s: int) -> None:
    import os

    import hvd_kernel.torch as hvd

    os.environ["HVD_NET_TIMEOUT"] = str(silent_s)
    hvd.shutdown()
    hvd.init()
    hvd.barrier()


def patience() -> list[int]:
    """How long each connection to another host may be silent, in milliseconds."""
    import os
    import socket

    found = []
    for fd in Path("/proc/self/fd").iterdir():
        if not fd.is_socket():
            continue
        with socket.socket(fileno=os.dup(int(fd.name))) as one:
            if one.family == socket.AF_INET and not one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                assert one.getsockname()[0] != one.getpeername()[0], "none within a host"
                assert one.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
                found.append(one.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT))
    return found


@pytest.mark.nightly
def test_silent_connection_to_another_host_times_out(one_each: HostPool) -> None:
    one_each.run(started, SILENT_S)
    for found in one_each.run(patience):
        assert found.count(SILENT_S * 1000) == 1


def sum_until_lost(folder: str) -> list[object]:
    """Sum until a failure; return the error and the named rank."""
    import torch

    import hvd_kernel.torch as hvd

    expected = float(sum(range(1, hvd.size() + 1)))
    try:
        while True:
            values = hvd.allreduce(torch.full((1 << 18,), hvd.rank() + 1.0), name="x", op=hvd.Sum)
            assert torch.equal(values, torch.full((1 << 18,), expected))
            Path(folder, str(hvd.rank())).touch()
    except hvd.HorovodInternalError as error:
        return [type(error).__name__, error.rank, str(error)]


def cut(pool: HostPool, where: list[int], wire: Wire, silent: frozenset[int], folder: Path) -> None:
    """Cut the line in the middle of allreduces: every rank names one of the other host."""
    pool.run(started, SILENT_S)
    with ThreadPoolExecutor(1) as aside:
        running = aside.submit(pool.run, sum_until_lost, str(folder))
        until(lambda: running.done() or len(list(folder.iterdir())) == len(where), "all ranks are in the middle of it")
        wire.silent = silent
        found = running.result()
        wire.silent = frozenset()
    for rank, (kind, failing, words) in enumerate(found):
        assert kind == "RankDied", words
        assert where[failing] != where[rank], f"rank {rank}: {words}"
    said = " ".join(words for _, _, words in found)
    assert re.search(r"its host does not answer: .*HVD_NET_TIMEOUT", said), said


def test_f1_cut_link_ends_the_wait_on_both_sides(one_each: HostPool, wire: Wire, tmp_path: Path) -> None:
    cut(one_each, [0, 1], wire, frozenset({0, 1}), tmp_path)


@pytest.mark.nightly
def test_f1_cut_link_releases_the_ranks_of_both_hosts(hosts: Hosts, wire: Wire, tmp_path: Path) -> None:
    where = [0, 0, 1, 1]
    with HostPool(hosts, where, **SETTINGS) as pool:
        cut(pool, where, wire, frozenset({0, 1}), tmp_path)


@pytest.mark.parametrize("silent", [0, pytest.param(1, marks=pytest.mark.nightly)])
def test_f2_one_way_link_releases_the_ranks_of_both_hosts(
    one_each: HostPool, wire: Wire, silent: int, tmp_path: Path
) -> None:
    cut(one_each, [0, 1], wire, frozenset({silent}), tmp_path)


def sums(rounds: int, count: int) -> float:
    """Check exact sums; return their duration."""
    import time

    import torch

    import hvd_kernel.torch as hvd

    began = time.monotonic()
    given = torch.arange(count, dtype=torch.float32) % 251
    for number in range(rounds):
        values = hvd.allreduce(given * (hvd.rank() + 1), name=f"x{number}", op=hvd.Sum)
        assert torch.equal(values, given * sum(range(1, hvd.size() + 1)))
    return time.monotonic() - began


def test_f3_link_with_five_percent_loss_gives_exact_sums(one_each: HostPool, wire: Wire) -> None:
    one_each.run(started, 30)
    wire.loss = 0.05
    one_each.run(sums, 20, 1 << 16)
    wire.loss = 0.0
    assert wire.lost > 0


def test_f4_slow_link_declares_no_rank_dead(one_each: HostPool, wire: Wire) -> None:
    one_each.run(started, SILENT_S)
    wire.slow_down("1mbit")
    took = one_each.run(sums, 1, 220_000)
    wire.speed_up()
    assert max(took) > SILENT_S, "0.88 MB each way take 7 s at 1 Mbit/s: longer than a host may be silent"
