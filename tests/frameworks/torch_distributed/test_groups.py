"""Groups of some ranks: engines of their own, names, local synchronization, DeviceMesh; the numbers of the default group."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
from hvdtest.exact import raises, same
from hvdtest.launch import RankPool
from hvdtest.lazy import hvd, torch
from hvdtest.pools import TORCH_VERSIONS, layouts
from hvdtest.torch_worlds import is_before, world

pytestmark = pytest.mark.mp

layout = layouts((3, "shm"), nightly=((2, "tcp"), (4, "shm"), *TORCH_VERSIONS))


def engines(folder: str) -> list[str]:
    """The group of all ranks shares the engine of hvd.init(); every other one is closed with its group."""
    from hvd_kernel.errors import HorovodInternalError
    from hvd_kernel.torch.distributed.groups import CLOSED

    rank, size = hvd.rank(), hvd.size()
    with world("hvd", folder) as dist:
        everyone = dist.new_group(list(range(size)))
        members = [size - 1, 0]
        pair = dist.new_group(members)
        kinds = [type(dist.group.WORLD.engine).__name__, type(everyone.engine).__name__]
        if rank in members:
            kinds.append(type(pair.engine).__name__)
            for _ in range(20):
                tensor = torch.tensor([rank + 1.0])
                dist.all_reduce(tensor, group=pair)
                same(tensor, torch.tensor([size + 1.0]))
            tensor = torch.tensor([float(rank)])
            dist.broadcast(tensor, src=size - 1, group=pair)  # a global rank
            same(tensor, torch.tensor([size - 1.0]))
            assert pair.group_name
            assert pair.group_desc == "undefined"
            dist.destroy_process_group(pair)
            if not is_before(2, 6):  # which calls no method of the group
                raises(HorovodInternalError, CLOSED.partition("{")[0], pair.barrier)
        dist.all_reduce(torch.ones(1), group=everyone)
        dist.barrier()
    return kinds


def test_engines_of_groups(ranks: RankPool, tmp_path: Path) -> None:
    shared = ["SharedEngine", "SharedEngine"]
    middle = [shared] * (ranks.np - 2)
    pair = [*shared, "OwnEngine" if ranks.np > 2 else "SharedEngine"]
    assert ranks.run(engines, str(tmp_path)) == [pair, *middle, pair]


def local(folder: str) -> bool:
    """Members alone call new_group; groups of different ranks work at the same time."""
    rank, size = hvd.rank(), hvd.size()
    with world("hvd", folder) as dist:
        mine = [rank] if rank == 0 else list(range(1, size))
        group = dist.new_group(mine, use_local_synchronization=True)
        tensor = torch.ones(2)
        dist.all_reduce(tensor, group=group)
        same(tensor, torch.full((2,), float(len(mine))))
        dist.barrier()
    return True


def test_local_synchronization(ranks: RankPool, tmp_path: Path) -> None:
    assert ranks.run(local, str(tmp_path)) == [True] * ranks.np


def mesh(folder: str) -> list[float]:
    """A mesh of one dimension, and DTensors on it."""
    with world("hvd", folder):
        from torch.distributed.device_mesh import init_device_mesh

        tensors: Any = importlib.import_module(
            "torch.distributed._tensor" if is_before(2, 5) else "torch.distributed.tensor"
        )

        line = init_device_mesh("cpu", (hvd.size(),), mesh_dim_names=("all",))
        assert line.get_group("all").group_name
        values = torch.arange(4.0 * hvd.size()).reshape(2 * hvd.size(), 2)
        sharded = tensors.distribute_tensor(values, line, [tensors.Shard(0)])
        assert sharded.to_local().shape == (2, 2)
        same(sharded.redistribute(line, [tensors.Replicate()]).to_local(), values)
        return [float(sharded.sum().full_tensor())]


def test_device_mesh(ranks: RankPool, tmp_path: Path) -> None:
    size = ranks.np
    assert ranks.run(mesh, str(tmp_path)) == [[float(sum(range(4 * size)))]] * size


def other_number(folder: str) -> bool:
    from hvd_kernel.torch.distributed.groups import OTHER_RANK

    rank = (hvd.rank() + 1) % hvd.size()
    text = OTHER_RANK.format(rank=rank, actual=hvd.rank())

    def create() -> None:
        with world("hvd", folder, rank=rank):
            pass

    raises(ValueError, text, create)
    return True


def test_default_group_with_other_numbers(ranks: RankPool, tmp_path: Path) -> None:
    assert ranks.run(other_number, str(tmp_path)) == [True] * ranks.np
