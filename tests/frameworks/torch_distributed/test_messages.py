"""Messages between two ranks: any source, gaps, errors, and a rank that fails or never receives."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hvdtest.exact import raises, same
from hvdtest.launch import RankPool
from hvdtest.lazy import hvd, torch
from hvdtest.pools import TORCH_VERSIONS, layouts
from hvdtest.torch_worlds import is_before, world

pytestmark = pytest.mark.mp

layout = layouts((3, "shm"), nightly=((2, "tcp"), (4, "shm"), *TORCH_VERSIONS))


def from_any_source(folder: str) -> list[int]:
    """Rank 0 receives two messages of each rank, in the order in which they arrive."""
    sources = []
    with world("hvd", folder) as dist:
        for number in (1, 2):
            if dist.get_rank() > 0:
                dist.send(torch.tensor([dist.get_rank(), number]), 0, tag=4)
        if dist.get_rank() == 0:
            last = [0] * hvd.size()
            for _ in range(2 * (hvd.size() - 1)):
                message = torch.empty(2, dtype=torch.int64)
                source = dist.recv(message, tag=4)
                last[source] += 1
                same(message, torch.tensor([source, last[source]]))
                sources.append(source)
        dist.barrier()
    return sorted(sources)


def test_receiver_from_any_source_learns_the_sender(ranks: RankPool, tmp_path: Path) -> None:
    first, *others = ranks.run(from_any_source, str(tmp_path))
    assert first == sorted([*range(1, ranks.np)] * 2)
    assert others == [[] for _ in others]


def received_in_the_background(folder: str) -> None:
    """An irecv from any source is served while its rank is in a collective, which the sender calls later."""
    with world("hvd", folder) as dist:
        rank, tensor = dist.get_rank(), torch.zeros(3)
        work = dist.irecv(tensor) if rank == 0 else None
        if rank == 1:
            dist.send(torch.ones(3), 0)
        total = torch.ones(1)
        dist.all_reduce(total)
        same(total, torch.full((1,), float(dist.get_world_size())))
        if work is not None:
            work.wait()
            same(tensor, torch.ones(3))
            assert work.source_rank() == 1


def test_receive_from_any_source_needs_no_wait(ranks: RankPool, tmp_path: Path) -> None:
    ranks.run(received_in_the_background, str(tmp_path))


def outputs_with_gaps(folder: str) -> None:
    with world("hvd", folder) as dist:
        table = torch.zeros(4, 4)
        if dist.get_rank() == 0:
            dist.group.WORLD.send([torch.arange(8.0)[::2]], 1, 0).wait()
        elif dist.get_rank() == 1:
            dist.group.WORLD.recv([table[:, 1]], 0, 0).wait()
            same(table[:, 1], torch.arange(8.0)[::2])
            same(table.sum(), torch.tensor(12.0))


def test_tensors_with_gaps_are_sent_and_received(ranks: RankPool, tmp_path: Path) -> None:
    ranks.run(outputs_with_gaps, str(tmp_path))


def refused(folder: str) -> None:
    """Errors of one rank's call leave the order of messages as it was."""
    from hvd_kernel.errors import HvdTimeout, Mismatch
    from hvd_kernel.torch.distributed import checks

    with world("hvd", folder) as dist:
        rank, size, group = dist.get_rank(), dist.get_world_size(), dist.group.WORLD
        other = f"Send: source and destination must be different ranks from 0 to {size - 1}"
        invalid = f"{other}, in a job of at most 32768 ranks"
        for destination in (rank, size, -1):
            raises(ValueError, invalid, group.send, [torch.ones(1)], destination, 0)
        sparse = checks.NOT_DENSE.format(layout=torch.sparse_coo)
        raises(ValueError, sparse, group.send, [torch.ones(1).to_sparse()], (rank + 1) % size, 0)
        dist.barrier()
        if rank == 0:
            with pytest.raises(Mismatch, match=r"rank 0: \[2\]; rank 1: \[3\]"):
                dist.send(torch.ones(2), 1)
            dist.send(torch.full((2,), 5.0), 1)
        elif rank == 1:
            with pytest.raises(Mismatch):
                dist.recv(torch.ones(3), 0)
            tensor = torch.empty(2)
            dist.recv(tensor, 0)
            same(tensor, torch.full((2,), 5.0))
        dist.barrier()
        late = torch.empty(1)
        if rank == 0:
            work = dist.irecv(late, 1, tag=9)
            with pytest.raises(HvdTimeout):
                work.wait(timedelta(milliseconds=1))
        dist.barrier()
        if rank == 1:
            dist.send(torch.ones(1), 0, tag=9)
        if rank == 0:
            work.wait()
            same(late, torch.ones(1))


def test_bad_messages_are_refused(ranks: RankPool, tmp_path: Path) -> None:
    ranks.run(refused, str(tmp_path))


def released(folder: str, kind: str) -> Any:
    """Rank 1 aborts while rank 0 waits for its message; return rank 0's error."""
    from hvd_kernel.core import session
    from hvd_kernel.errors import HorovodInternalError

    waiting = Path(folder) / "waiting"
    with world("hvd", folder) as dist:
        if hvd.rank() == 1:
            while not waiting.exists():
                pass
            session.engine().abort("ValueError: my bug 7")
        if hvd.rank() > 0:
            return None
        tensor = torch.ones(2)
        work = {"send": lambda: dist.isend(tensor, 1), "recv": lambda: dist.irecv(tensor, 1), "any": dist.irecv}[kind]
        started = work() if kind != "any" else work(tensor)  # type: ignore[operator]
        waiting.touch()
        try:
            started.wait()
        except HorovodInternalError as error:
            return [type(error).__name__, str(error)]
    return "no error"


@pytest.mark.parametrize("kind", ["send", "recv", "any"])
def test_error_releases_a_waiting_message(ranks: RankPool, kind: str, tmp_path: Path) -> None:
    first, *_ = ranks.run(released, str(tmp_path), kind)
    assert first == ["RankFailed", "Rank 1 failed: ValueError: my bug 7"]
    ranks.run(again)


def again() -> None:
    hvd.shutdown()
    hvd.init()


def pipeline(folder: str) -> Any:
    """Two stages of torch's own pipeline, with GPipe and 1F1B; return the loss that the last stage computes."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

    torch.manual_seed(1)
    parts = [torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)]
    data, target = torch.randn(16, 8), torch.randn(16, 8)
    losses: list[Any] = []
    with world("hvd", folder) as dist:
        pair = dist.new_group([0, 1])
        for schedule in (ScheduleGPipe, Schedule1F1B):
            if dist.get_rank() > 1:
                continue
            shapes = (
                {"input_args": data[:4]} if is_before(2, 5) else {}
            )  # of a microbatch; later found by the first one
            part = parts[dist.get_rank()]
            stage = PipelineStage(part, dist.get_rank(), 2, torch.device("cpu"), group=pair, **shapes)
            steps = schedule(stage, 4, loss_fn=torch.nn.functional.mse_loss)
            if dist.get_rank() == 0:
                steps.step(data)
            else:
                parts_of_loss: list[torch.Tensor] = []
                steps.step(target=target, losses=parts_of_loss)
                losses.append(float(torch.stack(parts_of_loss).mean()))
        dist.barrier()
    whole = torch.nn.functional.mse_loss(parts[1](parts[0](data)), target)
    return losses, float(whole)


def test_torch_pipelines_compute_the_loss_of_one_process(ranks: RankPool, tmp_path: Path) -> None:
    results = ranks.run(pipeline, str(tmp_path))
    losses, whole = results[1]
    assert losses == pytest.approx([whole, whole], rel=1e-6)
