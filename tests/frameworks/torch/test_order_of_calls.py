"""The order of calls that users of DistributedDataParallel write: after backward a gradient is the mean over the ranks.

Terms.
  alone   one process that computes every rank's gradients and takes the plain optimizer's step with their mean
  trial   a model, an optimizer and a training loop drawn from a seed, the same on all ranks
"""

from __future__ import annotations

from typing import Any

import pytest
from hvdtest.exact import raises, same
from hvdtest.launch import RankPool
from hvdtest.lazy import hvd, torch
from hvdtest.pools import layouts

pytestmark = pytest.mark.mp


layout = layouts((2, "shm"), nightly=((4, "shm"), (3, "tcp")))


def net_of(draw: Any) -> Any:
    """A model with a parameter that some ranks use, and maybe one that none does."""
    torch.manual_seed(draw.randrange(1000))
    net = torch.nn.ModuleDict(
        {"first": torch.nn.Linear(3, 4), "second": torch.nn.Linear(4, 4), "last": torch.nn.Linear(4, 2)}
    ).double()
    net.register_parameter("some", torch.nn.Parameter(torch.ones(2, dtype=torch.float64)))
    if draw.random() < 0.5:
        net.register_parameter("never", torch.nn.Parameter(torch.ones(2, dtype=torch.float64)))
    return net


def loss_of(net: Any, step: int, rank: int, some: set[int]) -> Any:
    data = torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1000 * step + rank))
    output = net["last"](torch.tanh(net["second"](torch.tanh(net["first"](data)))))
    return ((output + net.some) if rank in some else output).square().mean()


class Loop:
    """The steps of a trial's loop, with equal random choices on every rank and in one process."""

    def __init__(self, kind: str, seed: int) -> None:
        import random

        self.kind = kind
        self.draw = random.Random(f"{kind} {seed}")
        self.net_seed = self.draw.random()
        self.passes = self.draw.choice([2, 3]) if kind == "accumulation" else 1
        self.optimizer = self.draw.choice(["SGD", "AdamW"])
        self.to_none = self.draw.random() < 0.7
        self.zeroed_by_model = self.draw.random() < 0.5
        self.buckets = self.draw.choice([None, None, False])

    def plain(self, net: Any) -> Any:
        if self.optimizer == "SGD":
            return torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
        return torch.optim.AdamW(net.parameters(), lr=0.01)

    def run(self, rank: int, size: int, distributed: bool) -> Any:
        import random

        net = net_of(random.Random(self.net_seed))
        optimizer = self.plain(net)
        if distributed:
            optimizer = hvd.DistributedOptimizer(
                optimizer,
                net.named_parameters(),
                backward_passes_per_step=self.passes,
                gradients_in_buckets=self.buckets,
            )
        scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=2, enabled=self.kind == "amp")
        for step in range(6):
            some = {r for r in range(size) if self.draw.random() < 0.6}
            broken = self.draw.choice([None, None, self.draw.randrange(size)]) if self.kind == "amp" else None
            (net if self.zeroed_by_model else optimizer).zero_grad(set_to_none=self.to_none)
            reached: set[Any] = set()
            for number in range(self.passes):
                losses = {
                    r: scaler.scale(loss_of(net, 10 * step + number, r, some) * (float("inf") if r == broken else 1.0))
                    for r in ([rank] if distributed else range(size))
                }
                if distributed:
                    losses[rank].backward()
                else:
                    reached |= add_mean(net, list(losses.values()))
            self.edit(net, optimizer, scaler)
            if not distributed:  # as in Horovod a gradient that no rank has is zero in the step
                for param in net.parameters():
                    if param.grad is None and param not in reached:
                        param.grad = torch.zeros_like(param)
            scaler.step(optimizer)
            scaler.update()
        return net

    def edit(self, net: Any, optimizer: Any, scaler: Any) -> None:
        params = list(net.parameters())
        if self.kind == "amp" and self.draw.random() < 0.7:
            scaler.unscale_(optimizer)
        if self.kind in {"clip", "accumulation"} or (self.kind == "amp" and self.draw.random() < 0.5):
            torch.nn.utils.clip_grad_norm_(params, self.draw.choice([0.01, 0.1, 100.0]))
        if self.kind == "manual edits":
            for param in params:
                edit = self.draw.randrange(6)
                if param.grad is None:
                    continue
                if edit == 0:
                    param.grad = None
                elif edit == 1:
                    param.grad = param.grad * 0.5 + param.detach()
                elif edit == 2:
                    param.grad.data = param.grad.sign()
                elif edit == 3:
                    param.grad.mul_(0.5).add_(param.detach(), alpha=0.1)


def add_mean(net: Any, losses: list[Any]) -> set[Any]:
    """Add the mean of the ranks' gradients to ``grad``; return the parameters for which any rank has a gradient."""
    params = list(net.parameters())
    reached = set()
    of_ranks = [torch.autograd.grad(loss, params, allow_unused=True) for loss in losses]
    for param, gradients in zip(params, zip(*of_ranks, strict=True), strict=True):
        present = [gradient for gradient in gradients if gradient is not None]
        if present:
            reached.add(param)
            mean = torch.stack(present).sum(0) / len(losses)
            param.grad = mean if param.grad is None else param.grad + mean
    return reached


def trials(kind: str, count: int) -> int:
    """Parameters are the same bits on all ranks, and those of one process but for the order of sums."""
    for seed in range(count):
        mine = Loop(kind, seed).run(hvd.rank(), hvd.size(), distributed=True)
        alone = Loop(kind, seed).run(0, hvd.size(), distributed=False)
        for (name, p), q in zip(mine.named_parameters(), alone.parameters(), strict=True):
            what = f"{kind}, trial {seed}: {name}"
            same(hvd.broadcast(p.detach(), 0, name="same"), p.detach(), what)
            torch.testing.assert_close(p, q, rtol=1e-9, atol=1e-11, msg=lambda text, w=what: f"{w}: {text}")
    return count


@pytest.mark.parametrize("count", [4, pytest.param(100, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("kind", ["clip", "amp", "accumulation", "manual edits"])
def test_trials_equal_one_process(ranks: RankPool, kind: str, count: int) -> None:
    assert ranks.run(trials, kind, count, timeout=600) == [count] * ranks.np


def ordinary() -> None:
    """The reduced gradient after backward; zero_grad without a step; a step without gradients."""
    rank, size = hvd.rank(), hvd.size()
    mean = (size + 1) / 2
    w = torch.nn.Parameter(torch.zeros(3))
    net = torch.nn.ParameterList([w])
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([w], lr=1.0, momentum=0.5), [("w", w)])
    for zero in (optimizer.zero_grad, net.zero_grad) * 2:
        for to_none in (True, False):
            zero(set_to_none=to_none)
            (w * (rank + 1.0)).sum().backward()  # a round that no step ends: a GradScaler found an overflow
            same(w.grad, torch.full((3,), mean), f"{zero} {to_none}")
    same(w.detach(), torch.zeros(3), "no step was taken")
    net.zero_grad()
    optimizer.step()
    same(w.detach(), torch.zeros(3), "nothing to step by")
    (w * (rank + 1.0)).sum().backward()
    net.zero_grad()
    optimizer.step()
    assert w.grad is None
    same(w.detach(), torch.zeros(3), "what was dropped is not used")
    (w * (rank + 1.0)).sum().backward()
    with optimizer.skip_synchronize():  # nothing is left to synchronize
        optimizer.step()
    same(w.detach(), torch.full((3,), -mean))
    net.zero_grad()
    (w * (rank + 1.0)).sum().backward()
    if size > 1:
        text = "got a gradient in more than 1 backward pass. Call optimizer.step() or optimizer.zero_grad() first"
        raises(AssertionError, text, w.sum().backward)


def test_gradients_are_reduced_after_backward(ranks: RankPool) -> None:
    ranks.run(ordinary)


def shared_weight() -> None:
    """One slot for a parameter with several names, whatever the options; its first name is used."""
    rank, size = hvd.rank(), hvd.size()
    everyone = float(sum(range(1, size + 1)))
    for options, factor in (
        ({"op": hvd.Sum}, 1.0),
        ({"op": hvd.Sum, "groups": 1}, 1.0),
        ({"gradient_predivide_factor": 2.0}, 1.0 / size),
        ({"op": hvd.Sum, "sparse_as_dense": True}, 1.0),
        ({"op": hvd.Sum, "backward_passes_per_step": 2}, 2.0),
        ({"op": hvd.Sum, "compression": hvd.Compression.fp16}, 1.0),
        ({"op": hvd.Sum, "process_set": hvd.global_process_set}, 1.0),
    ):
        w, v = torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.zeros(2))
        named = [("enc.w", w), ("enc.v", v), ("dec.w", w), ("dec.v", v)]
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([w, v], lr=1.0), named, **options)
        assert [slot.name for slot in optimizer._reducer.slots] == ["enc.w", "enc.v"]
        for _ in range(options.get("backward_passes_per_step", 1)):
            ((w + v) * (rank + 1.0)).sum().backward()
        optimizer.step()
        same(w.detach(), torch.full((2,), -everyone * factor), str(options))
        same(v.detach(), torch.full((2,), -everyone * factor), str(options))
    table = torch.nn.Embedding(4, 2, sparse=True)
    torch.nn.init.zeros_(table.weight)
    named = [("in", table.weight), ("out", table.weight)]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(table.parameters(), lr=1.0), named, op=hvd.Sum)
    table(torch.tensor([1])).sum().backward()
    optimizer.step()
    same(table.weight[1].detach(), torch.full((2,), -float(size)), "sparse")
    w = torch.nn.Parameter(torch.zeros(2))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([w], lr=1.0), [("a", w), ("b", w)], op=hvd.Adasum)
    w.sum().backward()
    optimizer.step()
    torch.testing.assert_close(w.detach(), torch.full((2,), -1.0), rtol=4e-7, atol=0)


def test_shared_weight_with_two_names(ranks: RankPool) -> None:
    ranks.run(shared_weight)


def kept() -> bool:
    """Gradients that the user keeps retain their values; a gradient in other memory stays there."""
    rank, size = hvd.rank(), hvd.size()
    mean = (size + 1) / 2

    def made(count: int, lr: float = 0.0) -> tuple[list[Any], Any]:
        params = [torch.nn.Parameter(torch.zeros(3)) for _ in range(count)]
        return params, hvd.DistributedOptimizer(torch.optim.SGD(params, lr=lr))

    ways = {
        "gradient": lambda p: p.grad,
        "view": lambda p: p.grad.view(-1)[1:],
        "detached": lambda p: p.grad.detach(),
        "array": lambda p: p.grad.numpy(),
    }
    for way, keep in ways.items():
        (p, q), optimizer = made(2)
        held = []
        for step in range(5):
            optimizer.zero_grad()
            ((p + q) * (step * (rank + 1.0))).sum().backward()
            held.append(keep(p))
            optimizer.step()
        assert [float(each[0]) for each in held] == [step * mean for step in range(5)], way
    (p,), optimizer = made(1, lr=1.0)
    for step in range(1, 6):  # momentum by hand
        old = p.grad
        optimizer.zero_grad()
        (p * float(step)).sum().backward()
        if old is not None:
            p.grad.add_(old, alpha=0.5)
        optimizer.step()
    same(p.detach(), torch.full((3,), -21.9375), "momentum by hand")
    for to_none in (True, False):  # swapped gradients
        (p, q), optimizer = made(2, lr=1.0)
        a, b = (torch.zeros(3, requires_grad=True) for _ in range(2))
        plain = torch.optim.SGD([a, b], lr=1.0)
        for _ in range(5):
            optimizer.zero_grad(set_to_none=to_none)
            plain.zero_grad(set_to_none=to_none)
            (p * (rank + 1.0) + 10 * q).sum().backward()
            (a * mean + 10 * b).sum().backward()
            p.grad, q.grad = q.grad, p.grad
            a.grad, b.grad = b.grad, a.grad
            optimizer.step()
            plain.step()
        same(p.detach(), a.detach(), f"swapped, {to_none}")
        same(q.detach(), b.detach(), f"swapped, {to_none}")
    (p, q), optimizer = made(2)
    flat = torch.zeros(6)
    for step in range(5):  # gradients that are parts of the user's own tensor
        if not step:
            p.grad, q.grad = flat[:3], flat[3:]
        flat.zero_()
        ((p + 2 * q) * (step * (rank + 1.0))).sum().backward()
        same(flat, torch.tensor([step * mean] * 3 + [2 * step * mean] * 3), f"step {step}")
        optimizer.step()
    (p,), optimizer = made(1)
    for _ in range(4):
        optimizer.zero_grad()
        p.sum().backward()
        optimizer.step()
    return bool(p.grad.data_ptr() == optimizer._reducer.slots[0].home.tensor.data_ptr()) if size > 1 else True


@pytest.mark.parametrize("layout", [(2, "shm"), pytest.param((4, "shm"), marks=pytest.mark.nightly)])
def test_kept_gradients_keep_their_values(ranks: RankPool) -> None:
    assert ranks.run(kept) == [True] * ranks.np


def converted() -> None:
    """A model that is converted, or whose parameters change their shape, after the first steps."""
    rank, size = hvd.rank(), hvd.size()
    mean = (size + 1) / 2
    for dtype in (torch.float64, torch.bfloat16):
        net = torch.nn.Linear(3, 2)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.0), net.named_parameters())
        for step in range(7):
            if step == 3:
                net.to(dtype)
            optimizer.zero_grad(set_to_none=step % 2 == 0)
            net(torch.full((1, 3), rank + 1.0, dtype=net.weight.dtype)).sum().backward()
            same(net.weight.grad, torch.full((2, 3), mean, dtype=net.weight.dtype), f"step {step}")
            optimizer.step()
        homes = [slot.home for slot in optimizer._reducer.slots]
        assert all(home is None or home.tensor.dtype == dtype for home in homes)
        assert size == 1 or ranks_share() is (homes[0] is not None)
    w = torch.nn.Parameter(torch.zeros(4))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([w], lr=1.0), [("w", w)])
    for step in range(7):
        if step == 3:
            w.data = torch.zeros(2, 3)
        optimizer.zero_grad()
        (w * (rank + 1.0)).sum().backward()
        same(w.grad, torch.full(w.shape, mean), f"step {step}")
        optimizer.step()


def ranks_share() -> bool:
    """Tell whether these ranks have shared memory."""
    try:
        hvd.shared_empty((1,))
    except hvd.HorovodInternalError:
        return False
    return True


def test_converted_parameters(ranks: RankPool) -> None:
    ranks.run(converted)


def differing() -> None:
    """Graphs that differ between ranks, separate losses, checkpoints, other threads, parameters unfrozen later."""
    import threading

    from torch.utils.checkpoint import checkpoint

    rank, size = hvd.rank(), hvd.size()
    mean = (size + 1) / 2

    def made(count: int, **options: Any) -> tuple[list[Any], Any]:
        params = [torch.nn.Parameter(torch.zeros(3)) for _ in range(count)]
        named = [(f"p{number}", param) for number, param in enumerate(params)]
        return params, hvd.DistributedOptimizer(torch.optim.SGD(params, lr=1.0), named, **options)

    for options in ({}, {"groups": 1}, {"gradients_in_buckets": False}):
        (p, q, never), optimizer = made(3, **options)
        for step in range(4):  # only one rank reaches q; none reaches the last one
            optimizer.zero_grad()
            (p * (rank + 1.0) + (q if rank == step % size else 0.0)).sum().backward()
            same(p.grad, torch.full((3,), mean), f"{options} {step}")
            same(q.grad, torch.full((3,), 1.0 / size), f"{options} {step}")
            assert never.grad is None
            torch.nn.utils.clip_grad_norm_([p, q, never], 0.5)
            optimizer.step()
            same(hvd.broadcast(p.detach(), 0, name="same"), p.detach(), "the same on every rank")
        (p, q, r), optimizer = made(3, **options)
        for step in range(4):  # two losses, and a rank that skips one of them
            optimizer.zero_grad()
            (p * (rank + 1.0)).sum().backward()
            same(p.grad, torch.full((3,), mean), f"{options} {step}")
            if rank == 0 or step < 3:
                ((q + r) * (rank + 1.0)).sum().backward()
                same(q.grad, torch.full((3,), mean if step < 3 else 1.0 / size), f"{options} {step}")
            optimizer.step()
            same(hvd.broadcast(r.detach(), 0, name="same"), r.detach(), "the same on every rank")
        same(r.detach(), torch.full((3,), -(3 * mean + 1.0 / size)))
    (p, q), optimizer = made(2)
    for step in range(4):  # a rank without any batch
        optimizer.zero_grad()
        if step < 3 or rank == 0:
            ((p + q) * (rank + 1.0)).sum().backward()
        optimizer.step()
    torch.testing.assert_close(p.detach(), torch.full((3,), -(3 * mean + 1.0 / size)))
    (p, q, r), optimizer = made(3)
    for _ in range(3):  # backward within backward
        optimizer.zero_grad()
        hidden = checkpoint(
            lambda x: checkpoint(lambda y: y + q, x, use_reentrant=True) * 1.0 + r, p + 0.0, use_reentrant=True
        )
        (hidden * (rank + 1.0)).sum().backward()
        for param in (p, q, r):
            same(param.grad, torch.full((3,), mean), "checkpointed")
        optimizer.step()
    optimizer.zero_grad()
    loss = ((p + q + r) * (rank + 1.0)).sum()
    thread = threading.Thread(target=loss.backward)
    thread.start()
    thread.join()
    same(p.grad, torch.full((3,), mean), "another thread")
    optimizer.zero_grad()
    loss = ((p + q + r) * (rank + 1.0)).sum()
    for _ in range(2):
        optimizer.zero_grad()
        loss.backward(retain_graph=True)
        same(p.grad, torch.full((3,), mean), "a retained graph")
    frozen, trained = (torch.nn.Parameter(torch.zeros(3)) for _ in range(2))
    frozen.requires_grad_(False)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([frozen, trained], lr=1.0))
    (trained * (rank + 1.0)).sum().backward()
    optimizer.step()
    frozen.requires_grad_(True)
    trained.requires_grad_(False)
    optimizer.zero_grad()
    (frozen * (rank + 1.0)).sum().backward()
    same(frozen.grad, torch.full((3,), mean), "unfrozen")
    optimizer.step()
    same(frozen.detach(), torch.full((3,), -mean), "unfrozen")
    same(trained.detach(), torch.full((3,), -mean), "frozen")


def test_differing_graphs(ranks: RankPool) -> None:
    ranks.run(differing)


def edited() -> None:
    """Change a gradient while others are being reduced: every rank gets an error that names it."""
    rank, size = hvd.rank(), hvd.size()
    mean = (size + 1) / 2

    def written(param: Any) -> None:
        param.grad.mul_(0.5)

    def replaced(param: Any) -> None:
        param.grad = param.grad * 0.5

    for options in ({}, {"groups": 1}, {"compression": hvd.Compression.fp16}):
        for change in (written, replaced):
            params = [torch.nn.Parameter(torch.zeros(3)) for _ in range(2)]
            named = [("first", params[0]), ("second", params[1])]
            optimizer = hvd.DistributedOptimizer(torch.optim.SGD(params, lr=1.0), named, **options)
            if rank == size - 1:  # registered after the optimizer's: its gradient is on its way
                hook = params[0].register_post_accumulate_grad_hook(change)
            if size > 1:
                text = "The gradient of 'first' was changed before all gradients of this step were reduced"
                raises(RuntimeError, text, ((params[0] + params[1]) * 2.0).sum().backward)
            if rank == size - 1:
                hook.remove()
            optimizer.zero_grad()
            ((params[0] + params[1]) * (rank + 1.0)).sum().backward()
            same(params[0].grad, torch.full((3,), mean), "after the error")
    p, q = (torch.nn.Parameter(torch.zeros(3)) for _ in range(2))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD([p, q], lr=1.0), [("p", p), ("q", q)], backward_passes_per_step=2
    )
    (p * (rank + 1.0)).sum().backward()
    ((p + q) * (rank + 1.0)).sum().backward()
    same(p.grad, torch.full((3,), 2 * mean))
    same(q.grad, torch.full((3,), rank + 1.0), "this rank's own: it waits for another pass")
    torch.nn.utils.clip_grad_norm_([p, q], 0.1)
    if size > 1:
        raises(RuntimeError, "The gradient of 'p' was changed before all gradients", optimizer.step)
    optimizer.zero_grad()
    (p * (rank + 1.0)).sum().backward()
    ((p + q) * (rank + 1.0)).sum().backward()
    optimizer.synchronize()
    same(q.grad, torch.full((3,), mean))
    p.grad.mul_(0.5)
    with optimizer.skip_synchronize():
        optimizer.step()
    same(p.detach(), torch.full((3,), -mean))
    optimizer.zero_grad()
    hook = p.register_hook(lambda grad: grad.clamp(max=1.0))  # before autograd adds it to grad
    for _ in range(2):
        ((p + q) * (rank + 1.0)).sum().backward()
    same(p.grad, torch.full((3,), 2.0))


def test_changes_of_gradients_in_flight(ranks: RankPool) -> None:
    ranks.run(edited)


def mixed_kinds() -> None:
    """In the first step a gradient is sparse on rank 0 only: an error on every rank."""
    table = torch.nn.Parameter(torch.zeros(4, 2))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([table], lr=1.0), [("table", table)])
    loss = torch.nn.functional.embedding(torch.tensor([1]), table, sparse=hvd.rank() == 0).sum()
    if hvd.size() > 1:
        raises(RuntimeError, "The gradient of 'table' is sparse on some ranks and dense on others", loss.backward)
    del optimizer
    hvd.shutdown()
    hvd.init()


def test_differing_kinds_in_the_first_step(ranks: RankPool) -> None:
    ranks.run(mixed_kinds)


def failed() -> None:
    """A failed backward pass: the next one works, also with a new communicator."""
    rank, size = hvd.rank(), hvd.size()

    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            raise KeyError("in backward")

    p, q = (torch.nn.Parameter(torch.zeros(3)) for _ in range(2))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([p, q], lr=1.0), [("p", p), ("q", q)])
    raises(KeyError, "in backward", ((Fails.apply(p) + 0.0) * (rank + 1.0) + q).sum().backward)
    if size > 1:
        raises(AssertionError, "gradients are still being reduced", optimizer.zero_grad)
    optimizer.step()  # ends the round
    optimizer.zero_grad()
    ((p + q) * (rank + 1.0)).sum().backward()
    same(p.grad, torch.full((3,), (size + 1) / 2))
    optimizer.zero_grad()
    raises(KeyError, "in backward", ((Fails.apply(p) + 0.0) * (rank + 1.0) + q).sum().backward)
    hvd.shutdown()
    hvd.init()
    optimizer.zero_grad()
    ((p + q) * (rank + 1.0)).sum().backward()
    same(p.grad, torch.full((3,), (size + 1) / 2))
    optimizer.step()


def test_backward_that_failed(ranks: RankPool) -> None:
    ranks.run(failed)


def interrupted() -> None:
    """An interrupt ends the wait, not the operations: the next round waits for them, and its values are right."""
    from hvd_kernel.torch import reducer

    rank, size, numbers = hvd.rank(), hvd.size(), 1 << 24  # 64 MiB: in flight long after the interrupt
    p = torch.nn.Parameter(torch.zeros(numbers))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([p], lr=1.0), [("p", p)])
    wait = reducer.synchronize
    for set_to_none in (True, False):
        presses = iter([KeyboardInterrupt("pressed")])

        def pressed(handle: int, presses: Any = presses) -> Any:
            for press in presses:
                raise press
            return wait(handle)

        reducer.synchronize = pressed
        try:
            raises(KeyboardInterrupt, "pressed", (p * 100.0).sum().backward)
            optimizer.zero_grad(set_to_none=set_to_none)
            (p * (rank + 1.0)).sum().backward()
        finally:
            reducer.synchronize = wait
        same(p.grad, torch.full((numbers,), (size + 1) / 2))
        optimizer.zero_grad()


def test_interrupt_of_a_backward_pass(ranks: RankPool) -> None:
    ranks.run(interrupted)
