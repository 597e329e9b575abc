"""Habits of programs that were written for Horovod, as they stand in public training code, each against one process alone.

Terms.
  alone   the same program in one process that sees every rank's data
"""

from __future__ import annotations

import pytest
from hvdtest.exact import same
from hvdtest.gradients import batch, close, local_gradients, mean, model_of
from hvdtest.launch import RankPool
from hvdtest.lazy import hvd, torch
from hvdtest.pools import layouts

pytestmark = pytest.mark.mp


layout = layouts((2, "shm"), nightly=((3, "tcp"),))


def preconditioned() -> None:
    """K-FAC: a pseudo loss is reduced for its statistics and thrown away, then the real one is changed before the step."""
    model = model_of()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1.0), named_parameters=model.named_parameters()
    )
    starts = [p.detach().clone() for p in model.parameters()]
    wanted = mean([local_gradients(r) for r in range(hvd.size())])
    for _ in range(2):
        with torch.no_grad():
            for p, start in zip(model.parameters(), starts, strict=True):
                p.copy_(start)
        optimizer.zero_grad()
        output = model(batch(hvd.rank()))
        (output * 3).square().sum().backward(retain_graph=True)
        optimizer.synchronize()
        for p, want in zip(model.parameters(), wanted, strict=True):
            close(p.grad, 9 * want, "pseudo")
        optimizer.zero_grad()
        output.square().sum().backward()
        optimizer.synchronize()
        for p in model.parameters():
            p.grad.mul_(0.5)
        with optimizer.skip_synchronize():
            optimizer.step()
        for p, start, want in zip(model.parameters(), starts, wanted, strict=True):
            close(p.detach(), start - want / 2, "real")


def test_a_pseudo_loss_and_a_preconditioner(ranks: RankPool) -> None:
    ranks.run(preconditioned)


def before_any_backward() -> None:
    """Some call step once before the first backward, to silence the schedulers or to make the optimizer's state."""
    import warnings

    model = model_of()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.AdamW(model.parameters(), lr=0.1), named_parameters=model.named_parameters()
    )
    starts = [p.detach().clone() for p in model.parameters()]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 1.0 / (1 + epoch))
        with optimizer.skip_synchronize():
            optimizer.zero_grad()
            optimizer.step()
        scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0.05
    for p, start in zip(model.parameters(), starts, strict=True):
        same(p.detach(), start, "nothing to step by")
    optimizer.rank, optimizer.note = hvd.rank(), "some hang their own things on it"
    assert optimizer.note.startswith("some")


def test_a_step_before_the_first_backward(ranks: RankPool) -> None:
    ranks.run(before_any_backward)


def measured() -> None:
    """The running averages of every image example: one name for all batches, on detached scalars; and gathered lists."""
    rank, size = hvd.rank(), hvd.size()

    class Metric:
        def __init__(self, name: str) -> None:
            self.name, self.sum, self.n = name, torch.tensor(0.0), torch.tensor(0.0)

        def update(self, value: object) -> None:
            self.sum += hvd.allreduce(value.detach().cpu(), name=self.name)
            self.n += 1

        @property
        def avg(self) -> object:
            return self.sum / self.n

    loss, accuracy = Metric("loss"), Metric("accuracy")
    for number in range(8):
        loss.update(torch.tensor(float(number * size + rank), requires_grad=True))
        accuracy.update(torch.tensor(float(rank)))
    assert loss.avg.item() == 3.5 * size + (size - 1) / 2
    assert accuracy.avg.item() == (size - 1) / 2
    assert hvd.allgather_object([rank] * rank) == [[r] * r for r in range(size)]
    rows = hvd.allgather(torch.tensor([rank, 7]), "state").tolist()
    assert rows == [value for r in range(size) for value in (r, 7)]
    weight = torch.ones(4) * (rank + 1)
    total = hvd.allreduce(torch.sum(weight), name="total_weight", op=hvd.Sum)
    assert total.item() == 4 * size * (size + 1) / 2


def test_metrics_and_gathered_lists(ranks: RankPool) -> None:
    ranks.run(measured)


def resumed() -> None:
    """Only rank 0 reads the checkpoint; epoch, parameters and optimizer state are broadcast to the others."""
    import io

    rank = hvd.rank()

    def step(net: object, optimizer: object, number: int) -> None:
        optimizer.zero_grad()
        net(batch(rank, number)).square().mean().backward()
        optimizer.step()

    def made(seed: int) -> tuple[object, object]:
        net = model_of(seed)
        plain = torch.optim.Adam(net.parameters(), lr=0.01 * hvd.size(), amsgrad=True)
        return net, hvd.DistributedOptimizer(
            plain, named_parameters=net.named_parameters(), compression=hvd.Compression.none, op=hvd.Average
        )

    model, optimizer = made(0)
    for number in range(3):
        step(model, optimizer, number)
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}, file)
    for number in range(3, 5):
        step(model, optimizer, number)

    again, restored = made(rank + 1)
    epoch = 0
    if rank == 0:
        file.seek(0)
        checkpoint = torch.load(file)
        again.load_state_dict(checkpoint["model"])
        restored.load_state_dict(checkpoint["optimizer"])
        epoch = checkpoint["epoch"]
    epoch = hvd.broadcast(torch.tensor(epoch), root_rank=0, name="resume_from_epoch").item()
    hvd.broadcast_parameters(again.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(restored, root_rank=0)
    for number in range(epoch, 5):
        step(again, restored, number)
    for p, q in zip(again.parameters(), model.parameters(), strict=True):
        same(p.detach(), q.detach(), "as if it had not been interrupted")


def test_a_checkpoint_that_only_rank_0_reads(ranks: RankPool) -> None:
    ranks.run(resumed)


def with_workers() -> None:
    """DataLoader with forked workers and a DistributedSampler, while operations run: every example exactly once."""
    from torch.utils.data import DataLoader, TensorDataset
    from torch.utils.data.distributed import DistributedSampler

    examples = torch.arange(24, dtype=torch.float64)
    dataset = TensorDataset(examples)
    sampler = DistributedSampler(dataset, num_replicas=hvd.size(), rank=hvd.rank(), seed=5)
    loader = DataLoader(dataset, batch_size=2, sampler=sampler, num_workers=1, multiprocessing_context="fork")
    for epoch in range(2):
        sampler.set_epoch(epoch)
        seen = torch.zeros(24, dtype=torch.float64)
        for (values,) in loader:
            mine = torch.zeros(24, dtype=torch.float64)
            mine[values.long()] += 1
            seen += hvd.allreduce(mine, name="seen", op=hvd.Sum)
        same(seen, torch.ones(24, dtype=torch.float64), f"epoch {epoch}")


def test_forked_loaders_beside_operations(ranks: RankPool) -> None:
    ranks.run(with_workers)
