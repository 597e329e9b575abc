"""Training on the device: the very parameters that training on the host gives, and the same on every rank."""

from __future__ import annotations

import math

import pytest
from hvdtest.launch import RankPool

PLAUSIBLE = {
    "util": (0, 100),
    "memory": (4 << 20, math.inf),
    "power": (0.1, math.inf),
    "temperature": (1, 119),
    "pcie_tx": (0, math.inf),
}


def trained(where: str, how: str) -> str:
    """Return a digest of the parameters after 12 steps with exact arithmetic except the sums of the ranks' gradients.

    Each gradient is the rank's own random data; the step multiplies by powers of two only, so host and device round alike.
    """
    import hashlib

    import torch
    from hvdtest.gpu import device

    import hvd_kernel.torch as hvd

    at = device() if where == "gpu" else torch.device("cpu")
    generator = torch.Generator().manual_seed(7)
    params = [torch.nn.Parameter(torch.randn(n, generator=generator).to(at)) for n in (3, 1000, 70_001, 33)]
    named = [(f"{where}.{how}.p{i}", p) for i, p in enumerate(params)]
    more = {
        "plain": {},
        "groups": {"groups": 2},
        "fp16": {"compression": hvd.Compression.fp16},
        "bf16": {"compression": hvd.Compression.bf16},
        "passes": {"backward_passes_per_step": 2},
        "sum": {"op": hvd.Sum, "gradients_in_buckets": False},
    }[how]
    optimizer = torch.optim.SGD(params, lr=0.125, momentum=0.5)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=named, **more)
    data = torch.Generator().manual_seed(1000 + hvd.rank())
    for _ in range(12):
        optimizer.zero_grad()
        for _ in range(more.get("backward_passes_per_step", 1)):
            sum((p * torch.randn(p.shape, generator=data).to(at)).sum() for p in params).backward()
        optimizer.step()
    return hashlib.sha256(b"".join(p.detach().cpu().numpy().tobytes() for p in params)).hexdigest()


def test_training_on_the_device_equals_training_on_the_host(ranks: RankPool) -> None:
    for how in ("plain", "groups", "sum", "passes", "fp16", "bf16"):
        on_host = ranks.run(trained, "cpu", how)
        assert len(set(on_host)) == 1
        assert ranks.run(trained, "gpu", how) == on_host, how


def learned() -> list[float]:
    """Train a complete model: state broadcast, SyncBatchNorm, AMP, Adam; the loss falls, ranks stay equal."""
    import torch
    from hvdtest.gpu import alike, device

    import hvd_kernel.torch as hvd

    where = device()
    torch.manual_seed(hvd.rank())
    layers = [torch.nn.Linear(32, 64), hvd.SyncBatchNorm(64), torch.nn.ReLU(), torch.nn.Linear(64, 1)]
    model = torch.nn.Sequential(*layers).to(where)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    scaler = torch.amp.GradScaler("cuda")
    x = torch.randn(64, 32, device=where)
    losses = []
    for _ in range(40):
        optimizer.zero_grad()
        with torch.amp.autocast("cuda"):
            loss = (model(x) - x[:, :1]).pow(2).mean()
        scaler.scale(loss).backward()
        optimizer.synchronize()
        scaler.unscale_(optimizer)
        with optimizer.skip_synchronize():
            scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    for name, p in model.named_parameters():
        alike(hvd.broadcast(p.detach(), 0, name=f"check.{name}"), p.detach(), name)
    return [losses[0], losses[-1]]


def test_a_model_learns(ranks: RankPool) -> None:
    for first, last in ranks.run(learned):
        assert last < first / 2


def test_telemetry_reports_the_device() -> None:
    import torch

    from hvd_kernel.worker import gpu_figures

    pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    torch.ones(1 << 20, device="cuda")
    gpu_figures.sample()
    found = gpu_figures.sample()
    assert "memory" in found
    for name, (least, most) in PLAUSIBLE.items():
        assert least <= found.get(name, least) <= most, found  # a virtual machine may keep some from us
