"""Tensors on a CUDA device, staged through host memory: exact values, on every rank, with several ranks sharing one device."""

from __future__ import annotations

import pytest
from hvdtest.launch import RankPool
from hvdtest.pools import close_all, pool_of

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.mp,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


@pytest.fixture(scope="module", params=[1, 2, 4], ids=lambda np: f"np{np}")
def ranks(request: pytest.FixtureRequest) -> RankPool:
    return pool_of((request.param, "auto"))


@pytest.fixture(scope="module", autouse=True)
def nothing_stays_open():
    yield
    close_all()


def on_device() -> str:
    """Every collective gives back tensors on the device they came from."""
    import torch

    import hvd_kernel.torch as hvd

    rank, size = hvd.rank(), hvd.size()
    device = torch.device("cuda", rank % torch.cuda.device_count())
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.uint8):
        mine = (torch.arange(1000, device=device) % 11 + rank).to(dtype)
        want = ((torch.arange(1000, device=device) % 11) * size + size * (size - 1) // 2).to(dtype)
        out = hvd.allreduce(mine, name=f"sum.{dtype}", op=hvd.Sum)
        assert out.device == device
        assert torch.equal(out, want), dtype
        assert hvd.allreduce_(mine, name=f"in place.{dtype}", op=hvd.Sum) is mine
        assert torch.equal(mine, want), dtype
    rows = hvd.allgather(torch.full((rank + 1, 3), rank, device=device), name="rows")
    assert rows.device == device
    assert torch.equal(rows[:, 0].cpu(), torch.cat([torch.full((r + 1,), r) for r in range(size)]))
    sent = hvd.broadcast(torch.full((5,), float(rank), device=device), size - 1, name="sent")
    assert torch.equal(sent, torch.full((5,), float(size - 1), device=device))
    return torch.cuda.get_device_name(device)


def test_collectives_on_device_tensors(ranks: RankPool) -> None:
    assert len(set(ranks.run(on_device))) == 1


def trained_on_device() -> list[float]:
    """A model on the device, gradients averaged while backward runs: the same parameters on every rank."""
    import torch

    import hvd_kernel.torch as hvd

    device = torch.device("cuda", hvd.rank() % torch.cuda.device_count())
    torch.manual_seed(hvd.rank())
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    losses = []
    x = torch.randn(64, 32, device=device)
    for _ in range(30):
        optimizer.zero_grad()
        loss = (model(x) - x[:, :1]).pow(2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    for name, p in model.named_parameters():
        assert torch.equal(hvd.broadcast(p.detach(), 0, name=f"check.{name}"), p.detach()), name
    return [losses[0], losses[-1]]


def test_training_on_the_device(ranks: RankPool) -> None:
    for first, last in ranks.run(trained_on_device):
        assert last < first / 2


def test_telemetry_sees_the_device() -> None:
    from hvd_kernel.worker import gpu

    torch.ones(1 << 20, device="cuda")
    found = gpu.sample()
    assert 0 <= found["util"] <= 100
    assert found["memory"] > 4 << 20
