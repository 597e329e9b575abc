"""Where a variable was created: the line of the cell that assigned it last, and the sentence after an out-of-memory error."""

from __future__ import annotations

import gc
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from hvd_kernel.torch.adapter import ADAPTER
from hvd_kernel.worker.inspect import variables
from hvd_kernel.worker.inspect.origins import MOST, Origins, assigned


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("x = 1\ny: int = 2\n(z := 3)", {"x": 1, "y": 2, "z": 3}),
        ("a, (b, *c) = f()", {"a": 1, "b": 1, "c": 1}),
        ("x = 1\nx += 2", {"x": 2}),
        ("for i in r:\n    if i:\n        last = i", {"i": 1, "last": 3}),
        ("with open(p) as file:\n    pass", {"file": 1}),
        ("def f():\n    hidden = 1\nclass C:\n    also = 2", {}),
        ("squares = [n * (kept := n) for n in r]", {"squares": 1, "kept": 1}),
        ("f = lambda: (inner := 1)", {"f": 1}),
        ("x.y = 1\nx[0] = 2", {}),
        ("x = (", {}),
    ],
)
def test_names_assigned_at_the_top_level(code: str, found: dict[str, int]) -> None:
    assert dict(assigned(code)) == found


def test_last_assignment_of_a_name_is_shown() -> None:
    origins = Origins()
    origins.ran(3, "x = 1\ny = 2")
    origins.pushed(["y", "z"])
    origins.ran(7, "\nz = 1")
    assert origins.places() == {"x": "cell 3:1", "y": "pushed", "z": "cell 7:2"}


def test_old_cells_are_forgotten() -> None:
    origins = Origins()
    for cell in range(1, MOST + 3):
        origins.ran(cell, f"x{cell} = 1")
    places = origins.places()
    assert len(places) == MOST
    assert places[f"x{MOST + 2}"] == f"cell {MOST + 2}:1"
    assert "x2" not in places


def control(**names: Any) -> Any:
    origins = Origins()
    origins.ran(3, "\n".join(f"{name} = 1" for name in names))
    return SimpleNamespace(rank=2, names=names, origins=origins)


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        np._core._exceptions._ArrayMemoryError((1 << 50,), np.dtype("f8")),
        type("OutOfMemoryError", (RuntimeError,), {})("CUDA out of memory"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory"),
    ],
)
def test_the_sentence_names_the_largest_and_their_lines(error: BaseException) -> None:
    rank = control(small=b"x", big=np.zeros(3_000_000, np.uint8), bigger=np.zeros(5_000_000, np.uint8))
    said = variables.explanation(rank, error)
    assert said.startswith("rank 2 holds ")
    assert said.endswith("; largest: bigger 5 MB (cell 3:3), big 3 MB (cell 3:2)"), said


def test_other_errors_have_no_such_sentence() -> None:
    assert variables.explanation(control(), RuntimeError("size mismatch")) == ""
    assert variables.explanation(control(), ValueError("DefaultCPUAllocator")) == ""


def test_tensors_without_memory_are_not_counted() -> None:
    """`%hvd memory` raised after torch.compile, whose fake tensors have no memory, and counted tensors on meta."""
    gc.collect()
    before = ADAPTER.alive_bytes()["tensors"]
    with FakeTensorMode():
        fake = torch.ones(1 << 20)
    meta = torch.empty(1 << 20, device="meta")
    real = torch.zeros(1 << 20)
    assert ADAPTER.alive_bytes()["tensors"] - before == real.nbytes
    assert (fake.nbytes, meta.nbytes) == (real.nbytes, real.nbytes)
