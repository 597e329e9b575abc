"""A trace as sums and lanes: counting, incomplete files, and the size of the picture."""

from __future__ import annotations

import json
from xml.etree import ElementTree as ET

import pytest

from hvd_kernel.widgets import lanes, timeline

MS = 1000.0


def events(*bars: tuple[str, float, float, dict[str, object]], pid: int = 1, name: str = "allreduce.x") -> list[object]:
    """One row; bars that begin together are the outer one first."""
    row: list[dict[str, object]] = [{"name": "process_name", "ph": "M", "pid": pid, "tid": 0, "args": {"name": name}}]
    points = []
    for order, (phase, begin, end, args) in enumerate(bars):
        points.append((begin, 1, order, {"name": phase, "ph": "B", "ts": begin, "pid": pid, "tid": 0}))
        points.append((end, 0, -order, {"ph": "E", "ts": end, "pid": pid, "tid": 0, "args": args}))
    return [*row, *(event for *_, event in sorted(points, key=lambda each: each[:3]))]


STEP = (
    ("NEGOTIATE_ALLREDUCE", 0.0, 2 * MS, {"bytes": 8}),
    ("ALLREDUCE", 2 * MS, 10 * MS, {"bytes": 8, "fused": 1, "dtype": "float32", "shape": "[2]"}),
    ("QUEUE", 2 * MS, 3 * MS, {"bytes": 8}),
    ("SHM_SLICES", 3 * MS, 10 * MS, {"bytes": 8}),
)


def test_sums() -> None:
    other = events(("ALLREDUCE", 4 * MS, 20 * MS, {"bytes": 4000}), pid=2, name="allreduce.y")
    recording = timeline.parse(json.dumps([*events(*STEP), *other]))
    assert {name: [(b.name, b.depth) for b in bars] for name, bars in recording.rows.items()} == {
        "allreduce.x": [("NEGOTIATE_ALLREDUCE", 0), ("ALLREDUCE", 0), ("QUEUE", 1), ("SHM_SLICES", 1)],
        "allreduce.y": [("ALLREDUCE", 0)],
    }
    assert timeline.summary(recording) == (
        "0.0 s, 2 operations on 2 names\n"
        "operation  count  bytes   mean   time  share\n"
        "allreduce      2   4 kB  12 ms  18 ms   90 %\n"
        "summed over tensors: SHM_SLICES 7 ms, negotiating 2 ms, in the queue 1 ms\n"
    )


@pytest.mark.parametrize("cut", ["\n]\n", "\n", "", ",\n", ',\n{"name":"ALLRE'])
def test_incomplete_trace_is_parsed_to_its_last_event(cut: str) -> None:
    lines = ",\n".join(json.dumps(event) for event in events(*STEP))
    assert len(list(timeline.parse(f"[\n{lines}{cut}").bars)) == len(STEP)


@pytest.mark.parametrize("text", ["", "{}", "[1]", "mine", '[{"a": 1}]'])
def test_invalid_timelines_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="it is not a timeline"):
        timeline.parse(text)


def test_the_picture_is_bounded_and_well_formed() -> None:
    rows: list[object] = []
    for pid in range(1, 60):
        bars = [("ALLREDUCE", at * 20.0, at * 20.0 + 9, {"bytes": 8}) for at in range(400)]
        rows += events(*bars, pid=pid, name=f"allreduce.<{pid}>&\x00")
    picture = lanes.page(timeline.parse(json.dumps(rows)), "/tmp/<a>.json", "said")
    svg = ET.fromstring(picture.partition("<pre")[0])
    shown = [group for group in svg if group.tag.endswith("}g")]
    assert len(shown) == lanes.MOST_LANES
    assert len(picture) < 100_000
    assert "and 47 more names, which took less" in picture
    assert "&lt;a&gt;" in picture


def test_an_empty_recording_has_a_picture_too() -> None:
    recording = timeline.parse("[]")
    assert timeline.summary(recording) == "0.0 s, no operation\n"
    ET.fromstring(lanes.render(recording, "t"))
