"""Gradients in device memory that the ranks share: the host's bits, reduced where they lie, given back; elsewhere as before."""

from __future__ import annotations

import pytest
from hvdtest.launch import RankPool

SIZES = (3, 1000, 70_001, 33, 1, 257)


def reduced_where_they_lie(dtype: str) -> tuple[bool, int]:
    """Return whether gradients share memory, and how many regions were freed once unused."""
    import gc
    import warnings

    import torch
    from hvdtest.gpu import alike, here, there

    import hvd_kernel.torch as hvd
    from hvd_kernel.core.shared_memory import release_shared

    kind = getattr(torch, dtype)
    random = torch.Generator().manual_seed(hvd.rank())
    release_shared()

    def optimizer_of(where: str, params: list[torch.Tensor], wanted: bool) -> object:
        named = [(f"{where}.{dtype}.p{i}", p) for i, p in enumerate(params)]
        plain = torch.optim.SGD(params, lr=1.0)
        return hvd.DistributedOptimizer(plain, named_parameters=named, gradients_in_buckets=wanted)

    mine = [torch.nn.Parameter(there(torch.zeros(n, dtype=kind))) for n in SIZES]
    theirs = [torch.nn.Parameter(torch.zeros(n, dtype=kind)) for n in SIZES]
    here_optimizer, there_optimizer = optimizer_of("cpu", theirs, False), optimizer_of("gpu", mine, True)
    lies_at: set[tuple[int, ...]] = set()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # there are no homes, where no memory is shared
        for step in range(5):
            for p, q in zip(mine, theirs, strict=True):
                q.grad = torch.randn(q.shape, generator=random).to(kind)
                if step % 2:
                    p.grad = there(q.grad)  # as autograd gives it
                else:
                    p.grad = there(q.grad) if p.grad is None else p.grad.copy_(there(q.grad))
            if step == 4 and hvd.size() > 1:
                mine[2].grad, theirs[2].grad = None, torch.zeros_like(theirs[2])  # the graph did not reach it
            here_optimizer.synchronize()
            there_optimizer.synchronize()
            for number, (p, q) in enumerate(zip(mine, theirs, strict=True)):
                alike(here(p.grad), q.grad, f"{dtype} {number} in step {step}")
            if step:
                lies_at.add(tuple(p.grad.data_ptr() for p in mine))
    homes = [slot.home is not None for slot in there_optimizer._reducer.slots]
    assert all(homes) == any(homes)
    assert not all(homes) or len(lies_at) == 1
    del there_optimizer, mine, p
    gc.collect()
    return all(homes), release_shared()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gradients_are_reduced_in_place(dtype: str, layout: tuple[int, str], ranks: RankPool) -> None:
    np, way = layout
    expected = [True, 1] if way == "ring" and np > 1 else [False, 0]
    assert ranks.run(reduced_where_they_lie, dtype, timeout=120.0) == [expected] * np
