"""Lightning's Trainer with our strategy: training is, to the bit, that of one process with the whole batch.

Numbers are small fractions of powers of two, so that no sum rounds, whatever its order.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hvdtest.exact import raises, same
from hvdtest.launch import RankPool
from hvdtest.pools import layouts

pytestmark = [pytest.mark.nightly, pytest.mark.mp, pytest.mark.timeout(400)]

layout = layouts((2, "shm"), (1, "auto"), (4, "shm"))

ROWS, BATCH, RATE, LIMIT = 40, 8, 0.25, 0.5


@pytest.fixture(autouse=True)
def with_lightning() -> None:
    pytest.importorskip("lightning")


def table() -> Any:
    """Inputs and wanted outputs: one row per sample."""
    import torch

    x = ((torch.arange(ROWS * 2).reshape(ROWS, 2) * 7) % 5 - 2).double() / 2
    return torch.utils.data.TensorDataset(x, (x @ torch.tensor([[1.0], [-2.0]]).double()) + 0.5)


def module(**replaced: Any) -> Any:
    """A linear model, which every rank begins with other weights."""
    import lightning
    import torch

    import hvd_kernel.torch as hvd

    class Line(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = torch.nn.Linear(2, 1).double()
            torch.nn.init.constant_(self.net.weight, (1 + hvd.rank()) / 4)
            torch.nn.init.constant_(self.net.bias, hvd.rank() / 4)

        def loss(self, batch: Any) -> Any:
            x, y = batch
            return ((self.net(x) - y) ** 2).mean() / 4

        def training_step(self, batch: Any, _number: int) -> Any:
            loss = self.loss(batch)
            self.log("loss", loss, sync_dist=True)
            return loss

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=RATE, momentum=0.5)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]

    return type("Changed", (Line,), replaced)()


def trainer(folder: str = "", **options: Any) -> Any:
    import lightning

    from hvd_kernel.integrations.lightning import HorovodStrategy

    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    options = {"strategy": HorovodStrategy(), "max_epochs": 1, "enable_checkpointing": bool(folder), **options}
    return lightning.Trainer(**quiet, default_root_dir=folder or None, **options)


def loader() -> Any:
    """Step by step the ranks' batches are one whole batch: Lightning's own sampler would shuffle them."""
    import torch

    import hvd_kernel.torch as hvd

    ranks = (hvd.size(), hvd.rank())
    sampler = torch.utils.data.DistributedSampler(table(), *ranks, shuffle=False)
    return torch.utils.data.DataLoader(table(), batch_size=BATCH // hvd.size(), sampler=sampler)


def alone(epochs: int = 1, passes: int = 1, clip: bool = False) -> Any:
    """Train in one process without Lightning and hvd_kernel, from rank 0's initial state."""
    import torch

    net = torch.nn.Linear(2, 1).double()
    torch.nn.init.constant_(net.weight, 0.25)
    torch.nn.init.constant_(net.bias, 0.0)
    optimizer = torch.optim.SGD(net.parameters(), lr=RATE, momentum=0.5)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    batches = list(torch.utils.data.DataLoader(table(), batch_size=BATCH))
    for _ in range(epochs):
        for first in range(0, len(batches), passes):
            optimizer.zero_grad()
            for x, y in batches[first : first + passes]:
                (((net(x) - y) ** 2).mean() / 4 / passes).backward()
            if clip:
                torch.nn.utils.clip_grad_value_(net.parameters(), LIMIT)
            optimizer.step()
        schedule.step()
    return net


def everywhere(net: Any, want: Any) -> None:
    """Each rank checks its own."""
    for (name, got), wanted in zip(net.named_parameters(), want.parameters(), strict=True):
        same(got.detach(), wanted.detach(), name)


def fitted(options: dict[str, Any], wanted: dict[str, Any]) -> None:
    import hvd_kernel.torch as hvd

    line, made = module(), trainer(**options)
    made.fit(line, loader())
    everywhere(line.net, alone(**wanted))
    assert (made.world_size, made.global_rank, made.is_global_zero) == (hvd.size(), hvd.rank(), hvd.rank() == 0)


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({}, {}),
        ({"max_epochs": 3}, {"epochs": 3}),
        ({"accumulate_grad_batches": 2, "max_epochs": 2}, {"passes": 2, "epochs": 2}),  # the fifth batch steps alone
        ({"gradient_clip_val": LIMIT, "gradient_clip_algorithm": "value"}, {"clip": True}),
        (
            {"gradient_clip_val": LIMIT, "gradient_clip_algorithm": "value", "accumulate_grad_batches": 2},
            {"clip": True, "passes": 2},
        ),
        ({"strategy": "horovod"}, {}),
    ],
    ids=["plain", "epochs", "accumulated", "clipped", "accumulated and clipped", "by name"],
)
def test_fit_equals_that_of_one_process(ranks: RankPool, options: dict[str, Any], wanted: dict[str, Any]) -> None:
    ranks.run(fitted, options, wanted)


def sampled() -> list[int]:
    """The samples that this rank has trained with."""
    import torch

    numbered = torch.utils.data.TensorDataset(torch.arange(ROWS).double().reshape(ROWS, 1))
    seen: list[int] = []

    def trained(self: Any, batch: Any, _number: int) -> Any:
        seen.extend(int(value) for value in batch[0].flatten())
        return self.net.weight.sum()

    trainer().fit(module(training_step=trained), torch.utils.data.DataLoader(numbered, batch_size=2))
    return seen


def test_each_sample_is_seen_by_one_rank(ranks: RankPool) -> None:
    found = ranks.run(sampled)
    assert sorted(number for each in found for number in each) == list(range(ROWS))
    assert {len(each) for each in found} == {ROWS // len(found)}


def resumed(folder: str) -> Any:
    """Stop after one of three epochs and resume from the file."""
    import lightning
    import torch

    import hvd_kernel.torch as hvd

    line, made = module(), trainer(folder)
    made.fit(line, loader())
    path = str(hvd.broadcast_object(made.checkpoint_callback.best_model_path, 0))
    files = [str(each) for each in Path(folder).rglob("*.ckpt")]
    assert files == [path], files
    plain = lightning.Trainer(accelerator="cpu", devices=1, strategy="auto", logger=False, max_epochs=1)
    assert type(plain.strategy).__name__ == "SingleDeviceStrategy"
    checkpoint = torch.load(path, weights_only=True, map_location="cpu")
    everywhere(line.net, alone())
    for name, tensor in checkpoint["state_dict"].items():
        same(tensor, line.state_dict()[name], name)
    again, more = module(), trainer(folder, max_epochs=3)
    more.fit(again, loader(), ckpt_path=path)
    everywhere(again.net, alone(epochs=3))
    assert [group["lr"] for group in more.optimizers[0].param_groups] == [RATE / 8]


def test_training_continues_from_lightnings_checkpoint(ranks: RankPool, tmp_path: Path) -> None:
    ranks.run(resumed, str(tmp_path))


def measured() -> None:
    """Return values logged on each rank, and a metric of torchmetrics that has seen another number of samples on each."""
    import torch
    import torchmetrics

    import hvd_kernel.torch as hvd

    rank, size = hvd.rank(), hvd.size()
    shown: dict[str, Any] = {}

    def set_up(self: Any, stage: str) -> None:
        self.mean = torchmetrics.MeanMetric()
        self.seen = torchmetrics.CatMetric()

    def validated(self: Any, batch: Any, _number: int) -> None:
        for name in ("mean", "sum", "max", "min"):
            self.log(name, float(rank + 1), sync_dist=True, reduce_fx=name)
        self.log("here", float(rank))
        self.mean.update(torch.full((rank + 1,), float(rank)))
        self.log("metric", self.mean)
        self.seen.update(torch.full((rank + 1,), float(rank)))

    def ended(self: Any) -> None:
        shown["seen"] = sorted(torch.as_tensor(self.seen.compute()).reshape(-1).tolist())

    line = module(setup=set_up, validation_step=validated, on_validation_epoch_end=ended)
    made = trainer(limit_val_batches=1)
    (found,) = made.validate(line, loader(), verbose=False)
    weights = sum(range(1, size + 1))
    assert found["mean"] == weights / size
    assert (found["sum"], found["max"], found["min"], found["here"]) == (weights, size, 1.0, rank)
    same(torch.tensor(found["metric"]), torch.tensor(sum(r * (r + 1) for r in range(size)) / weights))
    assert shown["seen"] == sorted(float(r) for r in range(size) for _ in range(r + 1))


def test_metrics_cover_all_ranks(ranks: RankPool) -> None:
    ranks.run(measured)


def collective() -> None:
    import torch

    import hvd_kernel.torch as hvd
    from hvd_kernel.integrations.lightning import HorovodStrategy

    rank, size, strategy = hvd.rank(), hvd.size(), HorovodStrategy()
    mine = torch.tensor([rank, 1])
    same(strategy.reduce(mine), torch.tensor([(size - 1) / 2, 1.0]), "whole numbers have a mean with a fraction")
    same(strategy.reduce(mine, reduce_op="sum"), torch.tensor([sum(range(size)), size]))
    same(strategy.reduce(mine, reduce_op=torch.distributed.ReduceOp.MAX), torch.tensor([size - 1, 1]))
    assert strategy.reduce("text") == "text"
    raises(ValueError, "reduce_op='median'", strategy.reduce, mine, reduce_op="median")
    raises(ValueError, "group='others'", strategy.reduce, mine, group="others")
    assert strategy.broadcast({"rank": rank}, src=size - 1) == {"rank": size - 1}
    assert strategy.reduce_boolean_decision(rank == 0, all=False)
    assert strategy.reduce_boolean_decision(rank == 0) == (size == 1)
    weight = torch.tensor([float(rank)], requires_grad=True)
    every = strategy.all_gather(weight, sync_grads=True)
    same(every.detach(), torch.arange(float(size)).reshape(size, 1))
    (every * torch.arange(float(size)).reshape(size, 1)).sum().backward()
    same(weight.grad, torch.tensor([float(rank)]), "the gradient of this rank's row")
    assert not strategy.all_gather(weight).requires_grad
    strategy.barrier("here")
    assert strategy.distributed_sampler_kwargs == {"num_replicas": size, "rank": rank}


def test_collectives(ranks: RankPool) -> None:
    ranks.run(collective)


def by_hand(toggled: bool) -> None:
    """Train two optimizers with one loss each; gradients are read, clipped and accumulated before a step."""
    import torch

    import hvd_kernel.torch as hvd

    rank, size = hvd.rank(), hvd.size()
    seen: list[float] = []

    def begun(self: Any, stage: str) -> None:
        if not hasattr(self, "other"):
            self.automatic_optimization = False
            self.other = torch.nn.Linear(1, 1, bias=False).double()
            torch.nn.init.constant_(self.other.weight, 1.0)

    def trained(self: Any, batch: Any, number: int) -> None:
        first, second = self.optimizers()
        scale = float(rank + 1)
        first.zero_grad()
        if toggled:
            self.toggle_optimizer(first)
        self.manual_backward(scale * self.net.weight.sum() + self.other.weight.sum())
        self.manual_backward(scale * self.net.weight.sum())  # accumulated
        seen.append(self.net.weight.grad[0, 0].item())
        self.clip_gradients(first, gradient_clip_val=2.0, gradient_clip_algorithm="value")
        first.step()
        if toggled:
            self.untoggle_optimizer(first)
        second.zero_grad()
        with second.toggle_model(sync_grad=False):
            self.manual_backward(scale * self.other.weight.sum())
        with second.toggle_model(sync_grad=True):
            self.manual_backward(scale * self.other.weight.sum())
        second.step()

    def optimizers(self: Any) -> Any:
        return [torch.optim.SGD(part.parameters(), lr=RATE) for part in (self.net, self.other)]

    line = module(setup=begun, training_step=trained, configure_optimizers=optimizers)
    trainer(max_steps=4, limit_train_batches=2).fit(line, loader())
    mean = (size + 1) / 2
    assert seen == [2 * mean] * 2, "what is seen is the mean of all ranks"
    same(line.net.weight.detach(), torch.full((1, 2), 0.25 - 2 * RATE * min(2.0, 2 * mean)).double())
    same(line.other.weight.detach(), torch.full((1, 1), 1 - 2 * RATE * 2 * mean).double())


@pytest.mark.parametrize("toggled", [False, True])
def test_manual_optimization(ranks: RankPool, toggled: bool) -> None:
    ranks.run(by_hand, toggled)


def hooked() -> list[float]:
    import torch

    import hvd_kernel.torch as hvd

    seen: list[float] = []

    def trained(self: Any, batch: Any, number: int) -> Any:
        return (hvd.rank() + 1) * self.net.weight.sum()

    def after(self: Any) -> None:
        seen.append(self.net.weight.grad[0, 0].item())

    line = module(training_step=trained, on_after_backward=after)
    line.configure_optimizers = lambda: torch.optim.SGD(line.parameters(), lr=RATE)
    trainer(limit_train_batches=2).fit(line, loader())
    return seen


def test_a_hook_sees_averaged_gradients(ranks: RankPool) -> None:
    found = ranks.run(hooked)
    assert found == [[(len(found) + 1) / 2] * 2] * len(found)


def without_a_loss() -> None:
    """Rank 0 steps in the second batch without a backward pass, the others with one."""
    import torch

    import hvd_kernel.torch as hvd

    rank, size = hvd.rank(), hvd.size()

    def begun(self: Any, stage: str) -> None:
        self.automatic_optimization = False

    def trained(self: Any, batch: Any, number: int) -> None:
        self.optimizers().zero_grad()
        if number == 0 or rank != 0:
            self.manual_backward((rank + 1) * self.net.weight.sum())
        self.optimizers().step()

    line = module(setup=begun, training_step=trained)
    line.configure_optimizers = lambda: torch.optim.SGD(line.parameters(), lr=RATE)
    trainer(limit_train_batches=2).fit(line, loader())
    mean = (size + 1) / 2
    same(line.net.weight.detach(), torch.full((1, 2), 0.25 - RATE * (mean + mean - 1 / size)).double())


def test_a_rank_without_a_backward_pass(ranks: RankPool) -> None:
    ranks.run(without_a_loss)


def normalised() -> None:
    import torch

    import hvd_kernel.torch as hvd

    def begun(self: Any, stage: str) -> None:
        self.norm = torch.nn.BatchNorm1d(2, momentum=1.0, affine=False).double()

    line = module(setup=begun, training_step=lambda self, batch, _: self.net(self.norm(batch[0])).mean())
    trainer(sync_batchnorm=True, limit_train_batches=1).fit(line, loader())
    first = torch.stack([table()[i][0] for i in range(BATCH)])
    torch.testing.assert_close(line.norm.running_mean, first.mean(0), rtol=0, atol=1e-12)
    torch.testing.assert_close(line.norm.running_var, first.var(0), rtol=0, atol=1e-12)
    same(hvd.broadcast(line.norm.running_var, 0), line.norm.running_var)


def test_batch_normalisation_over_all_ranks(ranks: RankPool) -> None:
    ranks.run(normalised)


def other_optimizers(kind: str) -> list[float]:
    import torch

    import hvd_kernel.torch as hvd
    from hvd_kernel.integrations.lightning import HorovodStrategy

    options = {"adasum": {"op": hvd.Adasum}, "bf16": {"compression": hvd.Compression.bf16}}.get(kind, {})
    line = module()
    if kind == "LBFGS":
        line.configure_optimizers = lambda: torch.optim.LBFGS(line.parameters(), line_search_fn="strong_wolfe")
    trainer(strategy=HorovodStrategy(**options), max_epochs=2).fit(line, loader())
    with torch.no_grad():
        left = ((line.net(table()[:][0]) - table()[:][1]) ** 2).mean().item()
    assert left < 1.0, "it learns"
    if kind == "LBFGS":
        assert left < 1e-6, "it is solved"
    return [weight for p in line.parameters() for weight in p.flatten().tolist()]


@pytest.mark.parametrize("kind", ["LBFGS", "adasum", "bf16"])
def test_optimizers_and_their_options(ranks: RankPool, kind: str) -> None:
    found = ranks.run(other_optimizers, kind)
    assert all(each == found[0] for each in found)


def older_name() -> None:
    """Run the same for imports of pytorch_lightning, whose classes differ."""
    import pytorch_lightning
    import torch

    from hvd_kernel.integrations.pytorch_lightning import HorovodStrategy

    class Line(pytorch_lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = module().net

        def training_step(self, batch: Any, _number: int) -> Any:
            return ((self.net(batch[0]) - batch[1]) ** 2).mean() / 4

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=RATE, momentum=0.5)

    line = Line()
    made = pytorch_lightning.Trainer(
        strategy=HorovodStrategy(), max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False
    )
    made.fit(line, loader())
    everywhere(line.net, alone())


def test_pytorch_lightning(ranks: RankPool) -> None:
    ranks.run(older_name)
