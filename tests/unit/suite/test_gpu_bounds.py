"""Bounds of the GPU table (tools/gpu/bounds.py): which rows of issue 23's, as they were measured on one H100, miss them."""

from __future__ import annotations

import sys

import pytest
from hvdtest.offenders import ROOT

sys.path.insert(0, str(ROOT / "tools" / "gpu"))

from bounds import CYCLE, DDP, DEFAULT, GPT2, NONE, ONE_GROUP, RESNET, STAGED, Row, misses, unmeasured

MEASURED = {  # (what, ranks, MPS) -> way -> ms
    (RESNET, 2, False): {NONE: 25.1, DEFAULT: 93.0, STAGED: 87.9, CYCLE: 38.9, ONE_GROUP: 36.5, DDP: 57.9},
    (RESNET, 4, False): {NONE: 49.5, DEFAULT: 280.0, ONE_GROUP: 86.3, DDP: 98.5},
    (RESNET, 2, True): {NONE: 18.8, DEFAULT: 26.1, ONE_GROUP: 24.1},
    (RESNET, 4, True): {NONE: 35.8, DEFAULT: 55.2, CYCLE: 48.3, STAGED: 69.8},
    (GPT2, 2, False): {NONE: 30.2, DEFAULT: 64.0, STAGED: 127.7},
}
ROWS = [Row(*key, way, ms) for key, times in MEASURED.items() for way, ms in times.items()]
RINGS = [
    Row("allreduce 256 MiB", 2, True, "ring", 0.99, 0.99),
    Row("allreduce 256 MiB", 4, True, "ring", 3.9, 1.87),
    Row("allreduce 256 MiB", 2, False, "ring", 3.46, 1.0),  # in time slices nothing is asked of it
    Row("allreduce 64 KiB", 2, True, "ring", 0.12),
]


def test_rows_known_to_miss_their_bound() -> None:
    assert misses([*RINGS, *ROWS]) == [
        "allreduce 256 MiB, 4 ranks, with MPS: ring reaches 48 % of the limit, not 80 %",
        "GPT-2 small, bf16, 2 ranks, without MPS: a step takes 2.12 times as long as without reduction, not 1.50",
        "ResNet-50, batch 32, amp, 2 ranks, with MPS: a step takes 1.39 times as long as without reduction, not 1.15",
        "ResNet-50, batch 32, amp, 4 ranks, with MPS: a step takes 1.54 times as long as without reduction, not 1.25",
        "ResNet-50, batch 32, amp, 2 ranks, without MPS: num_groups=1 takes 36.5 ms, the default 93",
        "ResNet-50, batch 32, amp, 2 ranks, without MPS: DDP, Gloo takes 57.9 ms, the default 93",
        "ResNet-50, batch 32, amp, 4 ranks, without MPS: num_groups=1 takes 86.3 ms, the default 280",
        "ResNet-50, batch 32, amp, 4 ranks, without MPS: DDP, Gloo takes 98.5 ms, the default 280",
        "ResNet-50, batch 32, amp, 2 ranks, with MPS: num_groups=1 takes 24.1 ms, the default 26.1",
    ]


@pytest.mark.parametrize(
    ("rows", "kept"),
    [
        ([Row("allreduce 64 MiB", 4, True, "ring", 1.0, 0.80)], True),
        ([Row("allreduce 64 MiB", 4, True, "ring", 1.0, 0.79)], False),
        ([Row(GPT2, 4, True, NONE, 10.0), Row(GPT2, 4, True, DEFAULT, 11.0)], True),
        ([Row(GPT2, 4, True, NONE, 10.0), Row(GPT2, 4, True, DEFAULT, 11.1)], False),
        ([Row(RESNET, 2, False, NONE, 10.0), Row(RESNET, 2, False, DEFAULT, 90.0)], True),
        ([Row(RESNET, 2, False, DDP, 10.0), Row(RESNET, 2, False, DEFAULT, 10.0)], False),
        ([Row(RESNET, 2, False, STAGED, 1.0), Row(RESNET, 2, False, DEFAULT, 10.0)], True),
        ([Row(GPT2, 2, False, DDP, 10.0), Row(GPT2, 2, False, DEFAULT, 10.1)], True),
        ([Row(GPT2, 2, False, DDP, 10.0), Row(GPT2, 2, False, DEFAULT, 10.3)], False),
    ],
)
def test_bounds_of_a_row(rows: list[Row], kept: bool) -> None:
    assert (misses(rows) == []) is kept


def test_missing_row_does_not_meet_its_bound() -> None:
    wanted = [(GPT2, 2, True, way) for way in (NONE, DEFAULT)]
    rows = [Row(GPT2, 2, True, NONE, 10.0)]
    assert unmeasured(rows, wanted) == ["GPT-2 small, bf16, 2 ranks, with MPS: default was not measured"]


def test_formatted_row() -> None:
    assert str(RINGS[1]) == "| allreduce 256 MiB | 4 | yes | ring | 3.9 | 48 % |"
    assert str(ROWS[0]) == "| ResNet-50, batch 32, amp | 2 | no | none | 25.1 |  |"
