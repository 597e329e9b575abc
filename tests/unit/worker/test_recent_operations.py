"""Operations from the core's records, and the ranks they waited for: the data of the panel's timeline."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, cast
from xml.etree import ElementTree as ET

import pytest

from hvd_kernel.protocol.operations import Open, Operation, Recent
from hvd_kernel.widgets.swimlanes.rank_lanes import KINDS, render
from hvd_kernel.widgets.swimlanes.window import KEEP_S, Window, late_shares
from hvd_kernel.worker.inspect import recent_operations
from hvd_kernel.worker.inspect.recent_operations import MOST, joined, operations, shortened

US = 1000


def records(name: str, *times: int, nbytes: int = 8) -> list[tuple[int, int, str, str, int, int]]:
    """Return the core's records of one tensor; requested, agreed, begun, end in microseconds."""
    asked, agreed, begun, end = times
    return [
        (asked * US, (agreed - asked) * US, "NEGOTIATE_ALLREDUCE", name, nbytes, 0),
        (agreed * US, (end - agreed) * US, "ALLREDUCE", name, nbytes, 1),
        (agreed * US, (begun - agreed) * US, "QUEUE", name, nbytes, 0),
        (begun * US, (end - begun) * US, "SHM_SLICES", name, nbytes, 0),
    ]


def test_operation_has_negotiation_queue_and_transfer() -> None:
    marks = [(5 * US, 0, "READY", "x", 0, 1), (6 * US, 0, "CYCLE", "", 0, 0), (10 * US, 40 * US, "WAIT", "x", 0, 0)]
    found, waits, last = operations([*marks, *records("x", 10, 20, 30, 50)])
    assert found == [Operation(10, 10, 20, 30, 50, "ALLREDUCE", "x", "SHM_SLICES", 1, 8)]
    assert waits == [(10, 50)]
    assert last == 4


def test_fused_tensors_are_one_operation() -> None:
    found, _, last = operations(
        [*records("a", 10, 20, 30, 50), *records("b", 15, 20, 30, 50, nbytes=24), *records("a", 60, 70, 71, 90)]
    )
    assert found == [
        Operation(10, 15, 20, 30, 50, "ALLREDUCE", "a", "SHM_SLICES", 2, 32),
        Operation(60, 60, 70, 71, 90, "ALLREDUCE", "a", "SHM_SLICES", 1, 8),
    ]
    assert last == 4


def test_overwritten_records_are_no_operation() -> None:
    assert operations(records("x", 10, 20, 30, 50)[1:]) == ([], [], 0)


def test_short_operations_are_shown_as_one_and_long_ones_stay() -> None:
    short = [
        Operation(i * 10, i * 10, i * 10 + 1, i * 10 + 2, i * 10 + 5, "ALLREDUCE", f"x{i}", "", 1, 8) for i in range(10)
    ]
    long = Operation(100, 100, 101, 102, 900, "ALLREDUCE", "y", "", 1, 80)
    found = shortened([*short, long], 60)
    assert [(each.name, each.merged, each.bytes, each.agreed, each.end) for each in found] == [
        ("x0", 6, 48, 1, 55),
        ("x6", 4, 32, 61, 95),
        ("y", 1, 80, 101, 900),
    ]
    assert sum(each.tensors for each in found) == 11
    assert shortened(short, 0) == short
    assert MOST >= 100
    assert joined([(5, 9), (0, 3), (2, 4)], 0) == [(0, 4), (5, 9)]


def op(name: str, asked: int, agreed: int, end: int) -> Operation:
    return Operation(asked, asked, agreed, agreed, end, "ALLREDUCE", name, "SHM", 1, 8)


def recent(*found: Operation, host: str = "here", now: int = 1_000_000, **more: Any) -> Recent:
    return Recent(host, now, (1, 7), found, **more)


def test_operation_waited_for_its_last_rank() -> None:
    window = Window("here", 0)
    window.update(
        {0: recent(op("x", 100, 900, 950)), 1: recent(op("x", 400, 905, 950)), 2: recent(op("x", 880, 901, 950))},
        1_000_000,
    )
    (first,), (second,), (third,) = (window.lanes[rank].operations for rank in range(3))
    assert (first.late, first.waited) == (2, 780)
    assert (second.late, second.waited) == (2, 480)
    assert third.late == -1
    assert late_shares(window.lanes) == {2: 780}
    window.update(
        {rank: recent(op("y", 100, 900, 950)) for rank in (0, 1)} | {2: recent(op("y", 880, 901, 950))}, 1_000_000
    )
    assert late_shares(window.lanes) == {2: 780}, (
        "of operations that are waited for at the same time the time counts once"
    )


def test_late_ranks_and_other_names_do_not_count() -> None:
    window = Window("here", 0)
    window.update(
        {0: recent(op("x", 100, 300, 400)), 1: recent(op("x", 140, 300, 400), op("y", 290, 300, 400))}, 1_000_000
    )
    assert [each.late for each in window.lanes[0].operations] == [-1]


def test_another_host_has_another_clock() -> None:
    window = Window("here", 0)
    far = 5_000_000_000
    window.update(
        {
            0: recent(op("x", 100, 900, 950)),
            1: recent(op("x", far + 700, far + 900, far + 950), host="far", now=far + 1_000_000),
        },
        1_000_300,
    )
    window.update({1: recent(host="far", now=far + 2_000_000)}, 2_000_100)
    assert window.lanes[1].shift == 100 - far, "the least delay is nearest to the truth"
    (first,) = window.lanes[0].operations
    assert first.late == 1
    assert abs(first.waited - 600) <= 300


def test_only_new_operations_and_names_are_sent() -> None:
    window = Window("here", 1000)
    window.update(
        {0: recent(op("x", 1100, 1200, 1300), waits=((1150, 1300),), open=(Open("y", 1400, (1,)),), came=500)}, 2000
    )
    first = window.news()
    assert first["from"] == 0
    assert first["words"] == ["ALLREDUCE", "x", "SHM"]
    assert first["lanes"] == {
        "0": {
            "operations": [[100, 100, 200, 200, 300, 0, 1, 2, 1, 8, 1, -1, 0]],
            "waits": [[150, 300]],
            "open": [["y", 400, [1]]],
            "came": -500,
        }
    }
    window.update({0: recent(op("z", 1500, 1600, 1700))}, 3000)
    second = window.news()
    assert (second["from"], second["words"], second["now"]) == (3, ["z"], 2000)
    assert [row[0] for row in second["lanes"]["0"]["operations"]] == [500]
    whole = window.whole()
    assert whole["words"] == ["ALLREDUCE", "x", "SHM", "z"]
    assert len(whole["lanes"]["0"]["operations"]) == 2
    assert window.whole(1)["words"] == ["ALLREDUCE", "z", "SHM"]
    assert window.cursors() == {"0": [1, 7]}


def test_rank_that_joins_a_cell_computes_after_joining() -> None:
    """Its lane began with the cell's first operation, which it was not there for."""
    window = Window("here", 0)
    old, new = [op("x", at, at + 10, at + 20) for at in (0, 900)], op("x", 905, 910, 920)
    window.update(
        {0: recent(*old, came=-5000), 1: recent(new, came=460), 2: recent(new, came=915)}, 1_000_000, over=True
    )
    drawn = ET.fromstring(render(window.lanes, "timeline")).iter("{http://www.w3.org/2000/svg}rect")
    computing = [each for each in drawn if (each.get("fill"), each.get("height")) == (KINDS["compute"][0], "7")]
    ends = [float(each.get("x", 0)) + float(each.get("width", 0)) for each in computing]
    share = [round(float(each.get("width", 0)) / float(computing[0].get("width", 0)), 3) for each in computing]
    assert ends == pytest.approx([ends[0]] * 3, abs=0.11)
    assert share == [1.0, 0.5, pytest.approx(15 / 920, abs=0.001)], "from its first operation, if that was earlier"


def test_the_past_is_forgotten() -> None:
    window = Window("here", 0)
    late = round(KEEP_S * 1e6)
    window.update({0: recent(op("x", 100, 200, 300))}, 1000)
    window.update({0: recent(op("y", late, late + 1, late + 400))}, late + 500)
    assert [each.operation.name for each in window.lanes[0].operations] == ["y"]
    assert [row[6] for row in window.news()["lanes"]["0"]["operations"]] == [1]


def test_answer_round_trips() -> None:
    before = recent(op("x", 1, 2, 3), waits=((1, 2),), open=(Open("y", 5, (0, 3)),), came=4)
    assert Recent.of(before.wire()) == before


def test_operations_of_the_last_cell_stay_available(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The notebook sent how long ago the cell began, and a request that was 50 ms late lost the first 50 ms."""
    cell_begun = time.monotonic() - 10.0
    first = round(1e6 * cell_begun) + 1
    made = [
        *records("before", first - 30, first - 20, first - 15, first - 10),
        *records("first", *range(first, first + 4)),
    ]
    engine = SimpleNamespace(trace=lambda cursor: (cursor + len(made), made))
    here = SimpleNamespace(is_initialized=lambda: True, generation=lambda: 1, engine=lambda: engine)
    monkeypatch.setattr(recent_operations, "session", here)
    monkeypatch.setattr(recent_operations, "communication", SimpleNamespace(pending=list))
    control = cast("Any", SimpleNamespace(rank=0, first_begun=cell_begun, cell_begun=cell_begun))

    def names(seconds: float | None) -> list[str]:
        told, _ = recent_operations.answer(control, {"cursors": {}, "seconds": seconds, "over": True}, [])
        return [each.name for each in Recent.of(told).operations]

    assert names(None) == ["first"]
    assert names(1e9) == ["before", "first"]
    assert names(9.9) == []
