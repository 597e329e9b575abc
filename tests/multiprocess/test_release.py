"""A rank that raises, leaves, exits or is killed: nobody waits for it for ever, and everybody hears who it was."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from hvdtest.exact import raises
from hvdtest.launch import RankPool
from hvdtest.pools import layouts, pool_of, start

pytestmark = pytest.mark.mp

LAYOUTS = [(2, "shm"), (2, "tcp"), (4, "shm"), (4, "tcp")]
RELEASED_WITHIN_S = 20.0  # it takes milliseconds; the rest is for a machine that does other things


layout = layouts(*LAYOUTS)


@pytest.fixture
def alive(layout: tuple[int, str]) -> RankPool:
    """Ranks that are all there after the test."""
    return pool_of(layout)


def waiting() -> list[object]:
    """Wait in each kind of collective for a rank that does not come; return error and seconds of the first, then the rest."""
    import torch

    import hvd_kernel.torch as hvd

    said = []
    handles = [hvd.allreduce_async(torch.ones(10), name="pending")]
    began = time.monotonic()
    calls = [
        lambda: hvd.allreduce(torch.ones(100), name="first"),
        lambda: hvd.synchronize(handles[0]),
        lambda: hvd.allreduce_(torch.ones(1 << 20), name="large"),
        lambda: hvd.broadcast(torch.ones(3), 0, name="b"),
        lambda: hvd.allgather(torch.ones(3), name="g"),
        hvd.barrier,
        lambda: hvd.broadcast_object([1], 0),
    ]
    for call in calls:
        try:
            call()
        except hvd.HorovodInternalError as error:
            said.append([type(error).__name__, error.rank, str(error)])
        else:
            raise AssertionError("the collective succeeded without the other rank")
    return [time.monotonic() - began, said]


def raising(guilty: int) -> object:
    import hvd_kernel.torch as hvd
    from hvd_kernel import _session

    if hvd.rank() != guilty:
        return waiting()
    time.sleep(0.3)  # so that the others are waiting
    _session.engine().abort("ValueError: my bug 7")
    return None


def again() -> float:
    import torch

    import hvd_kernel.torch as hvd

    hvd.shutdown()
    hvd.init()
    return hvd.allreduce(torch.ones(1), name="again", op=hvd.Sum).item()


@pytest.mark.parametrize("guilty", [0, 1])
def test_abort(alive: RankPool, guilty: int) -> None:
    found = alive.run(raising, guilty)
    for rank, answer in enumerate(found):
        if rank != guilty:
            seconds, said = answer
            assert seconds < RELEASED_WITHIN_S
            assert {(kind, who) for kind, who, _ in said} == {("RankFailed", guilty)}
            assert all("my bug 7" in text and f"ank {guilty}" in text for _, _, text in said)
    assert alive.run(again) == [float(alive.np)] * alive.np


def leaving(guilty: int, how: str) -> object:
    import hvd_kernel.torch as hvd

    if hvd.rank() != guilty:
        return waiting()
    time.sleep(0.3)
    if how == "shutdown":
        hvd.shutdown()
        return None
    if how == "exit":
        os._exit(3)
    os.kill(os.getpid(), signal.SIGKILL)
    return None


@pytest.mark.parametrize("guilty", [0, 1])
@pytest.mark.parametrize(("layout", "how", "status"), [((2, "tcp"), "exit", 3), ((4, "shm"), "kill", -9)], ids=str)
def test_death(layout: tuple[int, str], guilty: int, how: str, status: int) -> None:
    with RankPool(*layout) as mortal:
        mortal.run(start)
        found = mortal.run(leaving, guilty, how, gone={guilty: status})
    for rank, answer in enumerate(found):
        if rank != guilty:
            seconds, said = answer
            assert seconds < RELEASED_WITHIN_S
            assert {(kind, who) for kind, who, _ in said} == {("RankDied", guilty)}
            assert all(f"ank {guilty}" in text for _, _, text in said)


@pytest.mark.parametrize("guilty", [0, 1])
def test_shutdown_of_one(alive: RankPool, guilty: int) -> None:
    found = alive.run(leaving, guilty, "shutdown")
    for rank, answer in enumerate(found):
        if rank != guilty:
            seconds, said = answer
            assert seconds < RELEASED_WITHIN_S
            assert all("Horovod has been shut down" in text and f"ank {guilty}" in text for _, _, text in said)
    assert alive.run(again) == [float(alive.np)] * alive.np


def orderly() -> str:
    """The last collective's result is good although the fastest rank has left already."""
    import torch

    import hvd_kernel.torch as hvd
    from hvd_kernel.errors import NotInitialized

    assert issubclass(NotInitialized, ValueError)
    for _ in range(20):
        handles = [hvd.allreduce_async(torch.ones(1000), name=f"n{i}", op=hvd.Sum) for i in range(5)]
        for handle in handles:
            assert torch.equal(hvd.synchronize(handle), torch.full((1000,), float(hvd.size())))
        hvd.shutdown()
        raises(NotInitialized, "Horovod has not been initialized; use hvd.init().", hvd.rank)
        raises(
            hvd.HorovodInternalError, "Horovod has not been initialized; use hvd.init().", hvd.allreduce, torch.ones(1)
        )
        assert hvd.synchronize(handles[0]) is None
        assert not hvd.is_initialized()
        hvd.shutdown()
        hvd.init()
        hvd.init()
    return "done"


def test_shutdown_of_all(alive: RankPool) -> None:
    assert alive.run(orderly) == ["done"] * alive.np


def interrupted(at_once: bool) -> str:
    """Ctrl-C while waiting raises KeyboardInterrupt at once; the memory stays the core's until the operation ends."""
    import gc
    import threading
    import weakref

    import torch

    import hvd_kernel.torch as hvd
    from hvd_kernel import _session, ops

    def begun() -> bool:
        """The core has it; a moment later the caller knows the handle too."""
        pending = any(one["name"] == "allreduce.interrupted" for one in _session.engine().pending())
        return pending if at_once else bool(ops._live)

    def press() -> None:
        while not begun():
            time.sleep(0)
        os.kill(os.getpid(), signal.SIGINT)

    hvd.barrier()
    if hvd.rank() == 0:
        tensor = torch.full((1 << 20,), 3.0)
        held = weakref.ref(tensor)
        threading.Thread(target=press).start()
        began = time.monotonic()
        raises(KeyboardInterrupt, "", hvd.allreduce_, tensor, name="interrupted")
        assert time.monotonic() - began < RELEASED_WITHIN_S
        del tensor
        gc.collect()
        assert held() is not None, "the core would write into memory that is somebody else's"
        handles = list(ops._live)
        assert len(handles) == 1 or at_once
        hvd.broadcast_object("go on", 0)
        done = [hvd.synchronize(handle) for handle in handles]
        hvd.barrier()
        assert torch.equal((done or [held()])[0], torch.full((1 << 20,), 3.0))
    else:
        hvd.broadcast_object("go on", 0)
        hvd.allreduce_(torch.full((1 << 20,), 3.0), name="interrupted")
        hvd.barrier()
    assert not ops._live
    return str(_session.engine().aborted())


@pytest.mark.parametrize("at_once", [True, False])
def test_interrupt(alive: RankPool, at_once: bool) -> None:
    assert alive.run(interrupted, at_once) == ["None"] * alive.np


def nameless() -> bool:
    """The shared memory has no name that could stay behind."""
    maps = Path("/proc/self/maps").read_text()
    assert "/dev/shm" not in maps
    return "/memfd:" in maps


def test_shared_memory_has_no_name(alive: RankPool, layout: tuple[int, str]) -> None:
    assert alive.run(nameless) == [layout[1] == "shm"] * alive.np


def forked() -> int:
    """A child made by fork (a DataLoader's worker) has no engine, and ends without waiting for one."""
    import torch

    import hvd_kernel.torch as hvd

    child = os.fork()
    if child == 0:
        sane = not hvd.is_initialized()
        hvd.shutdown()
        os._exit(0 if sane else 1)
    status = os.waitpid(child, 0)[1]
    loader = torch.utils.data.DataLoader(range(8), num_workers=2)
    assert [int(x) for x in loader] == list(range(8))
    hvd.barrier()
    return status


def test_fork(alive: RankPool) -> None:
    assert alive.run(forked) == [0] * alive.np
