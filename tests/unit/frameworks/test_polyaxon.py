"""Polyaxon without Polyaxon: the files of a run as traceml writes them, its calls, and which module a rank imports."""

from __future__ import annotations

import importlib
import json
import math
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from hvdtest.tracked import BEGAN, RUN

from hvd_kernel import compat, tracking
from hvd_kernel.tracking import polyaxon as sinks
from hvd_kernel.tracking.alias import tracking as polyaxon
from hvd_kernel.tracking.polyaxon import Polyaxon, folder_of
from hvd_kernel.tracking.sink import Item, Point

pytestmark = pytest.mark.usefixtures("untracked")


# Files: what traceml 1.5 has written for the same calls, on 2026-11-23.


def test_the_lines_of_a_metric(tmp_path: Path) -> None:
    sink = Polyaxon(str(tmp_path), RUN)
    for step in range(3):
        sink.log(Point({"loss": 1 / (step + 1)}, step, BEGAN + step))
    sink.log(Point({"nan/x": math.nan}, None, BEGAN))
    events = tmp_path / "runs" / RUN.id / "events" / "metric"
    assert (events / "loss.plx").read_text() == (
        "step|timestamp|metric\n"
        "0|2026-11-23 18:43:53.250000+00:00|1.0\n"
        "1|2026-11-23 18:43:54.250000+00:00|0.5\n"
        "2|2026-11-23 18:43:55.250000+00:00|0.3333333333333333"
    )
    assert (events / "nan__x.plx").read_text() == "step|timestamp|metric\n|2026-11-23 18:43:53.250000+00:00|nan"


@pytest.mark.parametrize(
    ("name", "file"), [("loss/rank_1", "loss__rank_1"), ("a b.c-d", "a-b-c-d"), ("été|x", "etex"), ("|", "unnamed")]
)
def test_the_name_of_a_file(name: str, file: str) -> None:
    assert sinks.name_of(name) == file


def test_run_and_its_metadata(tmp_path: Path) -> None:
    model = tmp_path / "m.pt"
    model.write_text("x" * 10)
    sink = Polyaxon(str(tmp_path), RUN)
    folder = tmp_path / "runs" / RUN.id
    sink.annotate("inputs", {"lr": 0.1})
    sink.annotate("tags", {"a": True, "b": True})
    for step in range(3):
        sink.log(Point({"loss": 1 / (step + 1)}, step, BEGAN + step))
    sink.keep(Item(model, "model", "model", summary={"framework": "torch"}))
    sink.keep(Item(model, "art2", "csv", step=4, time=BEGAN))
    sink.end("succeeded")
    about = json.loads((folder / "run.plx.json").read_text())
    assert {key: about[key] for key in ("uuid", "status", "inputs", "outputs", "tags", "meta_info")} == {
        "uuid": RUN.id,
        "status": "succeeded",
        "inputs": {"lr": 0.1},
        "outputs": {"loss": 1 / 3},
        "tags": ["a", "b"],
        "meta_info": {"has_model": True, "has_metrics": True, "has_events": True},
    }
    assert [each["type"] for each in about["status_conditions"]] == ["created", "running", "succeeded"]
    lineages = {each["name"]: each for each in json.loads((folder / "lineages.plx.json").read_text())}
    assert lineages["model"]["summary"] == {
        "framework": "torch",
        "path": str(folder / "outputs/m.pt"),
        "hash": "336311a01618",
    }
    assert (folder / "outputs/m.pt").read_text() == "x" * 10
    assert lineages["art2"] == sinks.lineage("art2", "csv", "events/csv/art2.plx", {"is_event": True})
    assert (folder / "assets/csv/art2_4.pt").read_text() == "x" * 10
    assert (folder / "events/csv/art2.plx").read_text().splitlines()[1:] == [
        '4|2026-11-23 18:43:53.250000+00:00|{"kind":"csv","path":"assets/csv/art2_4.pt"}'
    ]
    assert lineages["loss"]["summary"]["step"] == {"count": 3, "min": 0, "max": 2}
    assert lineages["loss"]["summary"]["metric"] == {
        "count": 3.0,
        "mean": 0.611111111111111,
        "std": pytest.approx(0.3469443332443555, rel=1e-15),
        "min": 0.3333333333333333,
        "25%": 0.41666666666666663,
        "50%": 0.5,
        "75%": 0.75,
        "max": 1.0,
        "last": 0.3333333333333333,
    }


def test_run_is_resumed(tmp_path: Path) -> None:
    for step in range(2):
        sink = Polyaxon(str(tmp_path), RUN)
        sink.log(Point({"loss": 1.0}, step, BEGAN))
        sink.end("succeeded")
    (file,) = tmp_path.rglob("loss.plx")
    assert [line.partition("|")[0] for line in file.read_text().splitlines()] == ["step", "0", "1"]


@pytest.mark.parametrize(
    ("env", "folder"),
    [
        ({}, "/tmp/plx/offline/runs/u"),
        ({"POLYAXON_OFFLINE_ROOT": "/o"}, "/o/runs/u"),
        ({"POLYAXON_ARTIFACTS_ROOT": "/a", "POLYAXON_OFFLINE_ROOT": "/o"}, "/a/u"),
        ({"POLYAXON_IS_MANAGED": "true"}, "/plx-context/artifacts/u"),
    ],
)
def test_folder_in_which_polyaxon_stores_a_run(env: dict[str, str], folder: str) -> None:
    assert str(folder_of("", "u", env)) == folder
    assert str(folder_of("/p", "u", env)) == "/p/runs/u"


# Its calls.


def test_polyaxons_calls_on_one_rank_do_not_make_log_collective(monkeypatch: pytest.MonkeyPatch) -> None:
    """A script calls them after ``if hvd.rank() == 0``: a collective hvd.log would wait there for the other ranks."""
    monkeypatch.setenv("POLYAXON_OFFLINE_ROOT", "plx")
    polyaxon.init(name="mine")
    polyaxon.log_metrics(step=1, loss=0.5)
    assert tracking.tracker() is None
    polyaxon.end()
    tracking.choose("jsonl")
    polyaxon.end()
    assert tracking.tracker() is not None, "it goes on to reduce with the others"


def test_polyaxons_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYAXON_OFFLINE_ROOT", str(tmp_path))
    run = polyaxon.init(name="mine", tags=["a"])
    run.log_metric("loss", 0.5, step=1.0)
    polyaxon.log_inputs(lr=0.1)
    polyaxon.log_outputs(best=2)
    polyaxon.log_tags("b,c")
    polyaxon.log_progress(0.5)
    outputs = Path(polyaxon.get_outputs_path("sub/m.txt"))
    outputs.write_text("x")
    polyaxon.log_artifact(str(outputs), name="note")
    with pytest.warns(UserWarning, match=r"tracking\.log_image does nothing: .* pip install polyaxon"):
        polyaxon.log_image("a.png")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        polyaxon.log_image("a.png")
    with pytest.raises(AttributeError, match="nonsense"):
        polyaxon.nonsense  # noqa: B018
    polyaxon.log_failed()
    (about,) = (json.loads(file.read_text()) for file in tmp_path.rglob("run.plx.json"))
    kept = {key: about[key] for key in ("name", "status", "tags", "inputs", "outputs", "meta_info")}
    assert kept == {
        "name": "mine",
        "status": "failed",
        "tags": ["a", "b", "c"],
        "inputs": {"lr": 0.1},
        "outputs": {"best": 2, "loss": 0.5},
        "meta_info": {"progress": 0.5, "has_metrics": True, "has_events": True},
    }


# Whose module.


THEIRS = "WHOSE = 'theirs'\n"
OURS = "hvd_kernel.tracking.alias.tracking"


@pytest.fixture
def imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for packages; ``import polyaxon`` finds those, and us as in a rank."""
    monkeypatch.syspath_prepend(str(tmp_path))
    compat.install()
    yield tmp_path
    compat.uninstall()
    for name in [name for name in sys.modules if name.partition(".")[0] in {"polyaxon", "traceml"}]:
        del sys.modules[name]


def packages(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).mkdir()
        (folder / name / "__init__.py").touch()
        (folder / name / "tracking.py").write_text(THEIRS)
    importlib.invalidate_caches()


@pytest.mark.parametrize(
    ("installed", "rank", "ours"),
    [
        ((), 0, True),
        ((), 1, True),
        (("polyaxon", "traceml"), 0, False),
        (("polyaxon", "traceml"), 1, True),
        (("traceml",), 0, True),  # whose tracking needs polyaxon
    ],
)
def test_polyaxon_module_that_a_rank_imports(
    imported: Path, monkeypatch: pytest.MonkeyPatch, installed: tuple[str, ...], rank: int, *, ours: bool
) -> None:
    packages(imported, *installed)
    monkeypatch.setenv("HOROVOD_RANK", str(rank))
    for package in ("polyaxon", "traceml"):
        module = importlib.import_module(f"{package}.tracking")
        assert (module.__name__ == OURS, getattr(module, "WHOSE", "ours")) == (ours, "ours" if ours else "theirs")
        assert importlib.import_module(package).tracking is module
    with pytest.raises(ModuleNotFoundError, match=r"polyaxon\.client"):
        importlib.import_module("polyaxon.client")


def test_outside_ranks_nothing_is_named_polyaxon(imported: Path) -> None:
    assert importlib.import_module("polyaxon.tracking").__name__ == OURS
    compat.uninstall()
    for name in ("polyaxon", "polyaxon.tracking", "traceml"):
        assert name not in sys.modules
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module(name)
