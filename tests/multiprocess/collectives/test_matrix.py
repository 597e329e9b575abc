"""Every collective x operator x data type x transport x number of ranks: NumPy's values to the bit, in any order of submission."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hvdtest import cases as c
from hvdtest.launch import RankPool
from hvdtest.pools import layouts

pytestmark = pytest.mark.mp

USUAL = ((2, "shm"), (3, "tcp"))
layout = layouts(
    *USUAL,
    nightly=((1, "auto"), *(each for n in (2, 3, 4, 5, 8) for each in ((n, "shm"), (n, "tcp")) if each not in USUAL)),
)
SHAPES = ((), (0,), (1,), (3, 5), (259,))
_digests: dict[tuple[str, int], str] = {}  # of (part, ranks): the same over every transport


def all_right(found: list[dict[str, object]], part: str) -> None:
    for rank, one in enumerate(found):
        assert not one["wrong"], f"rank {rank}, {one['wrong_count']} of {one['cases']}:\n" + "\n".join(one["wrong"])
        assert one["cases"]
    assert _digests.setdefault((part, len(found)), str(found[0]["digest"])) == found[0]["digest"], "transports differ"


def members() -> list[tuple[str, object, list[int]]]:
    """Process sets that overlap, made once: (name, set, ranks)."""
    import hvd_kernel.torch as hvd

    size = hvd.size()
    lists = {"all": list(range(size)), "head": list(range(size - 1)), "tail": list(range(1, size)), "last": [size - 1]}
    if not hasattr(hvd, "_matrix_sets"):
        hvd._matrix_sets = {name: hvd.ProcessSet(ranks) for name, ranks in lists.items() if size > 2 and name != "all"}
        hvd.init(process_sets=list(hvd._matrix_sets.values()))
    sets = [("all", hvd.global_process_set, lists["all"])]
    return sets + [(name, one, lists[name]) for name, one in hvd._matrix_sets.items()]


def reductions() -> dict[str, object]:
    import hvd_kernel.torch as hvd

    rank, cases = hvd.rank(), []
    for set_name, process_set, ranks in members():
        if rank not in ranks:
            continue
        for dtype in c.REDUCED if set_name == "all" else ("float32", "int64", "bfloat16"):
            for op in c.OPS:
                for shape in SHAPES if c.reducible(dtype, op) else ():
                    parts = [c.numbers(shape, r, dtype, op) for r in ranks]
                    want = c.torch_of(c.reduced(parts, dtype, op), dtype)
                    mine = c.torch_of(c.numbers(shape, rank, dtype, op), dtype)
                    name, code = f"{set_name}.{dtype}.{op}.{shape}", getattr(hvd, op)
                    cases.append(
                        c.Case(
                            name,
                            lambda m=mine, n=name, o=code, p=process_set: hvd.allreduce_async_(
                                m, name=n, op=o, process_set=p
                            ),
                            want,
                        )
                    )
    return c.run(cases, 1000 * rank)


def test_allreduce(ranks: RankPool) -> None:
    all_right(ranks.run(reductions, timeout=240), "allreduce")


def movements() -> dict[str, object]:
    import torch

    import hvd_kernel.torch as hvd

    rank, cases = hvd.rank(), []
    for set_name, process_set, ranks in members():
        if rank not in ranks:
            continue
        size, place = len(ranks), ranks.index(rank)
        for dtype in (*c.REDUCED, *c.MOVED) if set_name == "all" else ("float32", "bool"):
            tag = f"{set_name}.{dtype}"
            more = {"process_set": process_set}
            for kind, rows in {"rising": list(range(size)), "even": [2] * size, "none": [0] * size}.items():
                parts = [c.torch_of(c.numbers((rows[p], 3), r, dtype), dtype) for p, r in enumerate(ranks)]
                name = f"gather.{tag}.{kind}"
                want = torch.cat([c.bits(part) for part in parts]).view(parts[0].dtype)
                cases.append(c.Case(name, lambda m=parts[place], n=name, k=more: hvd.allgather_async(m, n, **k), want))
            for root in {ranks[0], ranks[-1]}:
                for shape in ((), (0, 2), (259,)):
                    name = f"broadcast.{tag}.{root}.{shape}"
                    mine, want = (c.torch_of(c.numbers(shape, r, dtype), dtype) for r in (rank, root))
                    cases.append(
                        c.Case(name, lambda m=mine, r=root, n=name, k=more: hvd.broadcast_async(m, r, n, **k), want)
                    )
            # place p sends (p + 2 q) % 4 rows to place q
            counts = [[(p + 2 * q) % 4 for q in range(size)] for p in range(size)]
            sent = [c.torch_of(c.numbers((sum(counts[p]), 2), r, dtype), dtype) for p, r in enumerate(ranks)]
            starts = [sum(counts[p][:place]) for p in range(size)]
            pieces = [c.bits(s)[b : b + counts[p][place]] for p, (s, b) in enumerate(zip(sent, starts, strict=True))]
            want = (
                torch.cat(pieces).view(sent[0].dtype),
                torch.tensor([counts[p][place] for p in range(size)], dtype=torch.int32),
            )
            name = f"alltoall.{tag}"
            cases.append(
                c.Case(
                    name,
                    lambda m=sent[place], s=counts[place], n=name, k=more: hvd.alltoall_async(m, s, n, **k),
                    want,
                )
            )
    return c.run(cases, 2000 * rank)


def test_allgather_broadcast_alltoall(ranks: RankPool) -> None:
    found = ranks.run(movements, timeout=240)
    for rank, one in enumerate(found):
        assert not one["wrong"], f"rank {rank}:\n" + "\n".join(one["wrong"])


def shares() -> dict[str, object]:
    import hvd_kernel.torch as hvd

    rank, cases = hvd.rank(), []
    for set_name, process_set, ranks in members():
        if rank not in ranks:
            continue
        size, place = len(ranks), ranks.index(rank)
        for dtype in c.REDUCED if set_name == "all" else ("float32",):
            for op in ("Sum", "Average") if dtype != "bool" else ("Sum",):
                for shape in ((2 * size + 1, 3), (1,), (0, 2), (size * 40, 2)):
                    parts = [c.numbers(shape, r, dtype, op) for r in ranks]
                    whole = c.torch_of(c.reduced(parts, dtype, op), dtype)
                    ends = np.cumsum([0, *(shape[0] // size + (p < shape[0] % size) for p in range(size))])
                    name, code = f"{set_name}.{dtype}.{op}.{shape}", getattr(hvd, op)
                    mine = c.torch_of(c.numbers(shape, rank, dtype, op), dtype)
                    cases.append(
                        c.Case(
                            name,
                            lambda m=mine, n=name, o=code, k=process_set: hvd.reducescatter_async(m, n, o, k),
                            whole[ends[place] : ends[place + 1]].clone(),
                        )
                    )
    return c.run(cases, 3000 * rank)


def test_reducescatter(ranks: RankPool) -> None:
    found = ranks.run(shares, timeout=240)
    for rank, one in enumerate(found):
        assert not one["wrong"], f"rank {rank}:\n" + "\n".join(one["wrong"])


def groups() -> dict[str, object]:
    import torch

    import hvd_kernel.torch as hvd

    rank, size = hvd.rank(), hvd.size()
    kinds = [("float32", (5, 3)), ("int64", (0,)), ("bfloat16", ()), ("float64", (259,)), ("uint8", (7,))]
    cases = []
    for number in range(5):
        for op in c.OPS:
            mine = [c.torch_of(c.numbers(s, rank + number, d, op), d) for d, s in kinds]
            want = [
                c.torch_of(c.reduced([c.numbers(s, r + number, d, op) for r in range(size)], d, op), d)
                for d, s in kinds
            ]
            name, code = f"reduce{number}.{op}", getattr(hvd, op)
            cases.append(
                c.Case(name, lambda m=mine, n=name, o=code: hvd.grouped_allreduce_async(m, name=n, op=o), want)
            )
        rows = [("float32", 3), ("int8", 2), ("float16", 1)]
        gathered = [[c.torch_of(c.numbers((r + number, k), r, d), d) for r in range(size)] for d, k in rows]
        own = [parts[rank] for parts in gathered]
        name = f"gather{number}"
        cases.append(
            c.Case(
                name,
                lambda m=own, n=name: hvd.grouped_allgather_async(m, n),
                [torch.cat(g) for g in gathered],
            )
        )
        name, shape = f"scatter{number}", (2 * size + number, 2)
        ends = np.cumsum([0, *(shape[0] // size + (p < shape[0] % size) for p in range(size))])
        wholes = [c.torch_of(c.reduced([c.numbers(shape, r, d) for r in range(size)], d, "Sum"), d) for d, _ in rows]
        mine = [c.torch_of(c.numbers(shape, rank, d), d) for d, _ in rows]
        cases.append(
            c.Case(
                name,
                lambda m=mine, n=name: hvd.grouped_reducescatter_async(m, n, hvd.Sum),
                [w[ends[rank] : ends[rank + 1]].clone() for w in wholes],
            )
        )
    return c.run(cases, 4000 * rank)


def test_groups(ranks: RankPool) -> None:
    found = ranks.run(groups)
    for rank, one in enumerate(found):
        assert not one["wrong"], f"rank {rank}:\n" + "\n".join(one["wrong"])


def scaled() -> dict[str, object]:
    """Scales that are powers of two are exact; whole numbers are scaled in float64 and cut off."""
    import torch

    import hvd_kernel.torch as hvd

    rank, size, cases = hvd.rank(), hvd.size(), []
    for dtype in (*c.FLOATS, "int32", "complex64"):
        parts = [c.numbers((40,), r, dtype) * 4 for r in range(size)]
        for before, after in ((0.5, 1.0), (1.0, 0.25), (2.0, 0.125)):
            total = np.sum([part * before for part in parts], axis=0) * after
            want = c.torch_of(np.trunc(total).astype(np.int64) if dtype == "int32" else total, dtype)
            name, mine = f"{dtype}.{before}.{after}", c.torch_of(parts[rank], dtype)
            cases.append(
                c.Case(
                    name,
                    lambda m=mine, n=name, b=before, a=after: hvd.allreduce_async(
                        m, name=n, op=hvd.Sum, prescale_factor=b, postscale_factor=a
                    ),
                    want,
                )
            )
    third = torch.full((3,), 1.0, dtype=torch.float16)  # rounded to the type before the sum, as in Horovod
    name = "rounded first"
    want = (torch.full((3,), 1 / 3, dtype=torch.float16).float() * size).half()
    cases.append(c.Case(name, lambda: hvd.allreduce_async(third, name=name, op=hvd.Sum, prescale_factor=1 / 3), want))
    return c.run(cases, 5000 * rank)


def test_scales(ranks: RankPool) -> None:
    all_right(ranks.run(scaled), "scales")


def random_sums() -> dict[str, object]:
    """Random data against a float64 reference, within the bound of rounding; and the same bytes on every rank."""
    import torch

    import hvd_kernel.torch as hvd

    rank, size, cases = hvd.rank(), hvd.size(), []
    for dtype in c.FLOATS:
        kind = getattr(torch, dtype)
        eps, inner = torch.finfo(kind).eps, torch.finfo(kind).eps if dtype in {"float32", "float64"} else 2.0**-23
        for number, count in enumerate((1, 5, 1000, 70_001)):
            made = [
                torch.from_numpy(np.random.default_rng([r, number]).standard_normal(count)).to(kind)
                for r in range(size)
            ]
            wide = torch.stack([one.double() for one in made])
            for op in ("Sum", "Average"):
                want = wide.sum(0) / (size if op == "Average" else 1)
                weight = wide.abs().sum(0) / (size if op == "Average" else 1)
                bound = (size + 1) * inner * weight + eps * want.abs() * 0.501 + torch.finfo(kind).tiny

                def close(got: object, want: object = want, bound: object = bound) -> None:
                    worst = ((got.double() - want).abs() / bound).max().item()
                    assert worst <= 1, f"off by {worst} times the bound"

                name, code = f"{dtype}.{count}.{op}", getattr(hvd, op)
                cases.append(
                    c.Case(name, lambda m=made[rank], n=name, o=code: hvd.allreduce_async(m, name=n, op=o), close)
                )
    return c.run(cases, 6000 * rank)


def test_random(ranks: RankPool) -> None:
    found = ranks.run(random_sums, timeout=240)
    all_right(found, "random")
    assert len({one["digest"] for one in found}) == 1, "ranks differ"


def adasums() -> dict[str, object]:
    """Orthogonal vectors add up, equal ones stay what they are; any number of ranks."""
    import torch

    import hvd_kernel.torch as hvd

    rank, size, cases = hvd.rank(), hvd.size(), []
    for dtype in c.FLOATS:
        kind = getattr(torch, dtype)
        own = torch.zeros(size + 3, dtype=kind)
        own[rank] = rank + 1
        want = torch.zeros(size + 3, dtype=kind)
        want[:size] = torch.arange(1, size + 1).to(kind)
        name = f"orthogonal.{dtype}"
        cases.append(c.Case(name, lambda m=own, n=name: hvd.allreduce_async(m, name=n, op=hvd.Adasum), want))
        alike = torch.arange(1, 9).to(kind)
        name = f"equal.{dtype}"

        def close(got: object, alike: object = alike, kind: object = kind) -> None:
            torch.testing.assert_close(got, alike, rtol=8 * torch.finfo(kind).eps, atol=0)

        cases.append(c.Case(name, lambda m=alike, n=name: hvd.allreduce_async(m, name=n, op=hvd.Adasum), close))
    return c.run(cases, 7000 * rank)


def test_adasum(ranks: RankPool) -> None:
    all_right(ranks.run(adasums), "adasum")


def every_size() -> dict[str, object]:
    """Every number of elements from 0 to 4097."""
    import torch

    import hvd_kernel.torch as hvd

    rank, size = hvd.rank(), hvd.size()
    cases = [
        c.Case(
            f"size{count}",
            lambda n=count: hvd.allreduce_async_(
                torch.arange(n, dtype=torch.float32) + rank, name=f"size{n}", op=hvd.Sum
            ),
            torch.arange(count, dtype=torch.float32) * size + size * (size - 1) / 2,
        )
        for count in (*range(600), *range(600, 4098, 7), 4095, 4096, 4097)
    ]
    return c.run(cases, 8000 * rank)


def test_sizes(ranks: RankPool) -> None:
    all_right(ranks.run(every_size, timeout=240), "sizes")


@pytest.mark.parametrize("size", [2, 3, 5])
def test_threads_as_ranks(size: int) -> None:
    """The same core with ranks as threads of this process."""
    import threading

    from hvd_kernel._native import Engine, LocalHub
    from hvd_kernel.core import tensor

    hub, wrong = LocalHub(size), []

    def body(rank: int) -> None:
        engine = Engine(rank, size, hub)
        try:
            for dtype in (*c.WHOLE, "float16", "float32", "float64", "complex64", "complex128", "bool"):
                for op in c.OPS:
                    for shape in SHAPES if c.reducible(dtype, op) else ():
                        mine = c.numbers(shape, rank, dtype, op).astype(dtype)
                        want = c.reduced([c.numbers(shape, r, dtype, op) for r in range(size)], dtype, op)
                        number, pointer = tensor.dtype_of(mine), mine.ctypes.data
                        code = getattr(tensor, op)
                        engine.wait(
                            engine.allreduce(f"{dtype}{op}{shape}", [(pointer, pointer, shape, number)], code), 60
                        )
                        exact = want.astype(np.float32 if dtype == "float16" else dtype).astype(dtype)
                        if not np.array_equal(mine, exact):
                            wrong.append(f"rank {rank} {dtype} {op} {shape}: {mine[:5]} instead of {exact[:5]}")
        except Exception as error:
            wrong.append(f"rank {rank}: {error!r}")
            engine.abort(repr(error))
        finally:
            engine.shutdown()

    threads = [threading.Thread(target=body, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    assert not any(thread.is_alive() for thread in threads)
    assert not wrong, "\n".join(wrong[:20])
    assert math.prod(SHAPES[3]) == 15
