"""A GPU that fails on one rank, or a rank that dies with memory of others mapped, over a fake driver.

Every rank gets the same error, which names the rank; nobody waits forever, devices of others work on, nothing is left there.
"""

from __future__ import annotations

import signal

import pytest
from hvdtest import fake_cuda_driver
from hvdtest.gpu import gpu_ranks
from hvdtest.launch import RankPool

pytestmark = [pytest.mark.mp, pytest.mark.skipif(bool(fake_cuda_driver.why_not()), reason=fake_cuda_driver.why_not())]
NP, VICTIM = 3, 1
ILLEGAL_ADDRESS, LAUNCH_FAILED = 700, 719  # CUresult
# The path, when the device fails, and the call that reports it.
FAULTS = {
    ("ring", "at a launch"): ("cuLaunchKernel", 1, LAUNCH_FAILED),
    ("core", "at a copy"): ("cuMemcpyAsync", 1, LAUNCH_FAILED),
    ("core", "while it works"): ("cuEventQuery", 0, ILLEGAL_ADDRESS),
}
USUAL = ("ring", "at a launch")
NAMES = {LAUNCH_FAILED: "CUDA_ERROR_LAUNCH_FAILED", ILLEGAL_ADDRESS: "CUDA_ERROR_ILLEGAL_ADDRESS"}


def ranks_for(way: str) -> RankPool:
    ranks = gpu_ranks(NP, way, HVD_CUDA_DRIVER=str(fake_cuda_driver.driver()))
    ranks.broken = True  # no engine outlives its fault
    return ranks


def with_a_fault(fault: list[str | int], victim: int) -> list[object]:
    import torch
    from hvdtest import fake_gpu
    from hvdtest.exact import raises
    from hvdtest.gpu import here, there

    import hvd_kernel.torch as hvd
    from hvd_kernel.errors import HorovodInternalError

    rank, size = hvd.rank(), hvd.size()
    x = there(torch.full((100_000,), rank + 1.0))
    total = here(hvd.allreduce(x, name="meet", op=hvd.Sum))
    assert total.unique().tolist() == [size * (size + 1) / 2]
    hvd.barrier()
    if rank == victim:
        fake_gpu.turn("fake_cuda_fail", *fault)

    def steps() -> None:
        here(hvd.allreduce(x, name="x", op=hvd.Sum))
        hvd.barrier()

    error = raises(HorovodInternalError, "", steps)
    return [type(error).__name__, error.rank, str(error)]


@pytest.mark.parametrize(
    ("way", "when"), [pytest.param(*each, marks=() if each == USUAL else pytest.mark.nightly) for each in FAULTS]
)
def test_failing_device_is_the_same_error_on_all_ranks(way: str, when: str) -> None:
    fault = FAULTS[way, when]
    said = ranks_for(way).run(with_a_fault, fault, VICTIM, timeout=60.0)
    assert all(each == said[0] for each in said), said
    assert said[0][:2] == ["HorovodInternalError", VICTIM]
    assert said[0][2].startswith(f"rank {VICTIM}, device 0 (Fake GPU): ")
    assert NAMES[fault[2]] in said[0][2]


def lost_under_an_operation(victim: int, illegal: int) -> list[object]:
    """Fail as in a cell: torch raises on the victim, whose exception releases the others; they continue to compute."""
    import torch
    from hvdtest import fake_gpu
    from hvdtest.gpu import here, there

    import hvd_kernel.torch as hvd
    from hvd_kernel.core import session
    from hvd_kernel.errors import HorovodInternalError

    x = there(torch.full((100_000,), 1.0))
    if hvd.rank() == victim:
        here(hvd.allreduce(x, name="meet", op=hvd.Sum))
        hvd.allreduce_async(x, name="x", op=hvd.Sum)
        fake_gpu.turn("fake_cuda_lose", 0, illegal)
        session.engine().abort("RuntimeError: CUDA error: an illegal memory access was encountered")
        return []
    try:  # the word may come in any of them
        here(hvd.allreduce(x, name="meet", op=hvd.Sum))
        here(hvd.allreduce(x, name="x", op=hvd.Sum))
        hvd.barrier()
    except HorovodInternalError as error:
        return [type(error).__name__, error.rank, str(error), here(x).sum().item()]
    raise AssertionError("nobody was told")


@pytest.mark.parametrize("way", ["core", pytest.param("ring", marks=pytest.mark.nightly)])
def test_lost_device_does_not_block_other_operations(way: str) -> None:
    found = ranks_for(way).run(lost_under_an_operation, VICTIM, ILLEGAL_ADDRESS, timeout=60.0)
    told, _, also_told = found
    assert told == also_told
    kind, rank, text, kept = told
    # The exception reports it, or the core, which polls the device: whichever is first.
    assert kind in {"RankFailed", "HorovodInternalError"}
    assert (rank, kept) == (VICTIM, 100_000.0)
    assert "illegal memory access" in text


def killed_with_memory_mapped(victim: int) -> list[object]:
    import os
    import signal

    import torch
    from hvdtest import fake_gpu
    from hvdtest.gpu import here, there

    import hvd_kernel.torch as hvd
    from hvd_kernel.errors import RankDied

    x = there(torch.full((100_000,), 1.0))
    here(hvd.allreduce(x, name="meet", op=hvd.Sum))
    hvd.barrier()
    mapped = fake_gpu.counts()["mappings"]
    if hvd.rank() == victim:
        handles = [hvd.allreduce_async(x, name=f"k{i}", op=hvd.Sum) for i in range(3)]
        here(hvd.synchronize(handles[0]))  # all have come so far
        os.kill(os.getpid(), signal.SIGKILL)
    dead = []
    for i in range(6):  # the last three never meet
        try:
            here(hvd.allreduce(x, name=f"k{i}", op=hvd.Sum))
        except RankDied as error:
            dead.append(error.rank)
    kept = here(x).sum().item()
    hvd.shutdown()
    left = fake_gpu.counts()
    return [*dead[-3:], kept, mapped, left["mappings"], left["allocations"]]


@pytest.mark.parametrize(("way", "mapped"), [("ring", NP - 1), pytest.param("core", 0, marks=pytest.mark.nightly)])
def test_killed_rank_leaves_no_mapped_device_memory(way: str, mapped: int) -> None:
    found = ranks_for(way).run(killed_with_memory_mapped, VICTIM, gone={VICTIM: -signal.SIGKILL}, timeout=60.0)
    assert [each for rank, each in enumerate(found) if rank != VICTIM] == [
        [VICTIM, VICTIM, VICTIM, 100_000.0, mapped, 0, 0]
    ] * (NP - 1)


def ended_in_peace(rounds: int) -> list[int]:
    """Start and stop engines with arenas and shared memory: all is released, or kept to the end."""
    import torch
    from hvdtest import fake_gpu
    from hvdtest.gpu import here, there

    import hvd_kernel.torch as hvd
    from hvd_kernel.core.shared_memory import allocate_on_devices, release_shared

    for _ in range(rounds):
        hvd.init()
        kept = allocate_on_devices(4096, 0)
        released = allocate_on_devices(4096, 0)
        del released
        release_shared()
        pair = hvd.add_process_set([0, 1])
        total = here(hvd.allreduce(there(torch.ones(1000)), name="all", op=hvd.Sum))
        assert total.unique().tolist() == [hvd.size()]
        if hvd.rank() < 2:
            here(hvd.allreduce(there(torch.ones(1000)), name="pair", op=hvd.Sum, process_set=pair))
        hvd.barrier()  # a rank that leaves early waits for the others only briefly
        hvd.shutdown()
        del kept
    return [fake_gpu.turn("fake_cuda_freed_under_others"), fake_gpu.counts()["mappings"]]


@pytest.mark.nightly
def test_mapped_memory_is_freed_once_peers_close_it() -> None:
    assert ranks_for("ring").run(ended_in_peace, 4, timeout=120.0) == [[0, 0]] * NP
