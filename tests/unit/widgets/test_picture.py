"""The picture: well-formed, scriptless, complete, and the same text for the same number of ranks."""

from __future__ import annotations

import hashlib
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from hvd_kernel.protocol.messages import MetricsSample
from hvd_kernel.widgets.board import Board
from hvd_kernel.widgets.dashboard import Dashboard
from hvd_kernel.widgets.definitions import EXPOSED, OVERLAPPED
from hvd_kernel.widgets.picture import MARKS, render

WIDGETS = Path(__file__).resolve().parents[3] / "widgets"
SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = "<script>alert(1)</script>&\"'><img src=x onerror=alert(1)>\x00\x1b[31m\u202e]]>"


def board(ranks: int, name: str = "loss", title: str = "cell 1", state: str = "done", columns: int = 30) -> Board:
    now = [0.0]
    made = Board(range(ranks), title, lambda: now[0])
    for i in range(columns):
        now[0] = i * 0.2
        for rank in range(ranks):
            done = i * 320
            made.feed(
                MetricsSample(
                    rank, now[0] + 1, state, name, i * 10, done, {name: 2.0 / (i + 1)}, i * 10**8, i, i * 10**8, 0,
                    i * 0.1, 3 * 10**8,
                )
            )  # fmt: skip
    made.finish(dict.fromkeys(range(ranks), state))
    return made


def words(svg: str) -> list[str]:
    return [e.text or "" for e in ET.fromstring(svg).iter(f"{SVG}text")]


def test_picture_has_final_numbers_of_ranks_and_totals() -> None:
    said = words(render(board(4).snapshot()))
    assert said.count("1,600") == 4  # samples/s of each rank
    assert "6,400" in said
    assert said.count("1.50") == 4 + 1  # bus GB/s of each rank and of all
    assert said.count("50 %") >= 4  # in operations
    assert said.count("300 MB") == 4
    assert said.count("0.06667") >= 5  # the loss: four ranks, and their mean
    assert [w for w in said if w in {"0", "1", "2", "3"}][-4:] == ["0", "1", "2", "3"]
    assert "finished · means over the training · first step after 0.2 s · 5.8 s" in said


def test_marks_are_lines_with_labels_that_do_not_overlap() -> None:
    now = [0.0]
    made = Board(range(2), "cell 1", lambda: now[0])
    for i in range(30):
        now[0] = i * 0.2
        for rank in range(2):
            made.feed(MetricsSample(rank, now[0] + 1, "compute", "", i, i * 320, {"loss": 1.0}, i, i, i, 0, i * 0.1, 1))
        if i == 10:
            made.mark("died", "rank 1 died")
        if i == 11:
            made.mark("joined", "rank 1 joined <again>")
    made.finish({})
    svg = render(made.snapshot())
    assert words(svg).count("rank 1 died") == words(svg).count("rank 1 joined <again>") == 2, "two charts"
    lines = [
        e for e in ET.fromstring(svg).iter(f"{SVG}rect") if e.get("fill") == MARKS["joined"] and e.get("width") == "1"
    ]
    assert len(lines) == 2
    places = [(e.get("x"), e.get("y")) for e in ET.fromstring(svg).iter(f"{SVG}text") if "rank 1" in (e.text or "")]
    assert len({y for _, y in places}) == 2, "one below the other"


def test_curves_begin_at_the_first_step() -> None:
    """23 s of imports were a flat line, and the training one tick at the right edge."""
    now = [0.0]
    made = Board(range(2), "cell 1", lambda: now[0])
    for i in range(130):
        now[0] = i * 0.2
        for rank in range(2):
            made.feed(MetricsSample(rank, now[0], "compute", step=max(0, i - 115) * 2, logged={"loss": 1.0}))
    made.finish({})
    said = words(render(made.snapshot()))
    assert ("step 2" in said, "step 28" in said, "0.0 s" in said) == (True, True, False)
    assert "finished · means over the training · first step after 23.2 s · 25.8 s" in said


def test_limit_of_the_run_is_between_figures_and_charts() -> None:
    shot = board(2).snapshot()
    assert shot["limits"][0].startswith("limited by its own computation: ")
    shot["limits"] = ["a word " * 20, *shot["limits"][1:]]
    svg = render(shot)
    found = [
        e for e in ET.fromstring(svg).iter(f"{SVG}text") if e.text and ("word" in e.text or "bus bandwidth" in e.text)
    ]
    assert " ".join(e.text or "" for e in found) == " ".join([*("a word " * 20).split(), *shot["limits"][1].split()])
    assert [e.get("y") for e in found] == ["108.0", "125.0", "142.0"], "a long sentence takes two lines"


def test_a13_slow_rank_is_marked_in_the_picture_alone() -> None:
    dashboard = Dashboard(range(4), "cell 1")
    for i in range(20):
        for rank in range(4):
            dashboard.feed(MetricsSample(rank, 0.2 * i, "compute", ops=i, wait_ns=i * 10**8 * (rank != 2)))
    dashboard.finish({})
    data, metadata = dashboard.static_bundle()
    assert [word for word in words(data["image/svg+xml"]) if word.startswith("slow")] == ["slow 2.0x"]
    assert data["text/plain"] == "hvd dashboard: 4 ranks"
    assert metadata["hvd"]["slow"] == {"2": [2.0, 0.5]}


@pytest.mark.parametrize("ranks", [1, 8, 9, 64])
def test_one_line_per_rank_in_each_chart(ranks: int) -> None:
    lines = list(ET.fromstring(render(board(ranks).snapshot())).iter(f"{SVG}polyline"))
    assert len(lines) == 2 * ranks
    assert all(len(line.attrib["points"].split()) >= 28 for line in lines)
    assert len({line.attrib["stroke"] for line in lines}) == ranks


def test_without_samples_there_is_a_table_and_no_chart() -> None:
    empty = Board([0, 1], "t", lambda: 0.0)
    svg = render(empty.snapshot())
    assert "polyline" not in svg
    assert words(svg).count("starting") == 2


def test_missing_figures_are_not_shown() -> None:
    made_at = [0.0]
    made = Board(range(2), "cell 1", lambda: made_at[0])
    for made_at[0] in range(5):
        for rank in range(2):
            made.feed(MetricsSample(rank, made_at[0], "compute", "", 0, 0, {"turn": float(made_at[0])}))
    said = words(render(made.snapshot()))
    assert said.count("turn") == 3, "a figure, a chart, a column"
    assert [said.count(label) for label in (EXPOSED, OVERLAPPED, "samples/s per rank")] == [0, 0, 0]
    assert said.count("samples/s") == 1, "a column"


def test_failed_ranks_are_named() -> None:
    assert any(w.startswith("failed on ranks 0-1") for w in words(render(board(2, state="failed").snapshot())))


def test_hostile_text_is_text() -> None:
    svg = render(board(2, name=HOSTILE, title=HOSTILE, state=HOSTILE).snapshot())
    tree = ET.fromstring(svg)
    assert {e.tag.removeprefix(SVG) for e in tree.iter()} <= {"svg", "rect", "text", "polyline"}
    assert not [a for e in tree.iter() for a in e.attrib if a.startswith("on") or a.endswith("href")]
    assert any(w.startswith('<script>alert(1)</script>&"') for w in words(svg))
    assert not re.search("[\x00-\x08\x1b\u202e]", svg)


def test_bundle_is_plain_data_with_a_constant_text() -> None:
    one, four = Dashboard([0], "a"), Dashboard(range(4), "b")
    assert one.static_bundle()[0]["text/plain"] == "hvd dashboard: 1 rank"
    data, metadata = four.static_bundle()
    assert data["text/plain"] == "hvd dashboard: 4 ranks"
    four.feed(MetricsSample(2, 1.0, "compute", step=7))
    four.finish({2: "failed"})
    assert four.static_bundle()[0]["text/plain"] == "hvd dashboard: 4 ranks"
    assert set(data) == {"image/svg+xml", "text/plain"}
    assert metadata["hvd"]["ranks"] == [0, 1, 2, 3]
    assert four._panel is None, "nobody asked for a browser, so no widget model may exist"


def test_size_is_bounded() -> None:
    assert len(render(board(64, columns=300).snapshot())) < 250_000


# ---- what is shipped


def test_uplot_files_equal_the_published_package() -> None:
    """npm pack uplot@1.6.32."""
    published = {
        "uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
        "uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
        "uPlot.LICENSE": "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
    }
    files = {path.name: path.read_bytes() for path in (WIDGETS / "static").iterdir()}
    _, script = files.pop("dashboard.js").split(b"\n", 1)
    files["uPlot.iife.min.js"] = script[:51_081]
    assert {name: hashlib.sha256(content).hexdigest() for name, content in files.items()} == published


def test_the_script_turns_no_text_into_markup_or_code() -> None:
    banned = r"innerHTML|outerHTML|insertAdjacentHTML|\beval\(|\bFunction\(|document\.write|createContextualFragment|DOMParser"
    assert not re.findall(banned, (WIDGETS / "static" / "dashboard.js").read_text())


@pytest.mark.parametrize("name", ["static/dashboard.js", "dashboard.css", "static/uPlot.min.css"])
def test_nothing_is_fetched(name: str) -> None:
    text = (WIDGETS / name).read_text()
    for address in ("/*! https://github.com/leeoniya/uPlot", 'xmlns="http://www.w3.org/2000/svg"'):  # names, no places
        text = text.replace(address, "")
    assert not re.findall(r"https?://|\bfetch\(|XMLHttpRequest|@import|url\(|WebSocket|\bimport\b", text)


def test_a_peak_within_a_column_is_in_the_picture() -> None:
    now = [0.0]
    peaked = Board(range(1), "t", lambda: now[0])
    for i in range(20):
        now[0] = i * 0.2
        ranges = {"loss": (0.5, 1000.0)} if i == 7 else {}
        peaked.feed(MetricsSample(0, now[0], "compute", logged={"loss": 1.0}, ranges=ranges))
    peaked.finish({0: "done"})
    picture = render(peaked.snapshot())
    assert picture.count("<polygon") == 1
    assert "1,080" in words(picture)
