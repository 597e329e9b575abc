"""DistributedOptimizer(op=Adasum): each rank's own step, combined."""

from __future__ import annotations

import pytest
from hvdtest.exact import raises, same
from hvdtest.launch import RankPool
from hvdtest.lazy import hvd, torch
from hvdtest.pools import layouts

pytestmark = pytest.mark.mp


layout = layouts((2, "shm"), (3, "tcp"), nightly=((1, "auto"),))


def model_of() -> object:
    torch.manual_seed(5)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2)).double()


def batch(rank: int, step: int) -> object:
    return torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(100 * step + rank))


def known_sums() -> None:
    """Steps in different directions add up, equal ones are unchanged."""
    rank, size = hvd.rank(), hvd.size()
    apart, alike = torch.nn.Parameter(torch.zeros(size, 2)), torch.nn.Parameter(torch.ones(4))
    named = [("apart", apart), ("alike", alike)]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([apart, alike], lr=0.5), named, op=hvd.Adasum)
    (apart[rank].sum() * (rank + 1) + alike.sum()).backward()
    optimizer.step()
    want = -0.5 * torch.arange(1.0, size + 1)[:, None].expand(-1, 2)
    same(apart.detach(), want.contiguous(), "orthogonal steps")
    torch.testing.assert_close(alike.detach(), torch.full((4,), 0.5), rtol=4e-7, atol=0)


def test_known_sums(ranks: RankPool) -> None:
    ranks.run(known_sums)


def combined(kind: str) -> None:
    """Take several steps of an optimizer with state: every update is Adasum of the updates of all ranks."""
    rank, size = hvd.rank(), hvd.size()
    compression = {"fp16": hvd.Compression.fp16, "bf16": hvd.Compression.bf16}.get(kind, hvd.Compression.none)
    passes = 2 if kind == "passes" else 1

    def made(params: object) -> object:
        return torch.optim.Adam(params, lr=0.01) if kind != "momentum" else torch.optim.SGD(params, 0.1, momentum=0.9)

    model, shadow = model_of(), model_of()
    optimizer = hvd.DistributedOptimizer(
        made(model.parameters()),
        model.named_parameters(),
        op=hvd.Adasum,
        compression=compression,
        backward_passes_per_step=passes,
    )
    assert type(optimizer).__module__ == "hvd_kernel.torch.optimizer"
    assert isinstance(optimizer, torch.optim.SGD if kind == "momentum" else torch.optim.Adam)
    own = made(shadow.parameters())  # what this rank's step would be
    for step in range(3):
        for net, one in ((model, optimizer), (shadow, own)):
            one.zero_grad()
            for number in range(passes):
                net(batch(rank, 10 * step + number)).square().sum().backward()
            if kind == "clipped":
                torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        starts = [p.detach().clone() for p in shadow.parameters()]
        own.step()
        optimizer.step()
        for p, q, start in zip(model.parameters(), shadow.parameters(), starts, strict=True):
            move, ctx = compression.compress(q.detach() - start)
            whole = hvd.allreduce(move, name="reference", op=hvd.Adasum) if size > 1 else move
            want = start + compression.decompress(whole, ctx) if size > 1 else q.detach()
            same(p.detach(), want, (kind, step))
            same(hvd.broadcast(p.detach(), 0, name="same"), p.detach(), "the same on every rank")
            with torch.no_grad():
                q.copy_(p)


@pytest.mark.parametrize("kind", ["adam", "momentum", "passes", "clipped", "fp16", "bf16"])
def test_combined_steps(ranks: RankPool, kind: str) -> None:
    ranks.run(combined, kind)


def rules() -> None:
    from hvd_kernel.torch.optimizer import NO_BUCKETS

    rank, size = hvd.rank(), hvd.size()
    model = model_of()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), op=hvd.Adasum)
    if size == 1:  # one rank: an ordinary optimizer
        with optimizer.skip_synchronize():
            optimizer.step()
        return
    assert (optimizer.op, optimizer.backward_passes_per_step) == (hvd.Adasum, 1)
    raises(AssertionError, "Skipping synchronization is not supported", optimizer.skip_synchronize)
    raises(ValueError, "DistributedOptimizer already", hvd.DistributedOptimizer, optimizer)
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    raises(ValueError, NO_BUCKETS, hvd.DistributedOptimizer, plain, op=hvd.Adasum, gradients_in_buckets=True)
    model(batch(rank, 0)).sum().backward()
    optimizer.zero_grad()  # no step, as after a GradScaler's overflow: the round begins again
    model(batch(rank, 0)).sum().backward()
    raises(
        AssertionError,
        "Gradients were computed more than backward_passes_per_step",
        model(batch(rank, 1)).sum().backward,
    )
    optimizer.synchronize()
    optimizer.step()
    optimizer.zero_grad()
    used, unused = torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.zeros(size))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([used, unused], lr=1.0), op=hvd.Adasum)
    calls = []
    optimizer.register_step_pre_hook(lambda *_: calls.append("pre"))

    def closure() -> object:
        optimizer.zero_grad()
        loss = used.sum() + (unused[0] if rank == 0 else 0.0)
        loss.backward()
        return loss

    loss = optimizer.step(closure)
    assert float(loss.detach()) == 0.0
    assert calls == ["pre"]
    torch.testing.assert_close(used.detach(), torch.full((2,), -1.0), rtol=4e-7, atol=0)
    want = torch.zeros(size)
    want[0] = -1.0
    same(unused.detach(), want, "only rank 0's graph reached it")
    whole = torch.nn.Parameter(torch.zeros(2, dtype=torch.complex64))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([whole], lr=1.0), op=hvd.Adasum)
    whole.real.sum().backward()
    raises(ValueError, "is not supported", optimizer.step)
    same(whole.detach(), torch.zeros(2, dtype=torch.complex64), "a step that failed was not taken")
    sparse = torch.nn.Embedding(size, 2, sparse=True)
    start = sparse.weight.detach().clone()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(sparse.parameters(), lr=1.0), op=hvd.Adasum)
    sparse(torch.tensor([rank])).sum().backward()
    optimizer.step()
    torch.testing.assert_close(sparse.weight.detach(), start - 1.0)


def test_rules(ranks: RankPool) -> None:
    ranks.run(rules)


def in_a_set() -> None:
    hvd.shutdown()
    hvd.init(process_sets="dynamic")
    rank, size = hvd.rank(), hvd.size()
    members = hvd.add_process_set(list(range(1, size)))
    weight = torch.nn.Parameter(torch.zeros(size))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), op=hvd.Adasum, process_set=members)
    weight[rank].backward()
    optimizer.step()
    want = torch.zeros(size)
    want[rank if rank == 0 else slice(1, size)] = -1.0
    same(weight.detach(), want)


def test_process_set(ranks: RankPool) -> None:
    if ranks.np > 1:
        ranks.run(in_a_set)
