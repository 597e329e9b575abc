"""Four ranks with a quarter of the batch each end with the parameters of one process with the whole batch.

For each optimizer, and for each way to send gradients: grouped, accumulated over passes, sparse, with predivision.
"""

from __future__ import annotations

import pytest
from hvdtest.exact import same, ulps
from hvdtest.launch import RankPool
from hvdtest.lazy import hvd, torch
from hvdtest.pools import layout_id, layouts

pytestmark = pytest.mark.mp


layout = layouts((2, "shm"), nightly=((4, "shm"), (4, "tcp")))

STEPS, BATCH = 6, 32
FLOAT64_LIMIT = 1e-12  # absolute and relative
FLOAT32_ULPS = 8  # units in the last place of each tensor's largest parameter, after six steps with momentum


def network(dtype: str) -> object:
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
    generator = torch.Generator().manual_seed(3)
    images = torch.rand(STEPS, BATCH, 1, 8, 8, generator=generator, dtype=torch.float64)
    return images.to(getattr(torch, dtype)), torch.randint(0, 10, (STEPS, BATCH), generator=generator)


def trained(dtype: str, rank: int, size: int, distributed: bool) -> object:
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


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_equals_one_process(ranks: RankPool, dtype: str, record_property: pytest.RecordProperty) -> None:
    found = ranks.run(compared, dtype)
    record_property("largest difference, units in the last place", found[0])
    for worst, units in found:
        if dtype == "float64":
            assert worst <= FLOAT64_LIMIT
        else:
            assert units <= FLOAT32_ULPS


ROWS = 20


def reader() -> object:
    """Return an embedding whose gradient is sparse, and a dense head."""
    torch.manual_seed(11)
    table = torch.nn.EmbeddingBag(ROWS, 6, mode="sum", sparse=True)
    return torch.nn.Sequential(table, torch.nn.Tanh(), torch.nn.Linear(6, 4), torch.nn.Linear(4, 3)).double()


def optimizers_of(kind: str, model: object) -> list[object]:
    """Return an optimizer for dense gradients, and a second one for the table's sparse ones if the first lacks support."""
    table, dense = list(model[0].parameters()), [p for part in model[1:] for p in part.parameters()]
    if kind == "SGD":
        return [torch.optim.SGD([{"params": table, "lr": 0.2}, {"params": dense}], lr=0.05, momentum=0.9)]
    made = {"Adam": torch.optim.Adam, "AdamW": torch.optim.AdamW}[kind]
    return [made(dense, lr=0.02, weight_decay=0.01), torch.optim.SparseAdam(table, lr=0.02)]


def read(kind: str, rank: int, size: int, passes: int, options: dict[str, object] | None) -> object:
    """Train; a rank uses every size-th sample, in equal passes. None: one process, one pass."""
    torch.set_num_threads(1)
    model = reader()
    optimizers = optimizers_of(kind, model)
    if options is not None:
        named = {id(p): (name, p) for name, p in model.named_parameters()}
        optimizers = [
            hvd.DistributedOptimizer(
                one,
                named_parameters=[named[id(p)] for group in one.param_groups for p in group["params"]],
                backward_passes_per_step=passes,
                **options,
            )
            for one in optimizers
        ]
    generator = torch.Generator().manual_seed(2)
    for _ in range(STEPS):
        words = torch.randint(0, ROWS, (BATCH, 5), generator=generator)[rank::size]
        labels = torch.randint(0, 3, (BATCH,), generator=generator)[rank::size]
        for one in optimizers:
            one.zero_grad()
        for part in range(passes):
            loss = torch.nn.functional.cross_entropy(model(words[part::passes]), labels[part::passes])
            (loss / passes).backward()
        for one in optimizers:
            one.step()
    return model


def read_like_one(kind: str, passes: int, options: dict[str, object]) -> float:
    mine = read(kind, hvd.rank(), hvd.size(), passes, options)
    alone = read(kind, 0, 1, 1, None)
    worst = 0.0
    for (name, p), q, start in zip(mine.named_parameters(), alone.parameters(), reader().parameters(), strict=True):
        same(hvd.broadcast(p.detach(), 0, name=f"check.{name}"), p.detach(), f"{name} is the same on every rank")
        assert (q - start).abs().max() > 1e-3, f"{name} was trained"
        worst = max(worst, float((p - q).detach().abs().max()))
    return worst


@pytest.mark.parametrize("kind", ["SGD", "Adam", "AdamW"])
@pytest.mark.parametrize(
    ("passes", "options"),
    [
        (1, {}),
        (2, {}),
        (1, {"sparse_as_dense": True}),
        (1, {"groups": 2, "sparse_as_dense": True}),
        (4, {"groups": 1, "sparse_as_dense": True}),
        (2, {"gradient_predivide_factor": 2.0}),
    ],
    ids=str,
)
@pytest.mark.parametrize("layout", [(2, "shm"), pytest.param((4, "shm"), marks=pytest.mark.nightly)], ids=layout_id)
def test_optimizers_equal_one_process(ranks: RankPool, kind: str, passes: int, options: dict[str, object]) -> None:
    for worst in ranks.run(read_like_one, kind, passes, options):
        assert worst <= FLOAT64_LIMIT
