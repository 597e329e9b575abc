"""Definitions of earlier cells on a rank that starts later: which statements stand, and that nothing else runs."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from ipykernel.compiler import XCachingCompiler

from hvd_kernel.worker.inspect import definitions
from hvd_kernel.worker.inspect.origins import Origins


class Rank:
    """A fake of a rank's control: it runs cells like the shell."""

    def __init__(self) -> None:
        self.names: dict[str, Any] = {"__name__": "__main__", "rank": 0}
        self.origins = Origins()
        self.compiler = XCachingCompiler()  # type: ignore[no-untyped-call]

    def run(self, number: int, code: str) -> None:
        file = self.compiler.cache(code, number, raw_code=code)
        cell = self.origins.ran(number, code, code, file)
        try:
            exec(self.compiler(code, file, "exec"), self.names)
        except ZeroDivisionError:
            cell.failed = True


def replayed(old: Rank, *, retry: bool = False, fresh: Rank | None = None) -> tuple[Rank, dict[str, str]]:
    fresh = fresh or Rank()
    told, _ = definitions.define(fresh, {**definitions.standing(old), "retry": retry}, [])  # type: ignore[arg-type]
    return fresh, told["lost"]


@pytest.mark.parametrize(
    ("cells", "use", "value"),
    [
        (["import json as js"], "js.dumps([1])", "[1]"),
        (["import concurrent.futures"], "concurrent.futures.Future.__name__", "Future"),
        (["from math import pi as p, tau"], "p < tau", True),
        (["try:\n    import absent_module\nexcept ImportError:\n    from textwrap import dedent"], "dedent(' a')", "a"),
        (["if rank == 0:\n    def f(): return 1\nelse:\n    def f(): return 2"], "f()", 1),
        (["def f(): return 1", "def f(): return 2"], "f()", 2),
        (["def f(): return 1", "def g(): return f()", "def f(): return 3"], "g()", 3),
        (["import functools\n@functools.lru_cache\ndef f(x): return x"], "f(4)", 4),
        (["class A:\n    n = 1", "class B(A):\n    def m(self): return self.n"], "B().m()", 1),
        (["from dataclasses import dataclass\n@dataclass\nclass P:\n    x: int"], "P(3).x", 3),
        (["from __future__ import annotations\ndef f(x: Absent): return x"], "f(1)", 1),
        (["def f(): return 1\n1 / 0\ndef f(): return 2"], "f()", 1),
    ],
)
def test_definitions_of_cells_are_replayed(cells: list[str], use: str, value: object) -> None:
    old = Rank()
    for number, code in enumerate(cells, 1):
        old.run(number, code)
    fresh, lost = replayed(old)
    assert lost == {}
    assert eval(use, fresh.names) == eval(use, old.names) == value
    again, lost = replayed(fresh)  # the new rank may be the oldest one day
    assert lost == {}
    assert eval(use, again.names) == value


def test_nothing_else_of_a_cell_runs() -> None:
    old = Rank()
    old.run(1, "ran = [0]\nran.append(1)\nx = 5\ndef f():\n    return 1\nf()\nfor i in range(3): ran.append(i)")
    old.run(2, "def g(): return 1\ng = 5\nclass C: pass\nC = 6")
    fresh, lost = replayed(old)
    assert lost == {}
    assert set(fresh.names) - {"__builtins__"} == {"__name__", "rank", "f"}


def test_tracebacks_and_sources_are_those_of_the_cell() -> None:
    old = Rank()
    old.run(3, "x = 1\n\ndef f(y):\n    return y / 0\n")
    fresh, _ = replayed(old)
    assert inspect.getsource(fresh.names["f"]) == "def f(y):\n    return y / 0\n"
    assert fresh.names["f"].__code__.co_filename == old.names["f"].__code__.co_filename
    assert fresh.names["f"].__globals__ is fresh.names


def test_failing_definitions_are_named_and_retried() -> None:
    old = Rank()
    old.run(1, "base = 3\ndef needs(x=base): return x\ntwice = lambda x: 2 * x")
    fresh, lost = replayed(old)
    assert lost == {"needs": "NameError: name 'base' is not defined", "twice": definitions.NOT_REPLAYED}
    fresh.names["base"] = 4
    _, lost = replayed(old, retry=True, fresh=fresh)
    assert lost == {"twice": definitions.NOT_REPLAYED}
    assert fresh.names["needs"]() == 4
