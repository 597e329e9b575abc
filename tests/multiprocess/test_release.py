"""A rank that raises, leaves, exits or is killed: no rank waits forever, and every rank gets its number."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from hvdtest.exact import raises
from hvdtest.launch import RankPool
from hvdtest.pools import layouts, start

pytestmark = pytest.mark.mp


layout = layouts((2, "shm"), (3, "tcp"), nightly=((2, "tcp"), (4, "shm"), (4, "tcp")))


def waiting(folder: str) -> list[object]:
    """Wait in each kind of collective for a missing rank; return the errors.

    That this rank waits in the first of them is told by a file of its number.
    """
    import threading

    import torch

    import hvd_kernel.torch as hvd
    from hvd_kernel.core import session

    engine = session.engine()

    def tell() -> None:
        while not any(one["name"] == "allreduce.first" for one in engine.pending()):
            time.sleep(0.001)
        Path(folder, str(hvd.rank())).touch()

    said = []
    handles = [hvd.allreduce_async(torch.ones(10), name="pending")]
    teller = threading.Thread(target=tell)
    teller.start()
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
    teller.join()
    return said


def until_the_others_wait(folder: str) -> None:
    import hvd_kernel.torch as hvd

    others = {str(rank) for rank in range(hvd.size())} - {str(hvd.rank())}
    while {path.name for path in Path(folder).iterdir()} != others:
        time.sleep(0.001)


def raising(failing: int, folder: str) -> object:
    import hvd_kernel.torch as hvd
    from hvd_kernel.core import session

    if hvd.rank() != failing:
        return waiting(folder)
    until_the_others_wait(folder)
    session.engine().abort("ValueError: my bug 7")
    return None


def again() -> float:
    import torch

    import hvd_kernel.torch as hvd

    hvd.shutdown()
    hvd.init()
    return hvd.allreduce(torch.ones(1), name="again", op=hvd.Sum).item()


@pytest.mark.parametrize("failing", [0, 1])
def test_abort(ranks: RankPool, failing: int, tmp_path: Path) -> None:
    found = ranks.run(raising, failing, str(tmp_path))
    for rank, said in enumerate(found):
        if rank != failing:
            assert {(kind, who) for kind, who, _ in said} == {("RankFailed", failing)}
            assert all("my bug 7" in text and f"ank {failing}" in text for _, _, text in said)
    assert ranks.run(again) == [float(ranks.np)] * ranks.np


def leaving(failing: int, how: str, folder: str) -> object:
    import hvd_kernel.torch as hvd

    if hvd.rank() != failing:
        return waiting(folder)
    until_the_others_wait(folder)
    if how == "shutdown":
        hvd.shutdown()
        return None
    if how == "exit":
        os._exit(3)
    os.kill(os.getpid(), signal.SIGKILL)
    return None


@pytest.mark.parametrize(
    ("layout", "how", "status", "failing"),
    [
        ((2, "tcp"), "exit", 3, 1),
        ((3, "shm"), "kill", -9, 0),
        pytest.param((2, "tcp"), "exit", 3, 0, marks=pytest.mark.nightly),
        pytest.param((4, "shm"), "kill", -9, 1, marks=pytest.mark.nightly),
    ],
    ids=str,
)
def test_death(layout: tuple[int, str], how: str, status: int, failing: int, tmp_path: Path) -> None:
    with RankPool(*layout) as mortal:
        mortal.run(start)
        found = mortal.run(leaving, failing, how, str(tmp_path), gone={failing: status})
    for rank, said in enumerate(found):
        if rank != failing:
            assert {(kind, who) for kind, who, _ in said} == {("RankDied", failing)}
            assert all(f"ank {failing}" in text for _, _, text in said)


@pytest.mark.parametrize("failing", [0, 1])
def test_shutdown_of_one(ranks: RankPool, failing: int, tmp_path: Path) -> None:
    found = ranks.run(leaving, failing, "shutdown", str(tmp_path))
    for rank, said in enumerate(found):
        if rank != failing:
            assert all("Horovod has been shut down" in text and f"ank {failing}" in text for _, _, text in said)
    assert ranks.run(again) == [float(ranks.np)] * ranks.np


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


def test_shutdown_of_all(ranks: RankPool) -> None:
    assert ranks.run(orderly) == ["done"] * ranks.np


def interrupted(blocking: bool) -> str:
    """Ctrl-C while waiting raises KeyboardInterrupt at once; the core keeps the memory until the operation ends."""
    import gc
    import threading
    import weakref

    import torch

    import hvd_kernel.torch as hvd
    from hvd_kernel.core import handles as core_handles
    from hvd_kernel.core import session

    def begun() -> bool:
        """The core has it; of one that was begun before, the caller knows the handle too."""
        pending = any(one["name"] == "allreduce.interrupted" for one in session.engine().pending())
        return pending if blocking else bool(core_handles._live)

    def reduce(tensor: torch.Tensor) -> None:
        if blocking:
            hvd.allreduce_(tensor, name="interrupted")
        else:
            hvd.synchronize(hvd.allreduce_async_(tensor, name="interrupted"))

    def press() -> None:
        while not begun():
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGINT)

    hvd.barrier()
    if hvd.rank() == 0:
        tensor = torch.full((1 << 20,), 3.0)
        held = weakref.ref(tensor)
        threading.Thread(target=press).start()
        raises(KeyboardInterrupt, "", reduce, tensor)  # the others come when it is out
        del tensor
        gc.collect()
        assert held() is not None, "the core would write into memory that is somebody else's"
        handles = list(core_handles._live)
        assert len(handles) == 1 or blocking
        hvd.broadcast_object("go on", 0)
        done = [hvd.synchronize(handle) for handle in handles]
        hvd.barrier()
        assert torch.equal((done or [held()])[0], torch.full((1 << 20,), 3.0))
    else:
        hvd.broadcast_object("go on", 0)
        hvd.allreduce_(torch.full((1 << 20,), 3.0), name="interrupted")
        hvd.barrier()
    assert not core_handles._live
    return str(session.engine().aborted())


@pytest.mark.parametrize("blocking", [True, False])
def test_interrupt(ranks: RankPool, blocking: bool) -> None:
    assert ranks.run(interrupted, blocking) == ["None"] * ranks.np


def nameless() -> bool:
    """The shared memory has no name that could remain."""
    maps = Path("/proc/self/maps").read_text()
    assert "/dev/shm" not in maps
    return "/memfd:" in maps


def test_shared_memory_has_no_name(ranks: RankPool, layout: tuple[int, str]) -> None:
    assert ranks.run(nameless) == [layout[1] == "shm"] * ranks.np


def cuda_files() -> list[str]:
    """Return the CUDA files that this rank has mapped, after operations on CPU tensors."""
    import torch

    import hvd_kernel.torch as hvd

    hvd.allreduce(torch.ones(3), name="on the CPU")
    model = torch.nn.Linear(2, 1)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), model.named_parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    files = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()}
    return sorted(file for file in files if Path(file).name.startswith(("libhvd_cuda", "libcuda.")))


def test_ranks_on_the_cpu_load_no_cuda_plugin_and_no_driver(ranks: RankPool) -> None:
    assert ranks.run(cuda_files) == [[]] * ranks.np


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


def test_fork(ranks: RankPool) -> None:
    assert ranks.run(forked) == [0] * ranks.np
