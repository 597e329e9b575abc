"""%hvd timeline in a real kernel: rank 0 records, the cell shows lanes and sums, and the file is a trace."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hvdtest.kernel import Kernel

pytestmark = [pytest.mark.jupyter, pytest.mark.mp, pytest.mark.timeout(400)]

CELL = "%%hvdrun\nimport torch\nfor i in range(20): hvd.allreduce(torch.ones(3), name=f'grad{i % 4}')"


@pytest.mark.cluster(2)
def test_a_cell_is_recorded_and_shown(kernel: Kernel, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    refused = kernel.run("%hvd timeline stop", allow_error=True)
    assert refused.error == "UsageError: %hvd timeline: none is being recorded; %hvd timeline start begins one"
    said = kernel.run(f"%hvd timeline start {path}").text()
    assert said == f"rank 0 records into {path}: run cells, then %hvd timeline stop\n"
    kernel.run(CELL)
    ended = kernel.run("%hvd timeline stop")
    (shown,) = ended.shown
    head, _, row, *_, last = shown.splitlines()
    assert head.startswith(f"{path}: ")
    assert head.endswith(" s, 20 operations on 4 names")
    assert row.split()[:2] == ["allreduce", "20"]
    assert last == "zoom into it in https://ui.perfetto.dev or chrome://tracing"
    (display,) = ended.contents("display_data")
    assert display["data"]["text/html"].startswith("<svg ")
    assert all(f"allreduce.grad{i}" in display["data"]["text/html"] for i in range(4))
    events = json.loads(path.read_text())
    (of_one,) = {json.dumps(e["args"]) for e in events if e["ph"] == "E" and e["args"].get("shape")}
    assert json.loads(of_one) == {"bytes": 12, "fused": 1, "dtype": "float32", "shape": "[3]"}
    kernel.run(CELL)
    assert kernel.run("%hvd timeline").shown == [shown], "what came after the end is not in it"
    kernel.run(f"%hvd timeline save {tmp_path}/last.json")
    last_cell = json.loads((tmp_path / "last.json").read_text())
    moved = [(e["pid"], e["name"].split()[-1]) for e in last_cell if e.get("cat") == "transfer"]
    assert sorted(moved) == sorted((rank, f"grad{i % 4}") for rank in range(2) for i in range(20)), "of every rank"


@pytest.mark.nightly
@pytest.mark.cluster(2)
def test_unrecordable_or_unreadable_timelines_are_refused(kernel: Kernel, tmp_path: Path) -> None:
    def error(line: str) -> str:
        return kernel.run(line, allow_error=True).error.removeprefix("UsageError: %hvd timeline: ")

    kernel.run("%hvd restart")  # ranks that have never recorded
    assert error("%hvd timeline show") == "nothing has been recorded; write %hvd timeline start, or show FILE"
    refused = kernel.run("%hvd timeline save t.txt", allow_error=True).error
    assert refused.endswith("save: name a file that ends with .json (a Chrome trace) or .svg (a picture)")
    assert error("%hvd timeline statr") == (
        "'statr' is not understood: did you mean start?; write %hvd timeline, save FILE, start [FILE], stop, or show [FILE]"
    )
    notes = tmp_path / "notes.txt"
    notes.write_text("mine")
    assert error(f"%hvd timeline start {notes}") == (
        f"{notes} exists and is not a timeline: name another file, or add --force"
    )
    assert notes.read_text() == "mine"
    assert error(f"%hvd timeline start {tmp_path}/none/t.json") == (
        f"the timeline {tmp_path}/none/t.json cannot be written: there is no folder {tmp_path}/none; make it first."
    )
    assert error(f"%hvd timeline show {tmp_path}/none.json") == (
        f"{tmp_path}/none.json cannot be read: No such file or directory"
    )
    assert error(f"%hvd timeline show {notes}") == (
        f"{notes}: it is not a timeline: a timeline is a list of events, as hvd.start_timeline writes it"
    )


@pytest.mark.nightly
@pytest.mark.cluster(2)
def test_timeline_of_a_background_cell(kernel: Kernel, tmp_path: Path) -> None:
    kernel.run(f"%hvd timeline start {tmp_path}/a.json --mark-cycles")
    kernel.run(CELL)
    kernel.run("%%hvdrun --bg slow\nimport time\nwhile not getattr(hvd, 'over', False): time.sleep(0.01)")
    (shown,) = kernel.run("%hvd timeline stop").shown
    assert " 20 operations on 4 names" in shown.splitlines()[0]
    assert '"CYCLE_START"' in (tmp_path / "a.json").read_text()
    kernel.run(f"%hvd timeline start {tmp_path}/b.json")
    kernel.run("%hvdcancel slow")
    (again,) = kernel.run(f"%hvd timeline show {tmp_path}/a.json").shown
    assert again == shown
    kernel.run("%hvd timeline stop")


@pytest.mark.nightly
@pytest.mark.cluster(3)
def test_recent_operations_are_shown_without_a_recording(kernel: Kernel, tmp_path: Path) -> None:
    kernel.run("%hvd restart")
    kernel.run("""%%hvdrun
import time, torch
for i in range(20):
    time.sleep(0.05 if rank == 2 else 0.01)
    hvd.allreduce(torch.ones(1000), name="grad")""")
    shown = kernel.run("%hvd timeline")
    head, *rows = shown.shown[0].splitlines()
    assert head.startswith("the last ")
    assert head.endswith(" of 3 ranks")
    table = {row.split()[0]: row for row in rows[1:]}
    assert {row.split()[1] for row in table.values()} >= {"20"}
    assert table["2"].endswith(("ms", " s")), "rank 2 was waited for"
    html = shown.contents("display_data")[0]["data"]["text/html"]
    assert html.startswith("<svg ")
    kernel.run(f"%hvd timeline save {tmp_path}/a.svg")
    assert "rank 2" in (tmp_path / "a.svg").read_text()
    again = kernel.run(f"%hvd timeline save {tmp_path}/a.svg", allow_error=True).error
    assert again.endswith("a.svg exists: name another file, or add --force")
    kernel.run("%%hvdrun --ranks 0\n1 + 1")
    of_all = {row.split()[0]: row.split() for row in kernel.run("%hvd timeline").shown[0].splitlines()[1:]}
    assert int(of_all["0"][1]) >= 20, "a cell without communication has no timeline: that is of all before it"
