"""Four ranks with a quarter of the batch each end with the parameters of one process with the whole batch."""

from __future__ import annotations

import pytest
from hvdtest.exact import same, ulps
from hvdtest.launch import RankPool
from hvdtest.pools import pool_of

pytestmark = pytest.mark.mp

STEPS, BATCH = 6, 32
FLOAT64_LIMIT = 1e-12  # absolute and relative
FLOAT32_ULPS = 8  # units in the last place of each tensor's largest parameter, after six steps with momentum


def network(dtype: str) -> object:
    import torch

    torch.manual_seed(7)
    layers = [
        torch.nn.Conv2d(1, 4, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(4, 8, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(8 * 16, 10),
    ]
    return torch.nn.Sequential(*layers).to(getattr(torch, dtype))


def data(dtype: str) -> tuple[object, object]:
    import torch

    generator = torch.Generator().manual_seed(3)
    images = torch.rand(STEPS, BATCH, 1, 8, 8, generator=generator, dtype=torch.float64)
    return images.to(getattr(torch, dtype)), torch.randint(0, 10, (STEPS, BATCH), generator=generator)


def trained(dtype: str, rank: int, size: int, distributed: bool) -> object:
    import torch

    import hvd_kernel.torch as hvd

    torch.set_num_threads(1)
    model = network(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    if distributed:
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    for images, labels in zip(*data(dtype), strict=True):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images[rank::size]), labels[rank::size]).backward()
        optimizer.step()
    return model


def compared(dtype: str) -> list[float]:
    """Largest difference from the single process: absolute, and in units in the last place of each tensor's largest."""
    import torch

    import hvd_kernel.torch as hvd

    mine = trained(dtype, hvd.rank(), hvd.size(), distributed=True)
    alone = trained(dtype, 0, 1, distributed=False)
    start = network(dtype)
    worst = units = 0.0
    for (name, p), q, s in zip(mine.named_parameters(), alone.parameters(), start.parameters(), strict=True):
        same(hvd.broadcast(p.detach(), 0, name=f"check.{name}"), p.detach(), f"{name} is the same on every rank")
        assert (q - s).abs().max() > 1e-3, f"{name} was trained"
        worst = max(worst, float((p - q).detach().abs().max()))
        spacing = torch.finfo(p.dtype).eps * 2.0 ** float(q.detach().abs().max().log2().floor())
        units = max(units, float((p - q).detach().abs().max()) / spacing)
    assert ulps(torch.tensor([1.0]), torch.tensor([1.0 + 2**-23])) == 1
    return [worst, units]


@pytest.mark.parametrize("layout", [(2, "shm"), (4, "shm"), (4, "tcp")], ids=["np2-shm", "np4-shm", "np4-tcp"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_equals_one_process(layout: tuple[int, str], dtype: str, record_property: pytest.RecordProperty) -> None:
    pool: RankPool = pool_of(layout)
    found = pool.run(compared, dtype)
    record_property("largest difference, units in the last place", found[0])
    for worst, units in found:
        if dtype == "float64":
            assert worst <= FLOAT64_LIMIT
        else:
            assert units <= FLOAT32_ULPS
