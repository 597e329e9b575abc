"""The limit of a run: each cause with the figures that show it, and advice only if it was measured."""

from __future__ import annotations

from typing import Any

import pytest

from hvd_kernel.diagnosis.limits_of_run import IDLE, Bottleneck, Figures, bottleneck
from hvd_kernel.diagnosis.stragglers import Slow
from hvd_kernel.protocol.messages import COMPRESSION, DATA_WORKERS

GB = 10**9


def rank(**more: Any) -> Figures:
    """Ten seconds in which it computes."""
    usual = {"waited": 0.2, "communicated": 0.4, "bytes": GB, "operations": 500, "ran": 9.8, "queued": 0.0}
    return Figures(10.0, **(usual | more))


def of(*ranks: Figures) -> dict[int, Figures]:
    return dict(enumerate(ranks))


def test_computation() -> None:
    found = bottleneck(of(rank(), rank(waited=0.3)), {})
    assert found == Bottleneck(
        (
            "limited by its own computation: communication that it does not hide takes 2 % of the time",
            "bus bandwidth 2.50 GB/s in operations of 2 MB",
        )
    )


def test_ranks_that_sleep_do_not_compute() -> None:
    """A loop that slept 50 of 60 ms was "limited by its own computation"."""
    asleep = rank(ran=1.5, processor=1.6)
    assert bottleneck(of(asleep, asleep), {}).sentences[:2] == (
        IDLE.format("82 %"),
        "communication that computation does not hide: 2 % of the time",
    )
    computation = "limited by its own computation: "
    assert bottleneck(of(asleep, rank()), {}).sentences[0].startswith(computation)
    elsewhere = rank(ran=1.5, processor=9.5)
    assert bottleneck(of(elsewhere, elsewhere), {}).sentences[0].startswith(computation), "on threads of a framework"
    device = rank(ran=1.5, on_device=True)
    assert bottleneck(of(device, device), {}).sentences[0].startswith(computation)


def test_communication_is_compared_with_the_possible_bandwidth() -> None:
    moved = {"waited": 3.8, "communicated": 5.1, "bytes": 8 * GB, "ran": 6.0}
    asked: list[float] = []

    def possible(size: float) -> float:
        asked.append(size)
        return 2.0 * GB

    found = bottleneck(of(rank(**moved), rank(**moved | {"waited": 4.0})), {}, possible)
    assert found.lines == [
        "limited by communication: 38 % of the time is not hidden by computation, another 12 % overlaps with it",
        "bus bandwidth 1.57 GB/s in operations of 16 MB; %hvd bench had 2.00 GB/s here",
        "compression=hvd.Compression.fp16 would halve what float32 takes of these 38 %",
    ]
    assert set(asked) == {16e6}


@pytest.mark.parametrize(
    ("more", "possible"),
    [
        ({}, None),  # without a measured bandwidth the bytes may not be the limit
        ({"operations": 50_000}, 2.0 * GB),  # small ones: their bytes are not what takes the time
        ({}, 9.0 * GB),  # the bus could do much more: something else takes the time
        ({"waited": 0.5}, 2.0 * GB),  # there is little to save
    ],
)
def test_no_advice_if_half_the_bytes_save_little_time(more: dict[str, Any], possible: float | None) -> None:
    moved = {"waited": 3.8, "communicated": 5.1, "bytes": 8 * GB, "ran": 6.0} | more
    assert bottleneck(of(rank(**moved), rank(**moved)), {}, lambda _size: possible).advice == ""


def test_enabled_options_are_not_advised() -> None:
    moved = {"waited": 3.8, "communicated": 5.1, "bytes": 8 * GB, "ran": 6.0}
    assert bottleneck(of(rank(**moved), rank(**moved)), {}, lambda _size: 2.0 * GB).advice != ""
    assert bottleneck(of(rank(**moved), rank(**moved, options=(COMPRESSION,))), {}, lambda _size: 2.0 * GB).advice == ""
    assert slowest(rank(ran=6.7, options=(DATA_WORKERS,))).advice == (
        "more processes that load its data, or a cache of what it reads, would save up to 28 % of the others' time"
    )


def slowest(one: Figures, cores: int = 0) -> Bottleneck:
    return bottleneck(of(rank(waited=3.0, ran=6.9), rank(waited=3.1, ran=6.8), one), {2: Slow(1.4, 0.28)}, cores=cores)


def test_a_rank_whose_core_is_shared() -> None:
    found = slowest(rank(ran=6.7, queued=3.1), cores=2)
    assert found.lines == [
        "limited by rank 2, slow 1.4x, others wait 28 %: its core is shared, for 31 % of its time other processes had it",
        "communication that computation does not hide: 2 % of the time",
        "bus bandwidth 3.33 GB/s in operations of 2 MB",
        "-np 2 would give each rank a core of its own, and save up to 28 % of the others' time",
    ]
    assert slowest(rank(ran=6.7, queued=3.1), cores=4).advice == "", "there are cores enough: others use them"


def test_a_rank_that_waits_for_its_data() -> None:
    found = slowest(rank(ran=6.7))
    assert found.sentences[0] == (
        "limited by rank 2, slow 1.4x, others wait 28 %: for 31 % of its time it does not compute, as when it waits for data or a file"
    )
    assert found.advice == (
        "num_workers of its DataLoader, or a cache of what it reads, would save up to 28 % of the others' time"
    )


def test_a_rank_with_more_work() -> None:
    found = slowest(rank())
    assert found.sentences[0].endswith("others wait 28 %: its own computation takes longer")
    assert found.advice == ""


def test_slow_rank_without_scheduler_figures() -> None:
    assert slowest(rank(ran=None)).sentences[0].endswith(": its own part of a step takes longer")


def test_worse_communication_precedes_the_slowest_rank() -> None:
    moved = {"waited": 4.0, "communicated": 5.0, "bytes": 8 * GB, "ran": 6.0}
    found = bottleneck(of(rank(**moved | {"waited": 5.5}), rank(**moved)), {1: Slow(1.3, 0.15)}, lambda _size: 2.0 * GB)
    assert found.sentences[0] == "limited by communication: 40 % of the time is not hidden by computation"
    assert found.sentences[-1] == "slowest rank: 1, slow 1.3x, others wait 15 %: its own computation takes longer"
    assert found.advice == "compression=hvd.Compression.fp16 would halve what float32 takes of these 40 %"


def test_no_advice_without_communication() -> None:
    assert bottleneck(of(rank()), {}) == Bottleneck()
    assert bottleneck(of(rank(operations=0), rank(operations=0)), {}) == Bottleneck()
