"""A script that was written for Polyaxon, and HVD_TRACK, through the real hvdrun: one run, whatever the number of ranks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hvdtest.hvdrun import EITHER, NIGHTLY, good, hvdrun, lines_of

pytestmark = pytest.mark.mp

SCRIPT = """
from polyaxon import tracking
import traceml, os

tracking.init(name="mine", tags=["a"])
from hvd_kernel.core import session, metrics

session.init()
rank = session.rank()
tracking.log_inputs(lr=0.1)
for step in range(3):
    tracking.log_metrics(step=step, loss=1 / (step + 1) + rank)
    metrics.log(loss=rank, step=step)
path = os.path.join(tracking.get_outputs_path(), "model.txt")
if rank == 0:
    with open(path, "w") as file:
        file.write("weights")
    tracking.log_model(path, name="model", framework="none")
tracking.log_succeeded()
print(path, traceml.tracking is tracking)
"""


@EITHER
def test_a_script_for_polyaxon_leaves_one_run(mark: str, tmp_path: Path, how: str) -> None:
    env = {"POLYAXON_OFFLINE_ROOT": str(tmp_path), "HVD_TRACK": f"jsonl:{tmp_path}/a.jsonl"}
    text = good(hvdrun(how, "-np", "2", script=SCRIPT, **env))
    (run,) = (tmp_path / "runs").iterdir()
    assert [lines_of(text, rank) for rank in range(2)] == [[f"{run}/outputs/model.txt True"]] * 2
    about = json.loads((run / "run.plx.json").read_text())
    assert (about["name"], about["status"], about["inputs"], about["tags"]) == ("mine", "succeeded", {"lr": 0.1}, ["a"])
    lines = (run / "events/metric/loss.plx").read_text().splitlines()
    # Polyaxon's calls give what rank 0 gives; hvd.log gives the mean, to all sinks.
    both = [value for step in range(3) for value in (repr(1 / (step + 1)), "0.5")]
    assert [line.rpartition("|")[2] for line in lines] == ["metric", *both]
    assert (run / "outputs/model.txt").read_text() == "weights"
    logged = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert [line["values"]["loss"] for line in logged if "values" in line] == [float(value) for value in both]
    assert {line["run"] for line in logged} == {run.name[:8]}
    assert logged[-1]["status"] == "succeeded"


def test_invalid_track_starts_no_rank(mark: str) -> None:
    done = hvdrun("-np", "2", script="print('started')", HVD_TRACK="jsonl,tensorbord")
    assert done.returncode != 0
    assert "started" not in done.stdout
    assert "hvdrun: HVD_TRACK='jsonl,tensorbord' cannot be used: 'tensorbord' is not understood" in done.stderr


@NIGHTLY
def test_failed_script_leaves_a_failed_run(mark: str, tmp_path: Path) -> None:
    script = "from hvd_kernel.core import metrics\nmetrics.log(loss=1)\nraise ValueError('mine')"
    assert hvdrun("-np", "1", script=script, HVD_TRACK=f"polyaxon:{tmp_path}").returncode == 1
    (about,) = (json.loads(file.read_text()) for file in tmp_path.rglob("run.plx.json"))
    assert about["status"] == "failed"
