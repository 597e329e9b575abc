"""DistributedOptimizer on real ranks, beyond the trainings of frameworks/conformance: when it reduces, and its class."""

from __future__ import annotations

import pytest
from hvdtest.exact import raises, same
from hvdtest.gradients import batch, close, local_gradients, mean, model_of
from hvdtest.launch import RankPool
from hvdtest.lazy import hvd, torch

pytestmark = pytest.mark.mp


def like_its_class() -> None:
    import warnings

    model = model_of()
    plain = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    model(batch(0)).sum().backward()
    plain.step()
    plain.zero_grad()
    optimizer = hvd.DistributedOptimizer(plain, named_parameters=model.named_parameters())
    assert isinstance(optimizer, torch.optim.SGD)
    assert type(optimizer).__name__ == "SGD"
    assert type(optimizer).__module__ == "hvd_kernel.torch.optimizer"
    assert optimizer.state_dict()["state"][0]["momentum_buffer"] is not None, "a state that was there is kept"
    assert repr(optimizer).startswith("SGD")
    assert (optimizer.op, optimizer.gradient_predivide_factor, optimizer.backward_passes_per_step) == (
        hvd.Average,
        1.0,
        1,
    )
    assert optimizer.process_set is hvd.global_process_set
    calls = []
    optimizer.register_step_pre_hook(lambda *_: calls.append("pre"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
        older = torch.optim.lr_scheduler.StepLR(plain, step_size=10**6)
        for _ in range(2):
            model(batch(0)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
            older.step()
    assert calls == ["pre", "pre"], "step hooks run once per step"
    assert optimizer.param_groups[0]["lr"] == 0.125
    assert all(p.grad is None for p in model.parameters())
    model(batch(0)).sum().backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    assert all(p.grad is not None and not p.grad.any() for p in model.parameters())
    saved = optimizer.state_dict()
    optimizer.load_state_dict(saved)
    raises(ValueError, "DistributedOptimizer already", hvd.DistributedOptimizer, optimizer)


def test_is_like_its_class(ranks: RankPool) -> None:
    ranks.run(like_its_class)


def passes() -> None:
    """The number of passes changes between steps, and a step may be called before all passes."""
    model = model_of()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), backward_passes_per_step=2)
    optimizer.set_backward_passes_per_step(1)
    optimizer.zero_grad()
    model(batch(hvd.rank())).square().sum().backward()
    optimizer.synchronize()
    for p, want in zip(model.parameters(), mean([local_gradients(r) for r in range(hvd.size())]), strict=True):
        close(p.grad, want)
    optimizer.set_backward_passes_per_step(3)
    optimizer.zero_grad()
    model(batch(hvd.rank())).square().sum().backward()
    optimizer.synchronize()  # before all passes are done: what is there is reduced
    for p, want in zip(model.parameters(), mean([local_gradients(r) for r in range(hvd.size())]), strict=True):
        close(p.grad, want)
    raises(ValueError, "backward_passes_per_step must be > 0", optimizer.set_backward_passes_per_step, 0)


def test_backward_passes_per_step(ranks: RankPool) -> None:
    ranks.run(passes)


def uneven() -> None:
    """A parameter that only some ranks' graphs reach, one that is frozen, one frozen later."""
    rank, size = hvd.rank(), hvd.size()
    a, b, c, d = (torch.nn.Parameter(torch.full((3,), float(i))) for i in range(4))
    c.requires_grad_(False)
    plain = torch.optim.SGD([a, b, c, d], lr=1.0, weight_decay=0.5)
    optimizer = hvd.DistributedOptimizer(plain, named_parameters=[("a", a), ("b", b), ("c", c), ("d", d)])
    (a.sum() * (rank + 1) + (b.sum() if rank == 0 else 0.0) + d.sum()).backward()
    optimizer.synchronize()
    same(a.grad, torch.full((3,), (size + 1) / 2))
    same(b.grad, torch.full((3,), 1.0) / size)
    assert c.grad is None
    with optimizer.skip_synchronize():
        optimizer.step()
    optimizer.zero_grad()
    d.requires_grad_(False)
    frozen = d.detach().clone()
    a.sum().backward()
    optimizer.step()
    same(c.detach(), torch.full((3,), 2.0), "frozen before")
    same(d.detach(), frozen, "frozen later: no weight decay either")


def test_unused_and_frozen_parameters(ranks: RankPool) -> None:
    ranks.run(uneven)


def overlapping() -> bool:
    """The last layer's gradient is in flight before the first layer's is computed."""
    from hvd_kernel.core import handles

    enqueued_before_first_layer = []

    class First(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: object) -> object:
            return x.clone()

        @staticmethod
        def backward(ctx: object, grad: object) -> object:
            enqueued_before_first_layer.append(len(handles._live))
            return grad

    model = model_of()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    hidden = First.apply(model[0](batch(hvd.rank())))
    model[2](model[1](hidden)).sum().backward()
    optimizer.step()
    return enqueued_before_first_layer == [2]


def test_reduction_overlaps_backward(ranks: RankPool) -> None:
    assert ranks.run(overlapping) == [ranks.np > 1] * ranks.np


def rewrapped() -> None:
    """A cell that creates the optimizer runs again: the newest one reduces, the hooks of older ones are removed."""
    model = model_of()
    kept = []
    for _ in range(3):
        plain = torch.optim.SGD(model.parameters(), lr=0.0)
        kept.append(hvd.DistributedOptimizer(plain, named_parameters=model.named_parameters()))
        for _ in range(2):
            kept[-1].zero_grad()
            model(batch(hvd.rank())).square().sum().backward()
            kept[-1].synchronize()
        for p, want in zip(model.parameters(), mean([local_gradients(r) for r in range(hvd.size())]), strict=True):
            close(p.grad, want)
        with kept[-1].skip_synchronize():
            kept[-1].step()


def test_wrapping_again(ranks: RankPool) -> None:
    ranks.run(rewrapped)


def counted() -> list[int]:
    """Steps and samples are counted without user code."""
    from hvd_kernel.core import metrics

    metrics.reset()
    model = model_of()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    other = torch.nn.Linear(3, 3).double()
    for number in range(4):
        optimizer.zero_grad()
        other(batch(0)[:3])
        model(batch(hvd.rank(), number)).sum().backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        model(batch(0))
    hvd.log(loss=torch.tensor(0.25), accuracy=0.5)
    assert metrics.pop_logged().latest == {"loss": 0.25, "accuracy": 0.5}
    seen = metrics.snapshot()
    return [seen.step, seen.samples]


def test_steps_and_samples(ranks: RankPool) -> None:
    assert ranks.run(counted) == [[4, 20]] * ranks.np


def reset_between_cells() -> None:
    """The communicator is reset between two cells, as after a failure: an existing optimizer continues."""
    import contextlib

    model = model_of()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    hvd.barrier()
    if hvd.rank() == 0:  # its peers raised before their backward
        with contextlib.suppress(hvd.HorovodInternalError):
            model(batch(0)).sum().backward()
    hvd.shutdown()
    hvd.init()
    optimizer.zero_grad()
    model(batch(hvd.rank())).square().sum().backward()
    optimizer.synchronize()
    for p, want in zip(model.parameters(), mean([local_gradients(r) for r in range(hvd.size())]), strict=True):
        close(p.grad, want)
    with optimizer.skip_synchronize():
        optimizer.step()


def test_optimizer_survives_a_reset(ranks: RankPool) -> None:
    ranks.run(reset_between_cells)
