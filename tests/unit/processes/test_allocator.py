"""Memory that ranks keep for their next step: the variables of glibc's allocator, and the user's that win."""

from __future__ import annotations

import pytest

from hvd_kernel.errors import ConfigError
from hvd_kernel.processes import allocator, limits

GIB = 1 << 30


@pytest.fixture(autouse=True)
def _machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "total_memory", lambda: 64 * GIB)


def tunables(kept: int, top: int = 64 << 20) -> dict[str, str]:
    entries = {"mmap_max": 0, "trim_threshold": kept, "top_pad": top, "hugetlb": 1}
    return {"GLIBC_TUNABLES": ":".join(f"glibc.malloc.{name}={value}" for name, value in entries.items())}


@pytest.mark.parametrize(
    ("env", "ranks", "memory", "kept"),
    [
        pytest.param({}, 4, None, 2 * GIB, id="an eighth of the host's memory"),
        pytest.param({"HVD_KEEP_MEMORY": "auto"}, 1, None, 8 * GIB, id="auto"),
        pytest.param({}, 4, 8 * GIB, GIB, id="an eighth of the rank's limit"),
        pytest.param({"HVD_KEEP_MEMORY": "3G"}, 4, GIB, 3 * GIB, id="chosen"),
    ],
)
def test_rank_keeps_freed_memory(env: dict[str, str], ranks: int, memory: int | None, kept: int) -> None:
    assert allocator.variables(env, ranks, memory) == tunables(kept)


def test_heap_does_not_grow_by_more_than_is_kept() -> None:
    assert allocator.variables({"HVD_KEEP_MEMORY": "1M"}, 4) == tunables(1 << 20, 1 << 20)


@pytest.mark.parametrize(
    "env",
    [
        {"HVD_KEEP_MEMORY": "0"},
        {"MALLOC_TRIM_THRESHOLD_": "1"},
        {"MALLOC_MMAP_MAX_": "7"},
        {"GLIBC_TUNABLES": "glibc.malloc.arena_max=1"},
    ],
    ids=str,
)
def test_users_allocator_wins(env: dict[str, str]) -> None:
    assert allocator.variables(env, 2) == {}


def test_other_tunables_are_kept() -> None:
    theirs = "glibc.cpu.x86_ibt=off"
    ours = tunables(4 * GIB)["GLIBC_TUNABLES"]
    assert allocator.variables({"GLIBC_TUNABLES": theirs}, 2) == {"GLIBC_TUNABLES": f"{theirs}:{ours}"}


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({}, "for their next step ranks keep up to 8 GiB together of what they free (HVD_KEEP_MEMORY)"),
        (
            {"HVD_KEEP_MEMORY": "1G"},
            "for their next step ranks keep up to 1 GiB each of what they free (HVD_KEEP_MEMORY)",
        ),
        ({"MALLOC_TOP_PAD_": "1"}, "freed memory is kept as glibc or your variables define it"),
    ],
)
def test_doctor_says_how_much_is_kept(env: dict[str, str], expected: str) -> None:
    assert allocator.sentence(env) == expected


def test_wrong_value_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"HVD_KEEP_MEMORY='much' cannot be used: it must be auto, or a number of bytes"
    ):
        allocator.variables({"HVD_KEEP_MEMORY": "much"}, 2)
