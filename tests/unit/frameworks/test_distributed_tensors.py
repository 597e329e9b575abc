"""DTensors that leave their rank: joined from the parts of all ranks, or refused by name; never one shard as the whole."""

from __future__ import annotations

import gc
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

import hvd_kernel.torch as hvd
from hvd_kernel.cluster.requests.joined_tensors import joined, not_fitting, not_pulled
from hvd_kernel.errors import UsageError
from hvd_kernel.protocol import distributed_tensors, serialization
from hvd_kernel.protocol.distributed_tensors import OF_MODULE, not_complete
from hvd_kernel.torch.adapter import ADAPTER
from hvd_kernel.torch.functions import not_broadcast
from hvd_kernel.worker.inspect import replicate, variables

RANKS = 4
WHOLE = torch.arange(30.0).reshape(5, 6)
ON_LINE, ON_SQUARE = (RANKS,), (2, 2)


@contextmanager
def on_rank(rank: int) -> Iterator[None]:
    """Be this rank of RANKS, with a group that communicates with no process."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=RANKS)
    try:
        yield
    finally:
        dist.destroy_process_group()


def tensor_on(sizes: tuple[int, ...], placements: Sequence[Any], whole: torch.Tensor = WHOLE) -> DTensor:
    mesh = init_device_mesh("cpu", sizes, mesh_dim_names=("dp", "tp")[: len(sizes)])
    return distribute_tensor(whole.clone(), mesh, placements, src_data_rank=None)


def sent(make: Callable[[int], Any], ranks: Sequence[int] = range(RANKS)) -> dict[int, dict[str, Any]]:
    """Return the variable ``x`` of ranks as it arrives in the notebook, in parts."""
    values = {}
    for rank in ranks:
        with on_rank(rank):
            parts, is_divided = distributed_tensors.divided({"x": make(rank)})
            assert is_divided
            packed = serialization.pack_variables(parts)
        values[rank] = serialization.unpack(packed)
    return values


@pytest.mark.parametrize(
    ("sizes", "placements"),
    [
        (ON_LINE, [Shard(0)]),  # 2, 2, 1 and 0 rows
        (ON_LINE, [Shard(1)]),
        (ON_LINE, [Replicate()]),
        (ON_SQUARE, [Replicate(), Shard(0)]),
        (ON_SQUARE, [Shard(1), Replicate()]),
        (ON_SQUARE, [Shard(0), Shard(1)]),
        (ON_SQUARE, [Shard(0), Shard(0)]),
    ],
    ids=str,
)
def test_parts_of_all_ranks_are_joined(sizes: tuple[int, ...], placements: list[Any]) -> None:
    arrived = joined(sent(lambda _: OrderedDict(step=3, layers=[{"w": tensor_on(sizes, placements)}])))
    for rank in range(RANKS):
        state = arrived[rank]["x"]
        tensor = state["layers"][0]["w"]
        assert (type(state), state["step"], type(tensor)) == (OrderedDict, 3, torch.Tensor)
        assert torch.equal(tensor, WHOLE)


def test_rank_gets_the_copy_to_which_its_part_belongs() -> None:
    """In hybrid sharding ranks 2 and 3 hold a second copy, which has drifted apart."""
    drifted = {0: 0, 1: 0, 2: 1, 3: 1}
    arrived = joined(sent(lambda rank: tensor_on(ON_SQUARE, [Replicate(), Shard(0)], WHOLE + drifted[rank])))
    for rank, drift in drifted.items():
        assert torch.equal(arrived[rank]["x"], WHOLE + drift)
    half = joined(sent(lambda _: tensor_on(ON_SQUARE, [Replicate(), Shard(0)]), ranks=(2, 3)))
    assert torch.equal(half[2]["x"], WHOLE)


def test_missing_parts_are_named() -> None:
    text = "DTensor float32 (5, 6), Shard(dim=0) on mesh (dp=4)"
    arrived = sent(lambda _: {"w": tensor_on(ON_LINE, [Shard(0)])}, ranks=(0, 2))
    with pytest.raises(UsageError) as raised:
        joined(arrived)
    assert str(raised.value) == not_pulled("x.w", text, [1, 3])


def test_parts_of_different_tensors_are_not_joined() -> None:
    texts = [f"DTensor float32 ({rows}, 6), Shard(dim=0) on mesh (dp=4)" for rows in (5, 9)]
    arrived = sent(lambda rank: tensor_on(ON_LINE, [Shard(0)], WHOLE if rank < 3 else torch.ones(9, 6)))
    with pytest.raises(UsageError) as raised:
        joined(arrived)
    assert str(raised.value) == not_fitting("x", texts)


def test_partial_sums_are_refused_by_name() -> None:
    with on_rank(1):
        partial = DTensor.from_local(WHOLE, init_device_mesh("cpu", ON_LINE), [Partial()])
        with pytest.raises(TypeError) as raised:
            distributed_tensors.divided({"x": [partial]})
    text = "DTensor float32 (5, 6), Partial(sum) on mesh (4)"
    assert str(raised.value) == f"`x.0` cannot be sent: {not_complete(text)}"


class Holder:
    """An object in which DTensors are not searched for."""

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor


def test_pickles_refuse_shards_by_name() -> None:
    with on_rank(1):
        shard = tensor_on(ON_LINE, [Shard(0)])
        model = fully_shard(torch.nn.Linear(6, 4), mesh=shard.device_mesh)
        optimizer = torch.optim.SGD(model.parameters())
        refused = {
            "held": (Holder(shard), not_complete("DTensor float32 (5, 6), Shard(dim=0) on mesh (dp=4)")),
            "model": (model, OF_MODULE),
            "optimizer": (optimizer, not_complete("DTensor float32 (4, 6), Shard(dim=0) on mesh (dp=4)")),
        }
        for name, (value, reason) in refused.items():
            with pytest.raises(TypeError) as raised:
                serialization.pack_variables({"fine": 1, name: value})
            assert str(raised.value) == f"`{name}` ({type(value).__name__}) cannot be sent: {reason}"


def test_ranks_do_not_receive_the_parts_of_another_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a rank keeps for others: one's shard is not sent as the variable, with the reason; complete tensors are."""
    monkeypatch.setattr("hvd_kernel.core.session.local_rank", lambda: 0)
    with on_rank(1):
        shard = tensor_on(ON_LINE, [Shard(0)])
        model = fully_shard(torch.nn.Linear(6, 4), mesh=shard.device_mesh)
        values = {"state": [shard], "model": model, "whole": tensor_on(ON_LINE, [Replicate()])}
        packed, lost = replicate._pack(values, list(values))
    text = "DTensor float32 (5, 6), Shard(dim=0) on mesh (dp=4)"
    assert lost == {"state": f"TypeError: {not_complete(text)}", "model": f"TypeError: {OF_MODULE}"}
    arrived = replicate._load(packed)
    assert {name: type(value) for name, value in arrived.items()} == {"whole": torch.Tensor}
    assert torch.equal(arrived["whole"], WHOLE)


def test_broadcasts_refuse_shards_by_name() -> None:
    """Rank 0's shard would overwrite the other ranks' ones."""
    with on_rank(1):
        model = fully_shard(torch.nn.Linear(6, 4), mesh=init_device_mesh("cpu", ON_LINE))
        optimizer = torch.optim.SGD(model.parameters())
        with pytest.raises(ValueError, match="is a DTensor") as raised:
            hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        assert str(raised.value) == not_broadcast("'bias'", model.bias)
        with pytest.raises(ValueError, match="is a DTensor") as raised:
            hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        assert str(raised.value) == not_broadcast("parameter 0", model.weight)
        with pytest.raises(TypeError) as refused:
            hvd.elastic.TorchState(model=model, optimizer=optimizer)
        assert str(refused.value) == not_broadcast("weight", model.weight)


def test_table_shows_the_whole_shape_and_local_bytes() -> None:
    with on_rank(3):
        tensor = tensor_on(ON_LINE, [Shard(1)])  # 2, 2, 2 and 0 of 6 columns
        model = fully_shard(torch.nn.Sequential(torch.nn.Linear(6, 8)), mesh=tensor.device_mesh)
        layout = "Shard(dim=0) on mesh (dp=4)"
        assert variables.facts(tensor) == {
            "type": "DTensor",
            "shape": "(5, 6)",
            "dtype": "float32",
            "value": "Shard(dim=1) on mesh (dp=4)",
            "local": 0,
        }
        assert variables.facts(model) == {
            "type": "FSDPSequential",
            "shape": "56 parameters",
            "dtype": "float32",
            "value": layout,
            "local": 2 * 6 * 4 + 2 * 4,
        }
        weighed = variables._weighed(model)
        assert weighed == {"type": f"FSDPSequential 56 parameters, {layout}", "size": 56, "gradients": 0}
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        assert variables._weighed(model)["gradients"] == 56


def test_memory_counts_shards() -> None:
    """`%hvd memory` raised for a process with DTensors, whose storages have no memory."""
    with on_rank(1):
        gc.collect()
        before = ADAPTER.alive_bytes()
        model = fully_shard(torch.nn.Linear(64, 64), mesh=init_device_mesh("cpu", ON_LINE))
        after = ADAPTER.alive_bytes()
        assert after["parameters"] - before["parameters"] == (64 * 64 + 64) // RANKS * 4
        assert ADAPTER.nbytes(model.weight) == 64 * 64 // RANKS * 4


def test_complete_tensors_are_sent_as_ordinary_ones() -> None:
    with on_rank(1):
        tensor = tensor_on(ON_LINE, [Replicate()])
        held = Holder({"tensor": tensor, "parameter": torch.nn.Parameter(tensor)})
        packed = serialization.pack(held)
    arrived = serialization.unpack(packed).tensor
    assert {name: type(value) for name, value in arrived.items()} == {
        "tensor": torch.Tensor,
        "parameter": torch.nn.Parameter,
    }
    assert all(torch.equal(value, WHOLE) for value in arrived.values())
