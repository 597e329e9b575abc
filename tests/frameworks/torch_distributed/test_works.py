"""Works and futures: order, timeouts, callbacks that wait, errors; a group that is destroyed and created again."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from hvdtest.exact import raises, same
from hvdtest.launch import RankPool
from hvdtest.lazy import hvd, torch
from hvdtest.pools import TORCH_VERSIONS, layouts
from hvdtest.torch_worlds import world

pytestmark = pytest.mark.mp

layout = layouts((2, "shm"), nightly=((3, "tcp"), TORCH_VERSIONS[-1]))


def futures(folder: str) -> bool:
    """Futures are completed without a wait; callbacks may start and wait for other operations."""
    rank, size = hvd.rank(), hvd.size()
    total = size * (size + 1) / 2
    with world("hvd", folder) as dist:
        tensor = torch.full((3,), rank + 1.0)
        work = dist.all_reduce(tensor, async_op=True)
        (output,) = work.get_future().wait()
        same(output, torch.full((3,), total))
        assert work.is_completed()
        assert work.is_success()
        assert work.exception() is None
        assert work.wait()

        def again(future: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
            (first,) = future.value()
            second = dist.all_reduce(first / total, async_op=True)
            return second.get_future().wait()[0]

        chained = dist.all_reduce(torch.full((2,), rank + 1.0), async_op=True).get_future().then(again)
        same(chained.wait(), torch.full((2,), float(size)))
    return True


def test_futures(ranks: RankPool, tmp_path: Path) -> None:
    assert ranks.run(futures, str(tmp_path)) == [True] * ranks.np


def backward_does_not_block(folder: str) -> bool:
    """While another rank has not called the operation, get_future() and is_completed() return."""
    with world("hvd", folder) as dist:
        tensor = torch.ones(2)
        if hvd.rank() == 0:
            work = dist.all_reduce(tensor, async_op=True)
            future = work.get_future()
            assert not future.done()
            assert not work.is_completed()
            (Path(folder) / "called").touch()
        else:
            while not (Path(folder) / "called").exists():
                pass
            future = dist.all_reduce(tensor, async_op=True).get_future()
        future.wait()
        same(tensor, torch.full((2,), float(hvd.size())))
    return True


def test_get_future_does_not_block(ranks: RankPool, tmp_path: Path) -> None:
    assert ranks.run(backward_does_not_block, str(tmp_path)) == [True] * ranks.np


def works_nobody_waits_for(folder: str) -> bool:
    """Their tensors stay alive until the core has left them."""
    with world("hvd", folder) as dist:
        for _ in range(600):
            dist.all_reduce(torch.ones(64), async_op=True)
        last = torch.ones(64)
        dist.all_reduce(last)
        same(last, torch.full((64,), float(hvd.size())))
    return True


def test_unwaited_works(ranks: RankPool, tmp_path: Path) -> None:
    assert ranks.run(works_nobody_waits_for, str(tmp_path)) == [True] * ranks.np


def late(folder: str) -> bool:
    """A wait with a timeout ends; the operation completes when the other ranks have called it."""
    from hvd_kernel.errors import HvdTimeout

    with world("hvd", folder) as dist:
        tensor, called = torch.ones(2), Path(folder) / "called"
        if hvd.rank() == 0:
            work = dist.all_reduce(tensor, async_op=True)
            raises(HvdTimeout, "", work.wait, timedelta(milliseconds=50))
            called.touch()
            assert work.wait()
        else:
            while not called.exists():
                pass
            dist.all_reduce(tensor)
        same(tensor, torch.full((2,), float(hvd.size())))
    with world("hvd", folder, timeout=timedelta(milliseconds=200)) as dist:
        group = dist.group.WORLD
        if hvd.rank() == 0:
            raises(HvdTimeout, "", dist.all_reduce, tensor)
            called.unlink()
        else:
            while called.exists():
                pass
            group.set_timeout(timedelta(seconds=60))
            dist.all_reduce(tensor)
        group.set_timeout(timedelta(seconds=60))
        dist.barrier()
    return True


def test_timeouts(ranks: RankPool, tmp_path: Path) -> None:
    assert ranks.run(late, str(tmp_path)) == [True] * ranks.np


def mismatch(folder: str) -> str:
    """Ranks that call different operations get the same error, and the group goes on."""
    from hvd_kernel.errors import Mismatch

    with world("hvd", folder) as dist:
        sizes = raises(Mismatch, "", dist.all_reduce, torch.ones(2 + hvd.rank()))
        call = dist.all_reduce if hvd.rank() == 0 else dist.broadcast
        raises(Mismatch, "", call, torch.ones(2), *([] if hvd.rank() == 0 else [0]))
        work = dist.all_reduce(torch.ones(2 + hvd.rank()), async_op=True)
        raises(RuntimeError, "", work.get_future().wait)
        assert isinstance(work.exception(), Mismatch)
        assert not work.is_success()
        raises(Mismatch, "", work.wait)
        dist.barrier()
    return str(sizes)


def test_mismatch_reaches_every_rank(ranks: RankPool, tmp_path: Path) -> None:
    messages = ranks.run(mismatch, str(tmp_path))
    assert len(set(messages)) == 1


def created_again(folder: str) -> bool:
    """Groups of one store after another, and after a new engine; an old group names the remedy."""
    from hvd_kernel.errors import HorovodInternalError
    from hvd_kernel.torch.distributed.groups import CLOSED

    for _ in range(3):
        with world("hvd", folder) as dist:
            for _ in range(5):
                tensor = torch.ones(1)
                dist.all_reduce(tensor)
            group, half = dist.group.WORLD, dist.new_group([0])
            if hvd.rank() == 0:
                dist.barrier(half)
    raises(HorovodInternalError, CLOSED.partition("{")[0], group.allreduce, [torch.ones(1)])
    with world("hvd", folder) as dist:
        dist.barrier()
        hvd.shutdown()
        hvd.init()
        tensor = torch.ones(1)
        dist.all_reduce(tensor)
        same(tensor, torch.tensor([float(hvd.size())]))
    return True


def test_destroyed_and_created_again(ranks: RankPool, tmp_path: Path) -> None:
    assert ranks.run(created_again, str(tmp_path)) == [True] * ranks.np


def late_sum(folder: str) -> None:
    """A blocking all_reduce ends after the group's timeout, and is still counted: later operations match."""
    from hvd_kernel.errors import HvdTimeout
    from hvd_kernel.torch.distributed.work import LATE

    with world("hvd", folder) as dist:
        group = dist.new_group(timeout=timedelta(seconds=0.1))
        tensor = torch.full((3,), dist.get_rank() + 1.0)
        if dist.get_rank() == 0:
            raises(HvdTimeout, LATE.format(seconds=0.1), dist.all_reduce, tensor, group=group)
        dist.barrier()
        if dist.get_rank() > 0:
            dist.all_reduce(tensor, group=group, async_op=True).wait(timedelta(seconds=60))
        dist.barrier()
        total = dist.get_world_size() * (dist.get_world_size() + 1) / 2
        same(tensor, torch.full((3,), total))
        for factor in (1.0, 2.0):
            other = torch.full((2,), factor)
            dist.all_reduce(other)
            same(other, torch.full((2,), factor * dist.get_world_size()))


def test_blocking_sum_has_the_timeout_of_its_group(ranks: RankPool, tmp_path: Path) -> None:
    ranks.run(late_sum, str(tmp_path))
