"""Every collective x operator x data type x transport x number of ranks: NumPy's values to the bit, in any order of submission."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
from frameworks.conformance.adapters import TorchAsync
from frameworks.conformance.table import SUBJECTS
from hvdtest import cases as c
from hvdtest.exact import same
from hvdtest.launch import RankPool
from hvdtest.pools import layouts

pytestmark = pytest.mark.mp

USUAL = ((2, "shm"), (3, "tcp"))
layout = layouts(
    *USUAL,
    nightly=((1, "auto"), *(each for n in (2, 3, 4, 5, 8) for each in ((n, "shm"), (n, "tcp")) if each not in USUAL)),
)
SHAPES = ((), (0,), (1,), (3, 5), (259,))
LARGEST = 2000  # elements of an operand: larger ones are reduced one at a time, by the table's own tests
IN_SETS = {"float32", "int64", "bfloat16", "bool"}  # types that process sets have, too
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


def in_flight(subject: str) -> dict[str, object]:
    """The rows of the table of frameworks/conformance, for all ranks and in sets, many at a time."""
    import hvd_kernel.torch as hvd

    adapter, rank, cases = TorchAsync(), hvd.rank(), []
    for set_name, process_set, ranks in members():
        if rank not in ranks:
            continue
        place, size = ranks.index(rank), len(ranks)
        for row in SUBJECTS[subject]():
            operands = row.operands(place, size)
            if not adapter.supports(row, size) or any(value.numbers.size > LARGEST for value in operands):
                continue
            if set_name != "all" and not {value.dtype for value in operands} <= IN_SETS:
                continue
            options = dict(row.options(place, size)) | {"name": f"{set_name}.{row.name}", "process_set": process_set}
            if "root_rank" in options:
                options["root_rank"] = ranks[options["root_rank"]]
            results = [adapter.array(value) for value in row.expected(place, size)]
            mine = [(adapter.strided if row.strided else adapter.array)(value) for value in operands]
            want = results if row.operation.startswith("grouped") or len(results) > 1 else results[0]
            start = partial(adapter.start, row.operation, mine, options)
            cases.append(c.Case(str(options["name"]), start, want))
    return c.run(cases, 1000 * rank)


@pytest.mark.parametrize("subject", ["reductions", "movements", "shares", "groups"])
def test_table_in_any_order(ranks: RankPool, subject: str) -> None:
    all_right(ranks.run(in_flight, subject, timeout=240), subject)


def rounded_first() -> None:
    """A factor's result is rounded to the type before the sum, as in Horovod."""
    import torch

    import hvd_kernel.torch as hvd

    third = torch.full((3,), 1.0, dtype=torch.float16)
    want = (torch.full((3,), 1 / 3, dtype=torch.float16).float() * hvd.size()).half()
    same(hvd.allreduce(third, name="rounded first", op=hvd.Sum, prescale_factor=1 / 3), want)


def test_prescaled_halves_are_rounded_first(ranks: RankPool) -> None:
    ranks.run(rounded_first)


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
    """Orthogonal vectors add up, equal ones are unchanged; for any number of ranks."""
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
