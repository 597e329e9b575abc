"""Files of hvd.log, read back by the packages that define them: TensorBoard, traceml, MLflow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hvd_kernel import tracking
from hvd_kernel.tracking.sink import Item, Point, Run
from hvd_kernel.tracking.sinks import Tracker

pytestmark = pytest.mark.nightly

RUN = Run("3f2a91c0" + "0" * 24, 1795459433.25)
VALUES = [1.0, 0.5, 0.25, -3.5]


@pytest.fixture(autouse=True)
def nowhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("POLYAXON_OFFLINE_ROOT", str(tmp_path / "plx"))
    monkeypatch.chdir(tmp_path)
    yield
    tracking.reset()


def logged(text: str, *items: Item) -> Tracker:
    tracker = Tracker(tracking.parse(text), RUN, lambda: True)
    for step, value in enumerate(VALUES):
        tracker.log(Point({"train/loss": value}, step, RUN.started + step))
    for item in items:
        tracker.keep(item)
    tracker.end("succeeded")
    assert not tracker.dropped
    return tracker


def test_tensorboard_reads_the_event_file(tmp_path: Path) -> None:
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    logged(f"tensorboard:{tmp_path}/runs")
    (folder,) = (tmp_path / "runs").iterdir()
    found = reader.EventAccumulator(str(folder)).Reload()
    assert found.Tags()["scalars"] == ["train/loss"]
    scalars = [(one.step, one.value, one.wall_time) for one in found.Scalars("train/loss")]
    assert scalars == [(step, value, RUN.started + step) for step, value in enumerate(VALUES)]


def test_traceml_reads_the_metric_file(tmp_path: Path) -> None:
    events = pytest.importorskip("traceml.events")
    logged(f"polyaxon:{tmp_path}/plx")
    (file,) = (tmp_path / "plx").rglob("train__loss.plx")
    table = events.V1Events.read(kind="metric", name="train__loss", data=file.read_text()).df
    assert table["metric"].tolist() == VALUES
    assert table["step"].tolist() == [*range(len(VALUES))]


def test_traceml_writes_where_it_is_installed(tmp_path: Path) -> None:
    for name in ("polyaxon", "pandas", "traceml.tracking"):
        pytest.importorskip(name)
    model = tmp_path / "m.pt"
    model.write_text("weights")
    logged("polyaxon", Item(model, "mine", "model", summary={"framework": "torch"}))
    (file,) = (tmp_path / "plx/runs" / RUN.id).rglob("train__loss.plx")
    lines = [line.split("|") for line in file.read_text().splitlines()[1:]]
    assert [(int(step), float(value)) for step, _, value in lines] == [*enumerate(VALUES)]
    assert (tmp_path / "plx/runs" / RUN.id / "outputs/m.pt").read_text() == "weights"


def test_mlflow_has_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "")  # named stores are leave enough
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE")
    model = tmp_path / "m.pt"
    model.write_text("weights")
    logged(f"mlflow:{tmp_path}/mlruns", Item(model, "mine", "model"))
    client = mlflow.MlflowClient(tracking_uri=f"{tmp_path}/mlruns")
    (run,) = client.search_runs(["0"])
    assert run.info.status == "FINISHED"
    history = client.get_metric_history(run.info.run_id, "train/loss")
    assert [(one.step, one.value) for one in history] == [*enumerate(VALUES)]
    assert [each.path for each in client.list_artifacts(run.info.run_id, "model")] == ["model/m.pt"]
    assert "train/loss" in tracking.page(tracking.parse(f"mlflow:{tmp_path}/mlruns"))
