"""``%hvd runs``: records of runs, the file in which they are kept, and how they are shown."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from hvd_kernel.formatting.units import NONE
from hvd_kernel.magics import cell_record
from hvd_kernel.magics.cell_record import FILE, CellRecord, History, commit, digest, from_line, to_line
from hvd_kernel.magics.commands.records import beside, runs_table, sparkline
from hvd_kernel.widgets.picture import overlay

RUN = CellRecord(
    time=0.0,
    place="/home/ann",
    cell=5,
    source=digest("train()"),
    ranks=(0, 1),
    seconds=12.5,
    steps=80,
    samples_per_s=1200.0,
    exposed=0.25,
    logged={"lr": 0.1, "train_loss": 0.5},
    curves={"log:train_loss": ((1.0, 2.0), (1.0, 0.5)), "samples/s": ((1.0, 2.0), (500.0, 600.0))},
)


def history(folder: Path) -> History:
    made = History()
    made.keep_in(folder)
    return made


def test_record_round_trips() -> None:
    line = to_line(RUN)
    found = from_line(line)
    assert found is not None
    assert to_line(found) == line
    assert found.ranks == (0, 1)
    assert from_line(line.replace('"steps"', '"of_a_newer_version"')) == replace(found, steps=0)


@pytest.mark.parametrize("line", ["", "{", "[]", "3", '{"number": "x"}', to_line(RUN)[:40]])
def test_invalid_records_are_skipped(line: str) -> None:
    assert from_line(line) is None


def test_another_kernel_finds_the_runs_of_this_one(tmp_path: Path) -> None:
    assert [history(tmp_path).add(RUN).number for _ in range(3)] == [1, 2, 3]
    assert [record.number for record in history(tmp_path).records()] == [1, 2, 3]


def test_a_torn_line_costs_that_run_alone(tmp_path: Path) -> None:
    history(tmp_path).add(RUN)
    with (tmp_path / FILE).open("a") as file:
        file.write(to_line(replace(RUN, number=2))[:30] + "\n")
    assert history(tmp_path).add(RUN).number == 2
    assert [record.number for record in history(tmp_path).records()] == [1, 2]


def test_runs_of_simultaneous_kernels_get_distinct_numbers(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        numbers = [*pool.map(lambda _: history(tmp_path).add(RUN).number, range(40))]
    assert sorted(numbers) == [*range(1, 41)]
    assert [record.number for record in history(tmp_path).records()] == [*range(1, 41)]


def test_file_is_bounded_and_numbers_continue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cell_record, "MOST", 10)
    kept = history(tmp_path)
    lengths = []
    for _ in range(40):
        kept.add(RUN)
        lengths.append(len(kept.records()))
    assert max(lengths) == 15
    assert lengths[-1] >= 10
    assert kept.records()[-1].number == 40


def test_runs_in_a_read_only_folder_are_kept_by_the_kernel(tmp_path: Path) -> None:
    kept = history(tmp_path / "not there")
    assert [kept.add(RUN).number, kept.add(RUN).number] == [1, 2]
    assert [record.number for record in kept.records()] == [1, 2]
    assert kept.problem.startswith("No such file or directory: ")


def test_the_commit_is_that_of_the_folder(tmp_path: Path) -> None:
    assert commit(str(tmp_path)) == ""
    assert commit(str(tmp_path / "not there")) == ""
    found = commit(str(Path(__file__).parent))
    assert len(found) == 12
    assert int(found, 16)


def test_the_table_has_a_line_for_each_run() -> None:
    lines = runs_table(
        [replace(RUN, number=3), replace(RUN, number=12, state="failed", logged={}, curves={})]
    ).splitlines()
    assert lines[0].split() == [
        "run",
        "ended",
        "cell",
        "state",
        "ranks",
        "seconds",
        "steps",
        "samples/s",
        "loss",
        "source",
    ]
    first, second = lines[1].split(), lines[2].split()
    assert first[0] == "3"
    assert first[3:] == ["[5]", "done", "2", "12.5", "80", "1,200", "0.5000", "█▁", digest("train()")[:6]]
    assert second[0] == "12"
    assert second[3:5] == ["[5]", "failed"]


def test_comparison_of_two_runs_with_their_ratio() -> None:
    other = replace(RUN, number=2, seconds=25.0, steps=160, source="else", logged={"train_loss": "nan"})
    assert beside([replace(RUN, number=1), other]).splitlines() == [
        "                run 1   run 2  ratio",
        "ranks           2       2      1.00",
        "seconds         12.50   25     2.00",
        "steps           80      160    2.00",
        "samples/s       1,200   1,200  1.00",
        "exposed comm %  25      25     1.00",
        f"lr              0.1000  {NONE}      {NONE}",
        f"train_loss      0.5000  nan    {NONE}",
        "different sources",
    ]


@pytest.mark.parametrize(
    ("values", "bars"),
    [
        ([], ""),
        ([None], ""),
        ([1.0], "▁"),
        ([1.0, None, 2.0, 3.0], "▁▄█"),
        ([2.0, 2.0], "▁▁"),
        ([float(i) for i in range(32)], "▁▂▃▄▅▆▇█"),
    ],
)
def test_a_sparkline_goes_from_the_lowest_value_to_the_highest(values: list[float | None], bars: str) -> None:
    assert sparkline(values) == bars


def test_the_picture_has_a_line_and_a_name_for_each_run() -> None:
    other = {"log:train_loss": ((0.5, 2.0, 3.0), (1.0, None, 0.2))}
    root = ET.fromstring(overlay({"run 1": RUN.curves, "run <2>": other}, "train_loss"))
    space = {"svg": "http://www.w3.org/2000/svg"}
    points = [line.get("points", "").split() for line in root.findall(".//svg:polyline", space)]
    assert [len(each) for each in points] == [2, 2, 2, 0]
    texts = [element.text for element in root.findall(".//svg:text", space)]
    assert texts[:2] == ["run 1", "run <2>"]
    assert "train_loss" in texts
    assert "samples/s per rank" in texts
