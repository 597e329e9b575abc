"""``%hvd memory``: the table of the largest variables of the ranks."""

from __future__ import annotations

from typing import Any

from hvd_kernel.magics.commands.inspection import LISTED, memory_table


def rank(resident: int, tensors: int, *, state: int = 0, **names: tuple[str, int, int]) -> dict[str, Any]:
    """Return the answer of a rank."""
    found = {
        name: {"type": kind, "size": size, "gradients": more, "made": f"cell 3:{i}"}
        for i, (name, (kind, size, more)) in enumerate(names.items(), 1)
    }
    kinds = {"resident": resident, "tensors": tensors} | ({"optimizer state": state} if state else {})
    return {"names": found, "kinds": kinds, "unseen": []}


def test_largest_values_come_first_and_differences_are_shown() -> None:
    ranks = {
        0: rank(
            500_000_000, 90_000_000, model=("Net", 20_000_000, 20_000_000), x=("Tensor", 30_000_000, 0), n=("int", 0, 0)
        ),
        1: rank(
            500_100_000,
            60_000_000,
            state=40_000_000,
            model=("Net", 20_000_000, 20_000_000),
            y=("list", 50_000_000, 0),
        ),
    }
    assert memory_table(ranks).splitlines() == [
        "name               type    size    gradients  ranks           made in",
        "(resident)                 500 MB             0-1",
        "(tensors)                  90 MB              0; least 60 MB",
        "(optimizer state)          40 MB              1",
        "y                  list    50 MB              1               cell 3:2",
        "model              Net     20 MB   20 MB      0-1             cell 3:1",
        "x                  Tensor  30 MB              0               cell 3:2",
    ]


def test_largest_of_many_variables_are_listed() -> None:
    names = {f"x{i}": ("Tensor", 1000 * (i + 1), 0) for i in range(LISTED + 3)}
    lines = memory_table({0: rank(1, 1, **names)}).splitlines()
    assert len(lines) == 3 + LISTED + 1
    assert lines[3].split()[0] == f"x{LISTED + 2}"
    assert lines[-1] == "3 smaller ones"


def test_hidden_memory_of_a_framework_is_noted_once() -> None:
    blind = rank(1000, 0) | {"unseen": ["JAX keeps no gradients"]}
    assert memory_table({0: blind, 1: rank(1000, 0), 2: blind}).splitlines()[-1:] == ["JAX keeps no gradients"]
