"""Ranks that have a host each: their small sums need no answer of rank 0, and give the same results."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hvdtest.launch import RankPool, horovod_variables

pytestmark = pytest.mark.mp


def on_its_own_host(rank: int, size: int, port: int) -> dict[str, str]:
    return horovod_variables(rank, size, port) | {"HVD_HOST": f"h{rank}"}


@pytest.fixture(params=[2, 3])
def hosts(request: pytest.FixtureRequest) -> Iterator[RankPool]:
    pool = RankPool(request.param, variables=on_its_own_host)
    yield pool
    pool.close()


def sums(rounds: int) -> list[str]:
    """Blocking and asynchronous calls, small and large, several names, in an order that some ranks have alone."""
    import torch

    import hvd_kernel.torch as hvd

    hvd.init()
    me, n = hvd.rank(), hvd.size()
    assert hvd.cross_size() == n

    def given(rank: int, count: int, turn: int) -> torch.Tensor:
        return (torch.arange(count, dtype=torch.float64) * 7 + 13 * rank + turn) % 251

    wrong = []
    for turn in range(rounds):
        for count in (1, 512, 8192, 20_000):
            want = sum((given(rank, count, turn) for rank in range(n)), torch.zeros(count, dtype=torch.float64))
            x = given(me, count, turn)
            if (turn + count) % 5 == me:  # this rank begins it, and the others wait at once
                got = hvd.synchronize(hvd.allreduce_async(x, name=f"s{count}", op=hvd.Sum))
            elif turn % 2:
                got = hvd.allreduce_(x, name=f"s{count}", op=hvd.Sum)
            else:
                got = hvd.allreduce(x, name=f"s{count}", op=hvd.Sum)
            if not torch.equal(got, want):
                wrong.append(f"turn {turn}, {count} numbers: {got[:3]} instead of {want[:3]}")
        if turn % 10 == 9:
            hvd.barrier()
    hvd.shutdown()
    return wrong


def test_sums_are_exact_for_every_kind_of_call(hosts: RankPool) -> None:
    for _ in range(2):  # and again after a shutdown
        assert hosts.run(sums, 30) == [[]] * hosts.np
