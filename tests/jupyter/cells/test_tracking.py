"""%hvd track in a real kernel: logged values are written to the named outputs, once for all ranks, and listed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hvdtest.kernel import Kernel

pytestmark = [pytest.mark.jupyter, pytest.mark.mp, pytest.mark.timeout(400)]

LOG = "%%hvdrun\nfor i in range(8): hvd.log(loss=1 - i / 8 + rank, step=i)"
MIXED = "%%hvdrun\nhvd.log(**{'loss' if rank else 'lost': 1})"


@pytest.mark.cluster(2)
def test_cells_are_tracked(kernel: Kernel, tmp_path: Path) -> None:
    place = f"jsonl:{tmp_path}/a.jsonl"
    assert kernel.run("%hvd track").text() == (
        "nothing is tracked: %hvd track jsonl, or tensorboard, mlflow, polyaxon\n"
    )
    chosen = kernel.run(f"%hvd track {place} tensorboard:{tmp_path}/runs --per-rank").text()
    assert chosen == (
        f"hvd.log goes to {place}, tensorboard:{tmp_path}/runs: the mean over the ranks, and every rank's own as "
        "name/rank_N; every rank has to call it\n"
    )
    assert kernel.run(LOG).shown == ["hvd dashboard: 2 ranks"], "and the panel has it as ever"
    lines = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    expected = [{"loss": x + 0.5, "loss/rank_0": x, "loss/rank_1": x + 1} for x in (1 - i / 8 for i in range(8))]
    assert [(line["step"], line["values"]) for line in lines] == [*enumerate(expected)]
    head, *rows = kernel.run(f"%hvd track show {place}").text().splitlines()
    assert head.split() == ["run", "from", "began", "metric", "values", "last"]
    assert [row.split()[-4:] for row in rows] == [
        ["loss", "8", "0.625", "█▇▆▅▄▃▂▁"],
        ["loss/rank_0", "8", "0.125", "█▇▆▅▄▃▂▁"],
        ["loss/rank_1", "8", "1.125", "█▇▆▅▄▃▂▁"],
    ]
    failed = kernel.run(MIXED, allow_error=True)
    assert "hvd.log: ranks log different names or steps. rank 0: lost; rank 1: loss." in failed.error
    refused = kernel.run("%hvd track jsonnl", allow_error=True)
    assert refused.error.startswith("ConfigError: %hvd track='jsonnl' cannot be used: 'jsonnl' is not understood")
    late = kernel.run("%hvd track jsonl:/proc/none/a.jsonl")
    assert late.text("stderr") == (
        "jsonl:/proc/none/a.jsonl failed and is dropped, the others go on: "
        "FileNotFoundError: [Errno 2] No such file or directory: '/proc/none'\n"
    )
    kernel.run(LOG)
    assert kernel.run("%hvd track off").text() == "nothing is tracked\n"
    kernel.run("%%hvdrun\nif rank == 0: hvd.log(loss=7)")  # and no rank waits
    after = (tmp_path / "a.jsonl").read_text().splitlines()
    assert [json.loads(line).get("status") for line in after] == [*[None] * 8, "succeeded"]


@pytest.mark.nightly
@pytest.mark.cluster(2)
def test_new_rank_tracks_to_the_same_outputs(kernel: Kernel, tmp_path: Path) -> None:
    kernel.run(f"%hvd track jsonl:{tmp_path}/a.jsonl")
    kernel.run(LOG)
    kernel.run("%hvd respawn 0 --force")
    kernel.run(LOG)
    kernel.run("%hvd track off")
    lines = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert [line.get("step") for line in lines if "values" in line] == [*range(8)] * 2
    assert len({line["run"] for line in lines}) == 1


@pytest.mark.nightly
@pytest.mark.cluster(2)
def test_a_script_for_polyaxon_in_a_cell(kernel: Kernel, tmp_path: Path) -> None:
    cell = f"""%%hvdrun
import os
os.environ["POLYAXON_OFFLINE_ROOT"] = {str(tmp_path)!r}
from polyaxon import tracking
tracking.init(name="cell")
tracking.log_metrics(step=1, loss=0.5)
tracking.end()
tracking.get_outputs_path()"""
    (path,) = kernel.run(cell).shown
    (run,) = (tmp_path / "runs").iterdir()
    assert path == f"[0-1] '{run}/outputs'"
