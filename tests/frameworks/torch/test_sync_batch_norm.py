"""SyncBatchNorm: ranks with a part of the batch each compute the values of one process with the whole batch."""

from __future__ import annotations

import pytest
from hvdtest.exact import raises, same
from hvdtest.launch import RankPool
from hvdtest.pools import layouts

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.mp

CHANNELS = 3


layout = layouts((2, "shm"), nightly=((1, "auto"), (3, "tcp")))


def part(rank: int, shape: tuple[int, ...], step: int = 0, rows: int | None = None) -> object:
    """Return a rank's samples; the number depends on the rank, so that no two ranks have the same."""
    import torch

    generator = torch.Generator().manual_seed(100 * step + rank)
    count = 2 + rank if rows is None else rows
    return 3.0 * torch.randn(count, CHANNELS, *shape, dtype=torch.float64, generator=generator) + rank


def close(got: object, want: object, what: object, limit: float = 1e-12) -> None:
    import torch

    torch.testing.assert_close(got, want, rtol=limit, atol=limit, msg=lambda text: f"{what}: {text}")


def layers(shape: tuple[int, ...], options: dict[str, object]) -> tuple[object, object]:
    """The plain layer and ours, with the same weights, which differ from channel to channel."""
    import torch

    import hvd_kernel.torch as hvd

    kind = {0: torch.nn.BatchNorm1d, 1: torch.nn.BatchNorm1d, 2: torch.nn.BatchNorm2d, 3: torch.nn.BatchNorm3d}
    plain = kind[len(shape)](CHANNELS, dtype=torch.float64, **options)
    ours = hvd.SyncBatchNorm(CHANNELS, dtype=torch.float64, **options)
    for layer in (plain, ours) if plain.affine else ():
        with torch.no_grad():
            layer.weight.copy_(torch.arange(1.0, CHANNELS + 1))
            layer.bias.copy_(torch.arange(CHANNELS) - 0.5)
    return plain, ours


def like_one_process(shape: tuple[int, ...], options: dict[str, object], device: str = "cpu") -> None:
    """Outputs, derivatives and running statistics over three batches, then eval mode."""
    import torch

    import hvd_kernel.torch as hvd

    rank, size = hvd.rank(), hvd.size()
    plain, ours = (layer.to(device) for layer in layers(shape, options))
    for step in range(3):
        parts = [part(r, shape, step).to(device) for r in range(size)]
        ends = torch.tensor([len(one) for one in parts]).cumsum(0).tolist()
        mine = slice(ends[rank] - len(parts[rank]), ends[rank])
        whole = torch.cat(parts).requires_grad_()
        x = parts[rank].clone().requires_grad_()
        weights = torch.randn(whole.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(step))
        weights = weights.to(device)
        want = plain(whole)
        got = ours(x)
        assert got.device == x.device
        close(got, want[mine], "output")
        for layer in (plain, ours):
            layer.zero_grad()
        (want.square() * weights).sum().backward()
        (got.square() * weights[mine]).sum().backward()
        close(x.grad, whole.grad[mine], "derivative of the input", 1e-11)
        for one, other in zip(ours.parameters(), plain.parameters(), strict=True):
            close(hvd.allreduce(one.grad, name="parameter", op=hvd.Sum), other.grad, "derivative of a parameter", 1e-11)
        for (name, one), other in zip(ours.named_buffers(), plain.buffers(), strict=True):
            close(one, other, name)
            same(hvd.broadcast(one, 0, name=f"same.{name}"), one, "the same bits on every rank")
    x = part(rank, shape, 9).to(device)
    close(ours.eval()(x), plain.eval()(x), "eval mode: each rank by itself")


@pytest.mark.parametrize("shape", [(), (4,), (2, 3), (2, 1, 2)], ids=str)
@pytest.mark.parametrize(
    "options",
    [{}, {"momentum": None}, {"affine": False}, {"track_running_stats": False}, {"eps": 0.5, "momentum": 0.7}],
    ids=str,
)
def test_like_one_process(ranks: RankPool, shape: tuple[int, ...], options: dict[str, object]) -> None:
    ranks.run(like_one_process, shape, options)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("shape", [(), (2, 3)], ids=str)
def test_like_one_process_on_a_device(ranks: RankPool, shape: tuple[int, ...]) -> None:
    ranks.run(like_one_process, shape, {"momentum": None}, "cuda")


def unusual() -> None:
    """A rank without samples; narrow types; one value per channel in all; wrong inputs; frozen inputs."""
    import torch

    import hvd_kernel.torch as hvd

    rank, size = hvd.rank(), hvd.size()
    last = size - 1
    if size > 1:
        plain, ours = layers((), {})
        parts = [part(r, (), rows=0 if r == last else 2 + r) for r in range(size)]
        x = parts[rank].requires_grad_()
        got = ours(x)
        want = plain(torch.cat([one.detach() for one in parts]))
        start = sum(len(one) for one in parts[:rank])
        close(got, want[start : start + len(x)], "with a rank that has nothing")
        close(ours.running_var, plain.running_var, "running variance")
        got.square().sum().backward()
        assert x.grad.shape == x.shape
        one_value = hvd.SyncBatchNorm(CHANNELS)
        text = "Expected more than 1 value per channel when training, got input size (0, 3)"
        text = text if rank else text.replace("(0, 3)", "(1, 3)")
        raises(ValueError, text, one_value, torch.ones(0 if rank else 1, CHANNELS))
        got = one_value(torch.full((1, CHANNELS), float(rank)))
        middle = (size - 1) / 2
        deviation = (sum((r - middle) ** 2 for r in range(size)) / size + 1e-5) ** 0.5
        close(got, torch.full((1, CHANNELS), (rank - middle) / deviation), "one value on each rank", 1e-6)
        raises(ValueError, "expected 3 channels in dimension 1", one_value, torch.ones(2, CHANNELS + 1))
    for kind in (torch.float16, torch.bfloat16):
        layer = hvd.SyncBatchNorm(CHANNELS)
        x = part(rank, (5,)).to(kind).requires_grad_()
        wide = torch.nn.BatchNorm1d(CHANNELS)(torch.cat([part(r, (5,)).to(kind) for r in range(size)]).float())
        start = sum(2 + r for r in range(rank))
        got = layer(x)
        assert got.dtype == kind
        close(got.float(), wide[start : start + 2 + rank].to(kind).float(), kind, 2e-2)
        got.sum().backward()
        assert (x.grad.dtype, layer.weight.grad.dtype) == (kind, torch.float32)
    raises(ValueError, "expected at least 2D input (got 1D input)", hvd.SyncBatchNorm(2), torch.ones(2))
    layer = hvd.SyncBatchNorm(CHANNELS).requires_grad_(False)
    assert not layer(torch.ones(2, CHANNELS)).requires_grad


def test_unusual_inputs(ranks: RankPool) -> None:
    ranks.run(unusual)


def network() -> object:
    import torch

    torch.manual_seed(3)
    shared = torch.nn.BatchNorm1d(4)
    return torch.nn.Sequential(
        torch.nn.Conv1d(CHANNELS, 4, 3, padding=1),
        shared,
        torch.nn.Sequential(torch.nn.ReLU(), torch.nn.BatchNorm1d(4, momentum=None)),
        torch.nn.Conv1d(4, 4, 1),
        shared,
        torch.nn.Flatten(),
        torch.nn.Linear(4 * 6, 2),
    ).double()


def converted() -> None:
    """A whole network, converted, trains like one process with the whole batch; ranks have unequal parts of it."""
    import copy

    import torch

    import hvd_kernel.torch as hvd

    rank, size = hvd.rank(), hvd.size()
    alone, model = network(), network()
    calls = []
    model[1].register_forward_hook(lambda *_: calls.append(1))
    params, keys = list(model.parameters()), list(model.state_dict())
    plain = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    assert hvd.convert_sync_batchnorm(model) is model
    assert [type(module).__name__ for module in (model[1], model[2][1])] == ["SyncBatchNorm"] * 2
    assert model[1] is model[4], "a layer in two places stays one"
    assert all(one is other for one, other in zip(model.parameters(), params, strict=True))
    assert list(model.state_dict()) == keys
    optimizer = hvd.DistributedOptimizer(plain, named_parameters=model.named_parameters(), op=hvd.Sum)
    reference = torch.optim.SGD(alone.parameters(), lr=0.05, momentum=0.9)
    for step in range(4):
        parts = [part(r, (6,), step) for r in range(size)]
        total = sum(len(one) for one in parts)
        for net, made, x in ((alone, reference, torch.cat(parts)), (model, optimizer, parts[rank])):
            made.zero_grad()
            (net(x).square().sum() / total).backward()
            made.step()
    assert len(calls) == 8, "hooks stay"
    for (name, one), other in zip(model.state_dict().items(), alone.state_dict().values(), strict=True):
        close(one, other, name, 1e-10)
    twin = copy.deepcopy(model)
    x = part(rank, (6,), 7)
    same(twin(x), model(x), "a copy works like the original")
    one = hvd.convert_sync_batchnorm(torch.nn.BatchNorm2d(3))
    assert isinstance(one, hvd.SyncBatchNorm)
    raises(ValueError, "does not know its size yet", hvd.convert_sync_batchnorm, torch.nn.LazyBatchNorm1d())


def test_converted_network(ranks: RankPool) -> None:
    ranks.run(converted)


def in_a_set() -> None:
    """Statistics of the set's ranks only; the other rank's layer is a plain one."""
    import torch

    import hvd_kernel.torch as hvd

    hvd.shutdown()
    hvd.init(process_sets="dynamic")
    rank, size = hvd.rank(), hvd.size()
    members = hvd.add_process_set(list(range(1, size)))
    layer = hvd.convert_sync_batchnorm(torch.nn.BatchNorm1d(CHANNELS, dtype=torch.float64), process_set=members)
    assert layer.process_set is members
    together = [0] if rank == 0 else list(range(1, size))
    want = torch.nn.BatchNorm1d(CHANNELS, dtype=torch.float64)(torch.cat([part(r, ()) for r in together]))
    start = sum(2 + r for r in together if r < rank)
    close(layer(part(rank, ())), want[start : start + 2 + rank], "output")
    hvd.barrier()
    hvd.remove_process_set(members)
    raises(ValueError, "has not been registered", layer, part(rank, ()))


def test_process_set(ranks: RankPool) -> None:
    if ranks.np > 1:
        ranks.run(in_a_set)
