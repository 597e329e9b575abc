"""In cells: the default group uses the cluster's engine; a cell that raises on a rank releases the others, also in groups."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hvdtest.cluster import drain, execute

from hvd_kernel.cluster import Session
from hvd_kernel.cluster.requests.joined_tensors import not_pulled
from hvd_kernel.errors import ClusterError, UsageError
from hvd_kernel.magics.commands import variables
from hvd_kernel.magics.options import Options
from hvd_kernel.protocol.distributed_tensors import OF_MODULE, not_complete

pytestmark = [pytest.mark.jupyter, pytest.mark.cluster(2)]

SETUP = """
import torch, torch.distributed as dist
import hvd_kernel.torch as hvd
from hvd_kernel.torch.distributed import register

register()
hvd.init()
dist.init_process_group("hvd", store=dist.FileStore("{store}", hvd.size()), rank=hvd.rank(), world_size=hvd.size())
pair = dist.new_group([1, 0])
for group in (None, pair):
    tensor = torch.ones(2)
    dist.all_reduce(tensor, group=group)
print(type(dist.group.WORLD.engine).__name__, tensor.tolist())
"""
FAILING = """
if hvd.rank() == 1:
    raise ValueError("my bug 7")
dist.all_reduce(torch.ones(2), group={group})
"""
AGAIN = """
tensor = torch.ones(2)
dist.all_reduce(tensor)  # the default group follows to the new engine
print(tensor.tolist())
dist.destroy_process_group()
"""


def test_failing_cell_releases_the_other_rank(session: Session, tmp_path: Path) -> None:
    for number, group in enumerate(("None", "pair")):
        ready = execute(session, SETUP.format(store=tmp_path / f"store{number}"))
        assert ready.text() == {0: "SharedEngine [2.0, 2.0]\n", 1: "SharedEngine [2.0, 2.0]\n"}, ready.failures
        failures = execute(session, FAILING.format(group=group)).failures
        assert {rank: (failure.ename, failure.evalue) for rank, failure in failures.items()} == {
            0: ("RankFailed", "Rank 1 failed: ValueError: my bug 7"),
            1: ("ValueError", "my bug 7"),
        }
        again = execute(session, AGAIN)
        assert again.text() == {0: "[2.0, 2.0]\n", 1: "[2.0, 2.0]\n"}, again.failures


BOTH_SEND = """
dist.send(torch.ones(2), 1 - dist.get_rank())
"""


def test_ranks_that_both_send_first_get_the_remedy(session: Session, tmp_path: Path) -> None:
    ready = execute(session, SETUP.format(store=tmp_path / "store"))
    assert not ready.failures
    failures = execute(session, BOTH_SEND).failures
    for failure in failures.values():
        assert failure.ename == "Mismatch"
        for part in ("rank 0 for SEND send.0to1.tag0.0", "rank 1 for SEND send.1to0.tag0.0", "isend and irecv"):
            assert part in failure.evalue
    assert set(failures) == {0, 1}
    again = execute(session, AGAIN)
    assert again.text() == {0: "[2.0, 2.0]\n", 1: "[2.0, 2.0]\n"}, again.failures


DIVIDED = """
import torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

dist.init_process_group()
mesh = init_device_mesh("cpu", (size,))
table, part = torch.arange(15.0).reshape(3, 5), [Shard(0)]
state = {"w": distribute_tensor(table, mesh, part), "step": 3}
rows, scale = distribute_tensor(table, mesh, part), distribute_tensor(torch.arange(3.0), mesh, [Replicate()])
dist.destroy_process_group()
"""


def test_shards_are_pulled_as_whole_tensors(session: Session) -> None:
    """The notebook got each rank's shard, as a tensor that claimed to be the whole."""
    ready = execute(session, DIVIDED)
    assert not ready.failures
    table = torch.arange(15.0).reshape(3, 5)
    for values in session.pull(["state", "scale"]).values():
        tensor = values["state"]["w"]
        assert (type(tensor), torch.equal(tensor, table), values["state"]["step"]) == (torch.Tensor, True, 3)
        assert values["scale"].tolist() == [0.0, 1.0, 2.0]
    whole, errors = variables.gathered(session, ("rows", "scale"), Options(), (0, 1))
    assert (errors, torch.equal(whole["rows"], table), whole["scale"].tolist()) == ([], True, [0.0, 1.0, 2.0])
    with pytest.raises(UsageError) as raised:
        session.pull(["state"], [1])
    text = "DTensor float32 (3, 5), Shard(dim=0) on mesh (2)"
    assert str(raised.value) == not_pulled("state.w", text, [0])


SHARDED = """
import torch, torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, distribute_tensor

if dist.is_initialized():
    dist.destroy_process_group()
dist.init_process_group()
mesh = init_device_mesh("cpu", (size,))

def trained(steps):
    torch.manual_seed(7)
    model = torch.nn.Sequential(torch.nn.Linear(5, 3), torch.nn.Linear(3, 1))
    for layer in (*model, model):
        fully_shard(layer, mesh=mesh)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.full((2, 5), 1.0 + rank)).sum().backward()
        optimizer.step()
    return model, optimizer

model, optimizer = trained(2)
state, optimizer_state = model.state_dict(), optimizer.state_dict()
exact = {name: tensor.full_tensor().tolist() for name, tensor in state.items()}
scale = distribute_tensor(torch.arange(3.0), mesh, [Replicate()])
"""


SAVED = """
import hvd_kernel
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

hvd_kernel.keep("model", "state", "scale", "exact")
models, moments = get_state_dict(model, optimizer)
dcp.save({{"model": models, "optimizer": moments}}, checkpoint_id={folder!r})
"""
LOADED = """
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

model, optimizer = trained(1)
models, moments = get_state_dict(model, optimizer)
dcp.load({{"model": models, "optimizer": moments}}, checkpoint_id={folder!r})
set_state_dict(model, optimizer, model_state_dict=models, optim_state_dict=moments)
loaded = {{name: tensor.full_tensor().tolist() for name, tensor in model.state_dict().items()}}
print(loaded == kept, optimizer.state_dict()["state"][0]["step"].item())
dist.destroy_process_group()
"""


@pytest.mark.nightly
def test_shards_of_a_lost_rank_are_loaded_from_a_checkpoint(own: Session, tmp_path: Path) -> None:
    """The new rank got rank 0's shard as its own."""
    folder = str(tmp_path / "saved")
    saved = drain(own.run(SHARDED + SAVED.format(folder=folder)), patience=300)
    assert not saved.failures
    for values in own.pull(["state", "optimizer_state", "exact"]).values():
        assert {name: tensor.tolist() for name, tensor in values["state"].items()} == values["exact"]
        assert values["optimizer_state"]["state"][0]["exp_avg"].shape == (3, 5)
    with pytest.raises(ClusterError) as refused:
        own.pull(["model"])
    assert str(refused.value) == f"pull: rank 0: TypeError: `model` (FSDPSequential) cannot be sent: {OF_MODULE}"
    done = own.respawn([1], force=True)
    text = "DTensor float32 (3, 5), Shard(dim=0) on mesh (2)"
    assert done.lost == {"state": f"TypeError: {not_complete(text)}", "model": f"TypeError: {OF_MODULE}"}
    assert {*done.restored} == {"scale", "exact"}
    ready = execute(
        own, "print(type(scale).__name__, scale.tolist() if rank else scale.to_local().tolist())\nkept = exact"
    )
    assert ready.text() == {0: "DTensor [0.0, 1.0, 2.0]\n", 1: "Tensor [0.0, 1.0, 2.0]\n"}
    loaded = drain(own.run(SHARDED + LOADED.format(folder=folder)), patience=300)
    assert loaded.text() == dict.fromkeys(range(2), "True 2.0\n"), loaded.failures
