"""DistributedDataParallel and FSDP2: after three steps the parameters equal those that Gloo's ranks have, to the bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hvdtest.exact import raises
from hvdtest.launch import RankPool
from hvdtest.lazy import torch
from hvdtest.pools import TORCH_VERSIONS, layouts
from hvdtest.torch_worlds import bits, on_both

pytestmark = pytest.mark.mp

layout = layouts((2, "shm"), nightly=TORCH_VERSIONS)

STEPS = 3


def network() -> Any:
    torch.manual_seed(7)
    return torch.nn.Sequential(
        torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 3)
    )


def trained(dist: Any, model: Any, parameters: Any) -> None:
    generator = torch.Generator().manual_seed(dist.get_rank())
    optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
    for _ in range(STEPS):
        optimizer.zero_grad()
        output = model(torch.randn(8, 6, generator=generator))
        (output - torch.randn(8, 3, generator=generator)).square().mean().backward()
        optimizer.step()


def with_ddp(dist: Any, **options: Any) -> Any:
    model = network()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(dist.get_rank())  # DDP broadcasts rank 0's
    wrapped = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.0005, **options)
    trained(dist, wrapped, wrapped.parameters())
    return model.state_dict()


def with_fsdp(dist: Any) -> Any:
    from torch.distributed.device_mesh import init_device_mesh

    try:
        from torch.distributed.fsdp import fully_shard

        runs_on_cpu = True
    except ImportError:  # before torch 2.6
        from torch.distributed._composable.fsdp import fully_shard

        runs_on_cpu = False

    model = network()
    model[2] = torch.nn.Identity()  # its statistics are buffers of one rank
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in (model[0], model[3], model):
        fully_shard(layer, mesh=mesh)
    if not runs_on_cpu:
        raises(RuntimeError, "CUDA", trained, dist, model, model.parameters())
        return {}
    trained(dist, model, model.parameters())
    return {name: value.full_tensor() for name, value in model.state_dict().items()}


def equal(kind: str, folder: str) -> list[Any]:
    programs = {
        "ddp": with_ddp,
        "ddp, unused": lambda dist: with_ddp(dist, find_unused_parameters=True),
        "ddp, one graph": lambda dist: with_ddp(dist, static_graph=True),
        "fsdp2": with_fsdp,
    }
    ours, theirs = on_both(programs[kind], folder)
    assert bits(ours) == bits(theirs), f"{ours} instead of {theirs}"
    return [float(value.double().sum()) for name, value in ours.items() if name.startswith(("0.", "3."))]


@pytest.mark.parametrize("kind", ["ddp", "ddp, unused", "ddp, one graph", "fsdp2"])
def test_parameters_equal_gloo(ranks: RankPool, kind: str, tmp_path: Path) -> None:
    first, second = ranks.run(equal, kind, str(tmp_path))
    assert first == second
    assert len(first) == 4 or (kind == "fsdp2" and not first)  # torch 2.4 has it for CUDA alone
