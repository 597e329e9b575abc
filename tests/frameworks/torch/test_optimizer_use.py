"""DistributedOptimizer as it is used: closures, clipping, GradScaler, parameters that are added later."""

from __future__ import annotations

import pytest
from hvdtest.exact import raises, same
from hvdtest.gradients import batch, close, local_gradients, mean, model_of
from hvdtest.launch import RankPool
from hvdtest.lazy import hvd, torch
from hvdtest.pools import layouts

pytestmark = pytest.mark.mp


layout = layouts((2, "shm"), nightly=((1, "auto"), (3, "tcp"), (4, "shm")))


def closed_over() -> None:
    """Gradients of a closure are reduced before the step uses them, also if the optimizer calls it several times."""
    rank, size = hvd.rank(), hvd.size()

    def run(kind: object, distributed: bool, **options: object) -> object:
        model = model_of()
        optimizer = kind(model.parameters(), **options)
        if distributed:
            optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
        data = batch(rank) if distributed else torch.cat([batch(r) for r in range(size)])

        def closure() -> object:
            optimizer.zero_grad()
            loss = model(data).square().mean()
            loss.backward()
            return loss

        first = optimizer.step(closure)
        last = [optimizer.step(closure) for _ in range(2)][-1]
        assert last < first
        return model

    for kind, options in (
        (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
        (torch.optim.LBFGS, {"lr": 0.5, "max_iter": 5}),
        (torch.optim.LBFGS, {"line_search_fn": "strong_wolfe", "max_iter": 4}),
    ):
        mine, alone = run(kind, True, **options), run(kind, False, **options)
        for p, q in zip(mine.parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(p, q, rtol=1e-9, atol=1e-11, msg=lambda text, k=kind: f"{k.__name__}: {text}")
            same(hvd.broadcast(p.detach(), 0, name="same"), p.detach(), "the same on every rank")


def test_closures(ranks: RankPool) -> None:
    ranks.run(closed_over)


def grown() -> None:
    """Parameters that are unfrozen or added after the optimizer was created are reduced like the others."""
    rank, size = hvd.rank(), hvd.size()
    a, b, c = (torch.nn.Parameter(torch.zeros(2, dtype=torch.float64)) for _ in range(3))
    b.requires_grad_(False)
    plain = torch.optim.SGD([a, b], lr=1.0)
    optimizer = hvd.DistributedOptimizer(plain, named_parameters=[("a", a), ("b", b)])
    mean = (size + 1) / 2
    for step in range(4):
        optimizer.zero_grad()
        if step == 1:
            b.requires_grad_(True)
        if step == 2:
            optimizer.add_param_group({"params": [c], "lr": 0.5})
        loss = a.sum() + (b.sum() if step > 0 else 0.0) + (c.sum() if step > 1 else 0.0)
        (loss * (rank + 1)).backward()
        optimizer.step()
        close(a.detach(), torch.full_like(a, -mean * (step + 1)), "there from the start")
        close(b.detach(), torch.full_like(b, -mean * step), "unfrozen in step 1")
        close(c.detach(), torch.full_like(c, -0.5 * mean * max(step - 1, 0)), "added in step 2")
    if size > 1:
        c.sum().backward()
        raises(AssertionError, "Gradients were computed more than backward_passes_per_step", c.sum().backward)
        optimizer.synchronize()


def test_parameters_added_later(ranks: RankPool) -> None:
    ranks.run(grown)


def clipped() -> None:
    """Clipping between synchronize and step uses the reduced gradients: one norm on all ranks."""
    model = model_of()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0))
    wanted = mean([local_gradients(r) for r in range(hvd.size())])
    whole = torch.cat([w.flatten() for w in wanted]).norm()
    starts = [p.detach().clone() for p in model.parameters()]
    model(batch(hvd.rank())).square().sum().backward()
    optimizer.synchronize()
    close(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01), whole, "norm")
    with optimizer.skip_synchronize():
        optimizer.step()
    for p, start, want in zip(model.parameters(), starts, wanted, strict=True):
        torch.testing.assert_close(p.detach(), start - want * (0.01 / (whole + 1e-6)), rtol=1e-10, atol=1e-12)


def test_clipping(ranks: RankPool) -> None:
    ranks.run(clipped)


def twice() -> None:
    """A step after synchronize reduces again, and warns once; a new round does not warn."""
    import warnings

    from hvd_kernel.torch.optimizer import SYNCHRONIZED_TWICE

    rank, size = hvd.rank(), hvd.size()
    w = torch.nn.Parameter(torch.zeros(2, dtype=torch.float64))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([w], lr=1.0), op=hvd.Sum)
    (w.sum() * (rank + 1)).backward()
    optimizer.synchronize()
    whole = size * (size + 1) / 2
    close(w.grad, torch.full_like(w, whole))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        optimizer.step()
    assert [(w.category, str(w.message)) for w in caught] == [(UserWarning, SYNCHRONIZED_TWICE)]
    close(w.grad, torch.full_like(w, whole * size), "reduced again")
    optimizer.zero_grad()
    w.sum().backward()
    optimizer.synchronize()  # and no step: a GradScaler found an overflow
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.zero_grad()
        w.sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        w.sum().backward()
        optimizer.load_state_dict(optimizer.state_dict())  # forgets the round that had begun
        optimizer.zero_grad()
        w.sum().backward()
        optimizer.step()


def test_synchronize_twice(ranks: RankPool) -> None:
    ranks.run(twice)


def scaled_by_amp() -> None:
    """A GradScaler between synchronize and step: all ranks make the step, or none does after one rank's overflow."""
    rank, size = hvd.rank(), hvd.size()
    model = model_of().float()
    plain = model_of().float()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    reference = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2)
    for step in range(5):
        overflow = step == 2
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=step == 4):
            loss = model(batch(rank, step).float()).square().mean()
        loss = loss * (float("inf") if overflow and rank == size - 1 else 1.0)
        scaler.scale(loss).backward()
        optimizer.synchronize()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        before = [p.detach().clone() for p in model.parameters()]
        with optimizer.skip_synchronize():
            scaler.step(optimizer)
        scaler.update()
        assert scaler.get_scale() == (1024.0 if step < 2 else 512.0), "all ranks alike"
        moved = any(not torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))
        assert moved is not overflow
        if step < 2:
            reference.zero_grad()
            plain(torch.cat([batch(r, step) for r in range(size)]).float()).square().mean().backward()
            reference.step()
            for p, q in zip(model.parameters(), plain.parameters(), strict=True):
                torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)
        for p in model.parameters():
            same(hvd.broadcast(p.detach(), 0, name="same"), p.detach(), "the same on every rank")
    scheduler.step()


def resumed() -> None:
    """A scheduler created before the optimizer was wrapped still sets its learning rate after a state was loaded."""
    w = torch.nn.Parameter(torch.zeros(2))
    plain = torch.optim.SGD([w], lr=1.0, momentum=0.5)
    scheduler = torch.optim.lr_scheduler.StepLR(plain, step_size=1, gamma=0.5)
    optimizer = hvd.DistributedOptimizer(plain, op=hvd.Sum)
    w.sum().backward()
    optimizer.step()
    scheduler.step()
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.zero_grad()
    w.sum().backward()
    optimizer.step()
    scheduler.step()
    assert [group["lr"] for group in optimizer.param_groups] == [0.25]
    assert plain.state is optimizer.state


def test_a_scheduler_of_the_plain_optimizer_survives_loading(ranks: RankPool) -> None:
    ranks.run(resumed)


def test_gradient_scaler(ranks: RankPool) -> None:
    ranks.run(scaled_by_amp)


def two_at_once() -> None:
    """Two alternating optimizers, as in a GAN, each freezing the other's parameters meanwhile."""
    rank, size = hvd.rank(), hvd.size()
    maker, judge = torch.nn.Linear(2, 2).double(), torch.nn.Linear(2, 1).double()
    nets = {"maker": maker, "judge": judge}
    for net in nets.values():
        hvd.broadcast_parameters(net.state_dict(), 0)
    made = {
        name: hvd.DistributedOptimizer(
            torch.optim.SGD(net.parameters(), lr=0.1), [(f"{name}.{n}", p) for n, p in net.named_parameters()]
        )
        for name, net in nets.items()
    }
    for turn in range(4):
        name = ("judge", "maker")[turn % 2]
        for other, net in nets.items():
            net.requires_grad_(other == name)
        made[name].zero_grad()
        judge(maker(torch.full((3, 2), float(rank + turn), dtype=torch.float64))).sum().backward()
        before = [p.detach().clone() for p in nets[name].parameters()]
        made[name].step()
        for p, start in zip(nets[name].parameters(), before, strict=True):
            close(p.detach(), start - 0.1 * p.grad)
            same(hvd.broadcast(p.detach(), 0, name="same"), p.detach(), "the same on every rank")
    assert size


def test_optimizers_that_take_turns(ranks: RankPool) -> None:
    ranks.run(two_at_once)
