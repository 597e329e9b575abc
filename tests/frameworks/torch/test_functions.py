"""Objects and parameters from one rank to all, beyond the table of frameworks/conformance; unsendable objects."""

from __future__ import annotations

import pytest
from hvdtest.exact import raises, same
from hvdtest.launch import RankPool
from hvdtest.lazy import hvd, torch

pytestmark = pytest.mark.mp


def objects() -> None:
    rank, size = hvd.rank(), hvd.size()
    for root in range(size):
        got = hvd.broadcast_object({"from": rank, "f": lambda: rank * 10, "t": torch.full((2,), rank)}, root)
        assert (got["from"], got["f"]()) == (root, root * 10)
        same(got["t"], torch.full((2,), root))


def test_objects(ranks: RankPool) -> None:
    ranks.run(objects)


def parameters() -> None:
    rank, root = hvd.rank(), hvd.size() - 1
    torch.manual_seed(rank)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2, bias=False))
    model[1].num_batches_tracked += rank
    before = {k: v.clone() for k, v in model.state_dict().items()}
    hvd.broadcast_parameters(model.state_dict(), root_rank=root)
    wanted = hvd.broadcast_object(before, root)
    for name, tensor in model.state_dict().items():
        same(tensor, wanted[name], name)
    plain = [torch.full((2,), float(rank)), torch.tensor(rank)]
    hvd.broadcast_parameters(plain, root)
    same(plain[0], torch.full((2,), float(root)))
    same(plain[1], torch.tensor(root))
    pairs = [("b", torch.tensor([rank])), ("a", torch.tensor([rank == root]))]
    hvd.broadcast_parameters(pairs, root)
    assert [int(pairs[0][1]), bool(pairs[1][1])] == [root, True]
    hvd.broadcast_parameters(list(model.named_parameters()), root)
    raises(ValueError, "invalid params of type: <class 'generator'>", hvd.broadcast_parameters, model.parameters(), 0)
    raises(ValueError, "'x' is a int, not a tensor: use broadcast_object", hvd.broadcast_parameters, {"x": 1}, 0)


def test_parameters(ranks: RankPool) -> None:
    ranks.run(parameters)


def buffers_without_arithmetic() -> None:
    rank, root = hvd.rank(), hvd.size() - 1
    strided = torch.arange(6).to(torch.uint32).view(3, 2)[:, 0] if rank == root else torch.zeros(3).to(torch.uint32)
    assert hvd.broadcast(strided, root).tolist() == [0, 2, 4]
    raises(
        ValueError,
        "send tensor.view(torch.uint8)",
        hvd.broadcast,
        torch.zeros(2, dtype=torch.uint8).view(torch.bits8),
        0,
    )
    quantized = torch.quantize_per_tensor(torch.ones(2), 0.5, 3, torch.quint8)
    raises(ValueError, "send tensor.int_repr(), its scale and its zero point", hvd.broadcast_, quantized, 0)


@pytest.mark.filterwarnings("ignore")
def test_buffers_of_types_without_arithmetic(ranks: RankPool) -> None:
    ranks.run(buffers_without_arithmetic)


def refusals() -> None:
    param = torch.nn.Parameter(torch.ones(2 + hvd.rank()))
    lbfgs = torch.optim.LBFGS([param])
    raises(ValueError, "cannot broadcast torch.optim.LBFGS state", hvd.broadcast_optimizer_state, lbfgs, 0)
    optimizer = torch.optim.SGD([param], lr=0.1)
    if hvd.rank():
        raises(ValueError, "optimizes parameters of shapes", hvd.broadcast_optimizer_state, optimizer, 0)
    else:
        hvd.broadcast_optimizer_state(optimizer, 0)


def test_refusals(ranks: RankPool) -> None:
    ranks.run(refusals)
