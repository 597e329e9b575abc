"""Objects, parameters and optimizer state from one rank to all: values and Python types."""

from __future__ import annotations

import pytest
from hvdtest.exact import raises, same
from hvdtest.launch import RankPool

pytestmark = pytest.mark.mp


def objects() -> None:
    import torch

    import hvd_kernel.torch as hvd

    rank, size = hvd.rank(), hvd.size()
    for root in range(size):
        got = hvd.broadcast_object({"from": rank, "f": lambda: rank * 10, "t": torch.full((2,), rank)}, root)
        assert (got["from"], got["f"]()) == (root, root * 10)
        same(got["t"], torch.full((2,), root))
    assert hvd.broadcast_object(None if rank else [1], name="any type") == [1]
    everyone = hvd.allgather_object("x" * rank)
    assert everyone == ["x" * r for r in range(size)]
    assert hvd.allgather_object([rank, None][rank % 2], name="mixed") == [[r, None][r % 2] for r in range(size)]


def test_objects(ranks: RankPool) -> None:
    ranks.run(objects)


def parameters() -> None:
    import torch

    import hvd_kernel.torch as hvd

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
    import torch

    import hvd_kernel.torch as hvd

    rank, root = hvd.rank(), hvd.size() - 1
    model = torch.nn.Module()
    for kind in (torch.uint16, torch.uint32, torch.uint64, torch.complex64, torch.float8_e4m3fn, torch.bool):
        model.register_buffer(str(kind).removeprefix("torch."), torch.tensor([rank, 1]).to(kind))
    hvd.broadcast_parameters(model.state_dict(), root_rank=root)
    for name, buffer in model.named_buffers():
        assert buffer.tolist() == torch.tensor([root, 1]).to(buffer.dtype).tolist(), name
    strided = torch.arange(6).to(torch.uint32).view(3, 2)[:, 0] if rank == root else torch.zeros(3).to(torch.uint32)
    assert hvd.broadcast(strided, root).tolist() == [0, 2, 4]
    raises(ValueError, "is not supported: cast it to int64", hvd.allreduce, torch.zeros(2, dtype=torch.uint32))
    raises(ValueError, "reduce its real and imaginary parts", hvd.allreduce, torch.zeros(2) + 0j, op=hvd.Max)
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


def optimizers(model: object, rank: int) -> list[object]:
    from torch import optim

    params = list(model.parameters())
    groups = [{"params": params[:1], "lr": 0.1 + rank}, {"params": params[1:], "weight_decay": 0.5 * rank}]
    return [
        optim.SGD(groups, lr=0.5 + rank, momentum=0.9),
        optim.SGD(params, lr=0.5),
        optim.Adam(params, lr=0.01 * (rank + 1), betas=(0.5 + 0.1 * rank, 0.9), amsgrad=True),
        optim.AdamW(params),
        optim.RMSprop(params, alpha=0.9 + 0.01 * rank, centered=True),
        optim.Adagrad(params),
        optim.Adadelta(params),
        optim.Rprop(params, etas=(0.4, 1.1 + rank)),
    ]


def plain(value: object) -> object:
    import torch

    if isinstance(value, torch.Tensor):
        return ["tensor", str(value.dtype), list(value.shape), value.double().flatten().tolist()]
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [type(value).__name__, *map(plain, value)]
    return [type(value).__name__, repr(value)]


def states(trained: bool) -> list[object]:
    """State and options of several optimizers after the broadcast from the last rank, and the parameters before it."""
    import torch

    import hvd_kernel.torch as hvd

    rank, root = hvd.rank(), hvd.size() - 1
    found = []
    for number in range(8):
        torch.manual_seed(rank)
        model = torch.nn.Linear(3, 2)
        optimizer = optimizers(model, rank)[number]
        if trained or rank == root:  # else only the root has a state
            for _ in range(rank + 1):
                optimizer.zero_grad()
                model(torch.randn(4, 3)).square().sum().backward()
                optimizer.step()
        before = [p.clone() for p in model.parameters()]
        hvd.broadcast_optimizer_state(optimizer, root_rank=root)
        for p, b in zip(model.parameters(), before, strict=True):
            same(p.detach(), b.detach(), "a broadcast of state does not step")
        found.append([type(optimizer).__name__, plain(optimizer.state_dict())])
        for p in model.parameters():
            optimizer.state[p]
        optimizer.step()
    return found


@pytest.mark.parametrize("trained", [True, False])
def test_optimizer_state(ranks: RankPool, trained: bool) -> None:
    found = ranks.run(states, trained)
    assert all(each == found[-1] for each in found)
    adam = found[0][2][1]
    assert adam["param_groups"][1]["betas"][0] == "tuple"
    assert adam["param_groups"][1]["lr"][0] == "float"
    assert adam["state"]["0"]["step"][:3] == ["tensor", "torch.float32", []]


def refusals() -> None:
    import torch

    import hvd_kernel.torch as hvd

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
