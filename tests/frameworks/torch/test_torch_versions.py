"""The oldest and the newest torch: training, process sets, sparse gradients and batch norm give exact values.

Each is in an environment of its own, of several gigabytes: the registry builds torch with CUDA.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hvdtest.environments import Ranks, environment

pytestmark = [pytest.mark.nightly, pytest.mark.mp, pytest.mark.timeout(1500)]  # the first time gigabytes are installed

VERSIONS = {"torch24": "2.4.1", "torchnew": "2.15.0"}


@pytest.fixture(scope="module", params=list(VERSIONS))
def ranks(request: pytest.FixtureRequest) -> Iterator[Any]:
    with Ranks(environment(request.param), 2, HOROVOD_DYNAMIC_PROCESS_SETS="1") as pool:
        assert pool.run(version, timeout=300) == [VERSIONS[request.param]] * 2
        yield pool


def version() -> str:
    import torch

    import hvd_kernel.torch as hvd

    hvd.init()
    torch.set_num_threads(1)
    return torch.__version__.partition("+")[0]


def trained() -> dict[str, Any]:
    """Two steps from rank 0's state: each rank's gradient is its input, halves and quarters in all."""
    import torch

    import hvd_kernel.torch as hvd

    model = torch.nn.Linear(2, 1, bias=False)
    torch.nn.init.constant_(model.weight, 1.0 + hvd.rank())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5 + hvd.rank(), momentum=0.5)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.tensor([[1.0 + hvd.rank(), 2.0 * hvd.rank()]])).sum().backward()
        optimizer.step()
    return {
        "weight": model.weight.tolist(),
        "lr": optimizer.param_groups[0]["lr"],
        "momentum": [each["momentum_buffer"].tolist() for each in optimizer.state.values()],
    }


def test_training_from_rank_0s_state(ranks: Any) -> None:
    # The mean gradient g is (1.5, 1), the momentum g and then 1.5 g; 1 - 0.5 (g + 1.5 g) is left.
    want = {"weight": [[1 - 1.25 * 1.5, 1 - 1.25]], "lr": 0.5, "momentum": [[[2.25, 1.5]]]}
    assert ranks.run(trained) == [want, want]


def accumulated() -> dict[str, Any]:
    """Two backward passes for a step, sent as fp16, and Adam's state from rank 0."""
    import torch

    import hvd_kernel.torch as hvd

    w = torch.nn.Parameter(torch.tensor([4.0, 8.0]))
    options = {"backward_passes_per_step": 2, "compression": hvd.Compression.fp16, "op": hvd.Sum}
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([w], lr=0.25), named_parameters=[("w", w)], **options)
    for part in (1.0, 2.0):
        (w * (part + hvd.rank())).sum().backward()
    optimizer.step()
    adam = torch.optim.Adam([w], lr=0.5)
    if hvd.rank() == 0:
        w.grad = torch.tensor([1.0, -1.0])
        adam.step()
    hvd.broadcast_optimizer_state(adam, root_rank=0)
    state = adam.state_dict()["state"][0]
    gathered = hvd.allgather_object({"rank": hvd.rank(), "steps": float(state["step"])})
    return {"average": state["exp_avg"].tolist(), "gathered": gathered, "optimizer": isinstance(adam, torch.optim.Adam)}


def test_accumulation_and_adams_state(ranks: Any) -> None:
    average = [0.10000000149011612, -0.10000000149011612]  # a tenth as float32 has it
    gathered = [{"rank": rank, "steps": 1.0} for rank in range(2)]
    assert ranks.run(accumulated) == [{"average": average, "gathered": gathered, "optimizer": True}] * 2


def normed() -> dict[str, Any]:
    """Normalise inputs -1 and 1 on two ranks: mean 0, variance 1 (2 if unbiased)."""
    import torch

    import hvd_kernel.torch as hvd

    norm = hvd.SyncBatchNorm(1, eps=0.0, momentum=0.5)
    x = torch.full((1, 1, 1), 2.0 * hvd.rank() - 1, requires_grad=True)
    y = norm(x)
    (y * (1.0 + hvd.rank())).sum().backward()
    assert x.grad is not None
    return {
        "y": y.item(),
        "grad": x.grad.item(),
        "weight": norm.weight.grad.item(),
        "running": [norm.running_mean.item(), norm.running_var.item()],
    }


def test_batch_norm_over_both_ranks(ranks: Any) -> None:
    # Of two values whose distance is all that counts nothing is left for the inputs' gradient.
    want = {"grad": 0.0, "running": [0.0, 1.5]}
    assert ranks.run(normed) == [want | {"y": -1.0, "weight": -1.0}, want | {"y": 1.0, "weight": 2.0}]


def in_sets() -> dict[str, Any]:
    import torch

    import hvd_kernel.torch as hvd

    sets = [hvd.add_process_set([0]), hvd.add_process_set([1])]
    own = sets[hvd.rank()]
    found = {
        "all": hvd.allreduce(torch.tensor([1.0 + hvd.rank()]), op=hvd.Sum).tolist(),
        "own": hvd.allreduce(torch.tensor([7 + hvd.rank()]), op=hvd.Sum, process_set=own).tolist(),
        "included": [each.included() for each in sets],
        "removed": [hvd.remove_process_set(each) for each in sets],
    }
    embedding = torch.nn.Embedding(4, 2, sparse=True)
    torch.nn.init.zeros_(embedding.weight)
    named = embedding.named_parameters()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(embedding.parameters(), lr=1.0), named_parameters=named)
    embedding(torch.tensor([1, 1 + hvd.rank()])).sum().backward()
    optimizer.step()
    found["embedding"] = embedding.weight.tolist()
    return found


def test_process_sets_and_sparse_gradients(ranks: Any) -> None:
    want = {"all": [3.0], "removed": [True, True], "embedding": [[0.0, 0.0], [-1.5, -1.5], [-0.5, -0.5], [0.0, 0.0]]}
    own = [{"own": [7], "included": [True, False]}, {"own": [8], "included": [False, True]}]
    assert ranks.run(in_sets) == [want | each for each in own]
