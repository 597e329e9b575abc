"""Checkpoints of real ranks: a job of another size resumes from them, with every bit of rank 0's state."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from hvdtest.launch import RankPool

pytestmark = [pytest.mark.mp, pytest.mark.nightly]

SAMPLES, BATCH = 48, 2


class Job:
    """A training whose buffers, generators and batches differ between ranks, with a checkpoint of each second commit."""

    def __init__(self, where: str) -> None:
        import torch

        import hvd_kernel.torch as hvd
        from hvd_kernel.elastic.checkpoint import checkpoint

        hvd.init()
        torch.set_num_threads(1)
        torch.manual_seed(hvd.rank())
        checkpoint.SMALLEST_SHARD = 64
        self.model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 3))
        self.optimizer = hvd.DistributedOptimizer(
            torch.optim.Adam(self.model.parameters(), lr=0.05), named_parameters=self.model.named_parameters()
        )
        self.sampler = hvd.elastic.ElasticSampler(range(SAMPLES), seed=5)
        self.state = hvd.elastic.TorchState(
            self.model,
            self.optimizer,
            sampler=self.sampler,
            generator=torch.Generator().manual_seed(hvd.rank()),
            steps=0,
            seen=set(),
        )
        self.checkpoint = hvd.elastic.Checkpoint(where, every=2)
        self.checkpoint.attach(self.state)
        self.began: list[object] = []

    def train(self, state: object, until: int) -> list[object]:
        import torch

        import hvd_kernel.torch as hvd

        self.began = self.whole()
        batches = 0
        while state.steps < until:
            samples = self.sampler.get_indices(batches, BATCH)
            images = torch.rand(len(samples), 6, generator=state.generator)
            self.optimizer.zero_grad()
            self.model(images).sum().backward()
            self.optimizer.step()
            state.seen |= {index for each in hvd.allgather_object(samples) for index in each}
            self.sampler.record_batch(batches, BATCH)
            batches += 1
            state.steps += 1
            state.commit()
        return self.whole()

    def whole(self) -> list[object]:
        parts = [self.model, self.optimizer, self.sampler]
        said = "\n".join(str(_bits(part.state_dict())) for part in parts)
        generator = _bits(self.state.generator.get_state())
        return [said, str(generator), self.state.steps, sorted(self.state.seen), self.state.commit_number]


def _bits(value: object) -> object:
    import torch

    if isinstance(value, torch.Tensor):
        return value.dtype, value.shape, value.tolist()
    if isinstance(value, dict):
        return [(key, _bits(each)) for key, each in sorted(value.items(), key=str)]
    return value


def trains(where: str, until: int) -> list[list[object]]:
    """Return a rank's initial and final state, and the number of samples that are left."""
    import hvd_kernel.torch as hvd

    job = Job(where)
    ends = hvd.elastic.run(job.train)(job.state, until)
    job.checkpoint.wait()
    hvd.shutdown()
    return [job.began, ends, [str(job.checkpoint.resumed), len(job.sampler.remaining_indices)]]


@pytest.mark.parametrize(("first", "second"), [(4, 2), (2, 4)])
def test_checkpoint_is_resumed_by_a_job_of_another_size(first: int, second: int, tmp_path: Path) -> None:
    with RankPool(first, "shm") as pool:
        before = pool.run(trains, str(tmp_path), 4)
    assert len(list(tmp_path.glob("commit-*4-*/shard-*"))) == first, "each rank has written a part"
    with RankPool(second, "shm") as pool:
        after = pool.run(trains, str(tmp_path), 6)
    rank_0s = before[0][1]
    resumed = [told for _, _, (told, _) in after]
    assert "commit-0000000004-" in resumed[0]
    assert set(resumed[1:]) <= {"None"}, "rank 0 has read it, and all have its values"
    for began, ends, (_, left) in after:
        assert began == rank_0s
        assert left == SAMPLES - first * BATCH * 4, "what the first job has done is not dealt out again"
        assert len(set(ends[3])) == first * BATCH * 4 + second * BATCH * 2, "no sample twice"
        assert ends[4] == 6


def killed_while_it_writes(where: str, failing: int) -> None:
    """A rank is killed in the middle of its shard of commit 4."""
    import os

    import hvd_kernel.torch as hvd
    from hvd_kernel.elastic.checkpoint import files

    job = Job(where)

    class Disk:
        def __getattr__(self, name: str) -> object:
            return getattr(os, name)

        def fsync(self, file: int) -> None:
            if job.state.commit_number >= 4 and hvd.rank() == failing:
                os.kill(os.getpid(), signal.SIGKILL)
            os.fsync(file)

    files.os = Disk()
    with pytest.raises(hvd.HorovodInternalError):
        hvd.elastic.run(job.train)(job.state, 100)


@pytest.mark.parametrize("failing", [0, 1])
def test_g1_rank_is_killed_while_it_writes(failing: int, tmp_path: Path) -> None:
    with RankPool(2, "shm") as pool:
        pool.run(killed_while_it_writes, str(tmp_path), failing, gone={failing: -signal.SIGKILL})
    with RankPool(2, "shm") as pool:
        found = pool.run(trains, str(tmp_path), 6)
    assert [began[4] for began, _, _ in found] == [2, 2], "the one that all had written"
    assert [ends[4] for _, ends, _ in found] == [6, 6]
