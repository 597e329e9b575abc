"""Gradients in shared memory: the same bits as without, whatever the user does to them; nothing is copied; nothing crashes."""

from __future__ import annotations

import pytest
from hvdtest.exact import raises, same
from hvdtest.launch import RankPool
from hvdtest.lazy import hvd, torch
from hvdtest.pools import layout_id, layouts

pytestmark = pytest.mark.mp


layout = layouts((2, "shm"), (3, "tcp"), nightly=((1, "auto"), (3, "shm"), (4, "shm")))
on_two = pytest.mark.parametrize("layout", [(2, "shm")], ids=layout_id)
in_memory = pytest.mark.parametrize(
    "layout", [(2, "shm"), pytest.param((3, "shm"), marks=pytest.mark.nightly)], ids=layout_id
)


def model_of() -> object:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(30, 70), torch.nn.Tanh(), torch.nn.Linear(70, 9), torch.nn.LayerNorm(9)]
    return torch.nn.Sequential(*layers)


def batch(number: int) -> object:
    return torch.randn(5, 30, generator=torch.Generator().manual_seed(100 * number + hvd.rank()))


def trained(user: str, gradients_in_buckets: bool | None, **options: object) -> tuple[list[object], object]:
    """Return the parameters after a few steps, with an action of the user between them."""
    model = model_of()
    params = list(model.parameters())
    passes = int(options.get("backward_passes_per_step", 1))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(params, lr=0.1, momentum=0.9, weight_decay=0.01),
        named_parameters=model.named_parameters(),
        gradients_in_buckets=gradients_in_buckets,
        **options,
    )
    for step in range(6):
        if user == "replaces":
            pass  # gradients add up, on what the user has put there
        elif user == "keeps" and step:
            optimizer.zero_grad(set_to_none=False)
        elif user != "plain" or step % 2:
            optimizer.zero_grad()
        elif step:
            model.zero_grad()
        for each in range(passes):
            model(batch(step * passes + each)).square().sum().backward()
        if user == "clips":
            optimizer.synchronize()
            torch.nn.utils.clip_grad_norm_(params, 0.5)
            with optimizer.skip_synchronize():
                optimizer.step()
        else:
            optimizer.step()
        if user == "replaces":
            params[0].grad = params[0].grad.clone()
            params[1].grad.data = torch.ones_like(params[1])
        elif user == "freezes":
            params[2].requires_grad_(step % 2 == 0)
        elif user == "loads" and step == 3:
            optimizer.load_state_dict(optimizer.state_dict())
    return [p.detach().clone() for p in params], optimizer


def alike(user: str, options: dict[str, object]) -> list[bool]:
    """The same bits with and without; whether gradients were in shared memory."""
    from hvd_kernel.torch.buckets import COMPRESSED

    if options.pop("compressed", False):
        options["compression"] = hvd.Compression.fp16
    found = []
    want, _ = trained(user, False, **options)
    for asked in (None, True) if "compression" not in options else (None,):
        got, optimizer = trained(user, asked, **options)
        for one, other in zip(got, want, strict=True):
            same(one, other, (user, asked))
        found.append(all(slot.home is not None for slot in optimizer._reducer.slots))
    if "compression" in options and hvd.size() > 1:
        raises(ValueError, COMPRESSED, trained, user, True, **options)
    assert torch.equal(hvd.allreduce(torch.ones(1), name="after"), torch.ones(1))
    return found


@pytest.mark.filterwarnings("ignore:Gradients are not in shared memory")
@pytest.mark.parametrize("user", ["plain", "keeps", "clips", "replaces", "freezes", "loads"])
def test_same_bits(ranks: RankPool, user: str) -> None:
    possible = ranks.np > 1 and "tcp" not in ranks.transport
    assert ranks.run(alike, user, {}) == [[possible, possible]] * ranks.np


@pytest.mark.parametrize(
    "options",
    [
        {"backward_passes_per_step": 2},
        {"groups": 2},
        {"gradient_predivide_factor": 4.0},
        {"op": 1},
        {"compressed": True},
    ],
    ids=str,
)
def test_same_bits_with_options(ranks: RankPool, options: dict[str, object]) -> None:
    possible = ranks.np > 1 and "tcp" not in ranks.transport and "compressed" not in options
    found = ranks.run(alike, "plain", options)
    assert all(each == [possible] * len(each) for each in found)


def in_place() -> bool:
    """Every gradient is its home after backward, and the homes lie in one region, in the order of their arrival."""
    import copy
    import io

    params, optimizer = trained("none", None)
    reducer = optimizer._reducer
    if hvd.size() == 1:
        return True
    model = model_of()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    for step in range(3):
        optimizer.zero_grad()
        model(batch(step)).square().sum().backward()
        optimizer.step()
    slots = optimizer._reducer.slots
    assert all(slot.param.grad.data_ptr() == slot.home.tensor.data_ptr() for slot in slots)
    places = sorted(slot.home.tensor.data_ptr() for slot in slots)
    sizes = sum(-(-slot.home.tensor.nbytes // 64) * 64 for slot in slots)
    assert places[-1] - places[0] < sizes
    assert slots[-1].home.tensor.data_ptr() < slots[0].home.tensor.data_ptr(), "the last layer's gradients come first"
    saved = io.BytesIO()
    torch.save(slots[1].param.grad, saved)
    assert saved.tell() < slots[1].home.tensor.nbytes + 4096, "a gradient is saved without its neighbours"
    twin = copy.deepcopy(model)
    assert all(p.grad is None or p.grad.data_ptr() not in places for p in twin.parameters())
    assert reducer is not optimizer._reducer
    assert params
    return True


@on_two
def test_nothing_is_copied(ranks: RankPool) -> None:
    assert ranks.run(in_place) == [True] * 2


def outlived() -> None:
    """Gradients that the user still holds stay readable after shutdown; the next engine allocates new memory."""
    import gc

    model = model_of()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    held = []
    for generation in range(3):
        for step in range(3):
            optimizer.zero_grad()
            model(batch(step)).square().sum().backward()
            optimizer.step()
        if hvd.size() > 1:
            assert all(slot.home is not None for slot in optimizer._reducer.slots)
        held.append([(p.grad, p.grad.clone()) for p in model.parameters()])
        hvd.shutdown()
        for one, copy in held[-1]:
            same(one, copy, f"after shutdown {generation}")
            one.add_(1)
            copy.add_(1)
        hvd.init()
    for pairs in held:
        for one, copy in pairs:
            same(one, copy, "after a reset")
    mine = hvd.shared_empty((1000,), torch.float64)
    mine.fill_(hvd.rank())
    same(
        hvd.allreduce_(mine, name="mine", op=hvd.Sum), torch.full((1000,), sum(range(hvd.size())), dtype=torch.float64)
    )
    hvd.shutdown()
    assert float(mine.sum()) == 1000.0 * sum(range(hvd_size_before(mine)))
    del held, mine
    gc.collect()
    hvd.init()


def hvd_size_before(mine: object) -> int:
    total = float(mine[0])
    size = 1
    while sum(range(size)) < total:
        size += 1
    return size


@on_two
def test_after_shutdown(ranks: RankPool) -> None:
    ranks.run(outlived)


def released() -> list[int]:
    """Unused regions are freed at the next allocation, once no rank holds them."""
    from hvd_kernel.core import shared_memory

    hvd.release_shared()
    before = len(shared_memory._regions)
    tensors = [hvd.shared_empty((2, 3), torch.float32) for _ in range(4)]
    del tensors[hvd.rank() :]  # every rank forgets others
    counts = [len(shared_memory._regions) - before]
    counts.append(hvd.release_shared())
    tensors.clear()
    counts.append(hvd.release_shared())
    counts.append(len(shared_memory._regions) - before)
    return counts


@in_memory
def test_regions_are_released(ranks: RankPool) -> None:
    for found in ranks.run(released):
        assert found == [4, 5 - ranks.np, ranks.np - 1, 0]


def shared_tensors() -> None:
    """Shared memory in ordinary collectives: in place, partly, with other offsets, in and out of shared memory."""
    rank, size = hvd.rank(), hvd.size()
    whole = float(sum(range(1, size + 1)))
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.bool):
        mine = hvd.shared_empty((4099,), dtype)
        mine.fill_(rank + 1)
        want = torch.full((4099,), whole).to(dtype)
        for op in (hvd.Sum, hvd.Max):
            mine.fill_(rank + 1)
            same(
                hvd.allreduce_(mine, name="in place", op=op),
                want if op == hvd.Sum else torch.full((4099,), size).to(dtype),
            )
        mine.fill_(rank + 1)
        part = mine[7 + rank : 107 + rank]  # not the same place on every rank
        hvd.allreduce_(part, name="shifted", op=hvd.Sum)
        same(part, want[:100])
        same(mine[:7], torch.full((7,), rank + 1).to(dtype))
        mine.fill_(rank + 1)
        same(hvd.allreduce(mine, name="out", op=hvd.Sum), want)
        same(mine, torch.full((4099,), rank + 1).to(dtype))
        other = mine if rank else torch.full((4099,), rank + 1).to(dtype)  # private on rank 0
        same(hvd.allreduce_(other, name="mixed", op=hvd.Sum), want)
        mine.fill_(rank + 1)
        group = hvd.grouped_allreduce_([mine[:64], mine[64:128]], name="group", op=hvd.Sum)
        same(group[1], want[:64])
        same(hvd.broadcast_(mine, size - 1, name="root"), mine)
    assert hvd.shared_empty((0, 3)).shape == (0, 3)
    assert hvd.shared_empty(5).shape == (5,)


@in_memory
def test_shared_tensors(ranks: RankPool) -> None:
    ranks.run(shared_tensors)


def refused() -> None:
    raises(hvd.HorovodInternalError, "", hvd.shared_empty, (10,))
    same(hvd.allreduce(torch.ones(1), name="after"), torch.ones(1))


@pytest.mark.parametrize("layout", [(3, "tcp")], ids=layout_id)
def test_without_shared_memory(ranks: RankPool) -> None:
    ranks.run(refused)
