"""Values of hvd.log in files: exact bytes and lines, the choice of outputs, and failures."""

from __future__ import annotations

import json
import math
import struct
import warnings
from pathlib import Path

import pytest
from hvdtest.tracked import BEGAN, RUN
from hypothesis import given
from hypothesis import strategies as st

from hvd_kernel import tracking
from hvd_kernel.core import metrics
from hvd_kernel.errors import ConfigError
from hvd_kernel.tracking import listing, process, tensorboard
from hvd_kernel.tracking.polyaxon import Polyaxon
from hvd_kernel.tracking.sink import Choice, Item, Point, Run, Target, parse
from hvd_kernel.tracking.sinks import NEEDS, SINKS, JsonLines, Tracker
from hvd_kernel.tracking.tensorboard import Scalar, TensorBoard

pytestmark = pytest.mark.usefixtures("untracked")


# Where to.


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("", "off"),
        ("off", "off"),
        ("on", "jsonl:runs/metrics.jsonl"),
        ("per-rank", "jsonl:runs/metrics.jsonl,per-rank"),
        ("tensorboard:runs,jsonl", "tensorboard:runs,jsonl:runs/metrics.jsonl"),
        (" jsonl:a.jsonl , per-rank,", "jsonl:a.jsonl,per-rank"),
        ("mlflow:http://host:5000,polyaxon", "mlflow:http://host:5000,polyaxon"),
    ],
)
def test_a_choice_is_read_and_written(text: str, written: str) -> None:
    choice = parse(text)
    assert str(choice) == written
    assert parse(written) == choice


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tensorbord:runs", "'tensorbord' is not understood: did you mean tensorboard?; write off, on, or some of"),
        ("jsonl,wandb", "'wandb' is not understood; write off"),
        ("jsonl:,on", "there is no place behind 'jsonl:'"),
        ("jsonl:a,jsonl:a", "jsonl:a appears twice"),
        ("off,jsonl", "off stands alone."),
    ],
)
def test_invalid_choice(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse(text)
    assert str(error.value).startswith(f"HVD_TRACK={text!r} cannot be used: {said}")


def test_paths_are_made_absolute_and_uris_are_not(tmp_path: Path) -> None:
    choice = tracking.absolute(parse("jsonl:a/,mlflow:http://h:1,tensorboard:/x,polyaxon"), tmp_path)
    assert str(choice) == f"jsonl:{tmp_path}/a/,mlflow:http://h:1,tensorboard:/x,polyaxon"


def test_a_package_that_is_missing_is_named_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(ConfigError, match="mlflow is not installed in this Python: pip install mlflow-skinny"):
        tracking.choose("jsonl,mlflow")
    assert not Path("runs").exists(), "nothing was begun"


# TensorBoard.


def test_checksums_are_castagnolis() -> None:
    assert tensorboard.crc32c(b"123456789") == 0xE3069283
    assert tensorboard.crc32c(bytes(32)) == 0x8A9136AA


def test_the_bytes_of_an_event_file(tmp_path: Path) -> None:
    sink = TensorBoard(str(tmp_path), RUN)
    sink.log(Point({"loss": 0.5}, 3, BEGAN))
    (file,) = tmp_path.glob("20261123-184353_3f2a91c0/events.out.tfevents.1795459433.*")
    version = b"\x09" + struct.pack("<d", BEGAN) + b"\x1a\x0dbrain.Event:2"
    value = b"\x0a\x04loss" + b"\x15" + struct.pack("<f", 0.5)
    event = b"\x09" + struct.pack("<d", BEGAN) + b"\x10\x03" + b"\x2a\x0d" + b"\x0a\x0b" + value
    assert file.read_bytes() == tensorboard.record(version) + tensorboard.record(event)
    assert tensorboard.record(b"")[:12] == bytes(8) + bytes.fromhex("29039807")
    assert list(tensorboard.scalars(file.read_bytes())) == [Scalar(BEGAN, 3, "loss", 0.5)]


@given(
    st.lists(
        st.tuples(st.floats(0, 4e9), st.integers(-(2**63), 2**63 - 1), st.text(max_size=200), st.floats(width=32)).map(
            lambda fields: Scalar(*fields)
        )
    )
)
def test_scalars_are_read_back(written: list[Scalar]) -> None:
    data = tensorboard.version_event(0.0) + b"".join(map(tensorboard.scalar_event, written))
    assert list(map(repr, tensorboard.scalars(data))) == list(map(repr, written))  # NaN is not itself
    if written:
        assert list(map(repr, tensorboard.scalars(data[:-1]))) == list(map(repr, written[:-1])), "the last is not whole"
        with pytest.raises(tensorboard.DamagedFileError):
            list(tensorboard.scalars(data[:-1] + bytes([data[-1] ^ 1])))


def test_a_value_that_a_float32_cannot_hold() -> None:
    (found,) = tensorboard.scalars(tensorboard.scalar_event(Scalar(0.0, 0, "x", -1e300)))
    assert found.value == -math.inf


def test_values_without_a_step_are_counted(tmp_path: Path) -> None:
    sink = TensorBoard(str(tmp_path), RUN)
    for step in (None, None, 10, None):
        sink.log(Point({"a": 1.0}, step))
    sink.log(Point({"b": 1.0}))
    (file,) = tmp_path.rglob("events*")
    assert [(one.tag, one.step) for one in tensorboard.scalars(file.read_bytes())] == [
        ("a", 0),
        ("a", 1),
        ("a", 10),
        ("a", 11),
        ("b", 0),
    ]


# JSON lines.


def test_a_line_per_call(tmp_path: Path) -> None:
    sink = JsonLines(f"{tmp_path}/deep/a.jsonl", RUN)
    sink.log(Point({"loss": 0.25, "bad": math.nan, "far": -math.inf}, 10, BEGAN))
    sink.keep(Item(Path("/m.pt"), "m", "model", summary={"framework": "torch"}, time=BEGAN))
    again = JsonLines(f"{tmp_path}/deep/a.jsonl", Run("b" * 32))
    again.log(Point({"loss": 1.0}, None, BEGAN))
    when = '"time": "2026-11-23T18:43:53.250000+00:00"'
    about = '{"path": "/m.pt", "name": "m", "kind": "model", "framework": "torch"}'
    assert (tmp_path / "deep/a.jsonl").read_text().splitlines() == [
        f'{{"run": "3f2a91c0", {when}, "step": 10, "values": {{"loss": 0.25, "bad": "NaN", "far": "-Infinity"}}}}',
        f'{{"run": "3f2a91c0", {when}, "step": null, "artifact": {about}}}',
        f'{{"run": "bbbbbbbb", {when}, "step": null, "values": {{"loss": 1.0}}}}',
    ]


# Several sinks, and one that fails.


class Failing:
    """Fails from the second value on."""

    def __init__(self, _place: str, _run: Run) -> None:
        self.values = 0

    def log(self, _point: Point) -> None:
        self.values += 1
        if self.values == 2:
            raise OSError(28, "No space left on device")
        assert self.values == 1, "a sink that has failed is asked no more"

    def end(self, _status: str) -> None:
        raise AssertionError


def test_a_sink_that_fails_is_named_once_and_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SINKS, "mlflow", Failing)
    choice = Choice((Target("mlflow", "x"), Target("jsonl", f"{tmp_path}/a.jsonl"), Target("tensorboard", "/proc/no")))
    monkeypatch.delitem(NEEDS, "mlflow")
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        tracker = Tracker(choice, RUN, lambda: True)
        for step in range(4):
            tracker.log(Point({"loss": 1.0}, step))
        tracker.end("succeeded")
    assert [str(each.message).partition(": ")[2].split(":")[0:2] for each in seen] == [
        ["tensorboard", "/proc/no failed and is dropped, the others go on"],
        ["mlflow", "x failed and is dropped, the others go on"],
    ]
    assert str(seen[1].message).endswith("OSError: [Errno 28] No space left on device")
    assert all(each.filename == __file__ for each in seen), "the warning is about the user's line"
    assert len((tmp_path / "a.jsonl").read_text().splitlines()) == 5


def test_process_that_becomes_rank_0_continues_the_run(tmp_path: Path) -> None:
    choice = parse(f"jsonl:{tmp_path}/a.jsonl,tensorboard:{tmp_path}/runs")
    rank = 0
    first = Tracker(choice, RUN, lambda: rank == 0)
    second = Tracker(choice, Run(RUN.id, BEGAN + 60), lambda: rank == 1)
    for step in range(4):
        rank = int(step > 1)
        for tracker in (first, second):
            tracker.log(Point({"loss": float(step)}, step))
    lines = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 1, 2, 3]
    assert [each.name for each in (tmp_path / "runs").iterdir()] == ["20261123-184353_3f2a91c0"]
    files = (tmp_path / "runs").rglob("events*")
    assert sorted(one.step for file in files for one in tensorboard.scalars(file.read_bytes())) == [0, 1, 2, 3]


# Over ranks.


@pytest.mark.parametrize(
    ("numbers", "mean"),
    [
        ([0.1] * 10, 0.1),
        ([0.1] * 3, 0.1),
        ([1e16, 1.0, -1e16, 1.0], 0.5),
        ([1e308, 1e308], 1e308),
        ([math.inf, 1.0], math.inf),
        ([math.inf, -math.inf], math.nan),
    ],
)
def test_a_mean_is_rounded_once(numbers: list[float], mean: float) -> None:
    assert repr(metrics.mean(numbers)) == repr(mean)


def test_names_of_every_rank() -> None:
    rows = {0: [1.0, 10.0], 2: [3.0, 20.0]}  # rank 1 has joined
    assert metrics.reduce_values(["a", "b"], rows, per_rank=False) == {"a": 2.0, "b": 15.0}
    assert metrics.reduce_values(["a", "b"], rows, per_rank=True) == {
        "a": 2.0,
        "b": 15.0,
        "a/rank_0": 1.0,
        "a/rank_2": 3.0,
        "b/rank_0": 10.0,
        "b/rank_2": 20.0,
    }


def test_difference_is_reported_by_names() -> None:
    said = metrics.names_difference([(["acc", "loss"], 3), (["loss"], 3), (["acc", "loss"], 3), ([], None)])
    assert said == (
        "hvd.log: ranks log different names or steps. ranks 0,2: acc, loss at step 3; rank 1: loss at step 3; "
        "rank 3: nothing. Every rank has to log the same."
    )


# This process.


@pytest.mark.parametrize(
    ("env", "rank"),
    [
        ({}, 0),
        ({"HOROVOD_RANK": "3", "RANK": "1"}, 3),
        ({"OMPI_COMM_WORLD_RANK": "2"}, 2),
        ({"SLURM_PROCID": "4", "SLURM_STEP_ID": "0"}, 4),
        ({"SLURM_PROCID": "4"}, 0),
        ({"RANK": "zero"}, 0),
    ],
)
def test_rank_from_variables_of_a_launcher(env: dict[str, str], rank: int) -> None:
    assert process.rank_of(env) == rank


def test_ranks_of_a_job_find_one_run() -> None:
    assert process.run_id_of({"POLYAXON_RUN_INSTANCE": "o.p.runs.abc", "HVD_TRACK_RUN": "x"}) == "abc"
    given_by_us = process.rank_environment({})
    assert process.run_id_of(given_by_us) == given_by_us["HVD_TRACK_RUN"]
    assert process.rank_environment(given_by_us) == {}, "a job that a job starts is the same run"
    own = process.card()
    assert own == {"run": tracking.run_id(), "pinned": False}
    fresh, old = {"run": "f" * 32, "pinned": False}, {"run": "e" * 32, "pinned": True}
    process.agree([fresh, own])
    assert tracking.run_id() == "f" * 32, "rank 0's"
    process.agree([fresh, process.card() | old])
    assert process.card() == old, "that of the ranks which were there before"
    with pytest.raises(ConfigError, match="HVD_TRACK='x'"):
        process.rank_environment({"HVD_TRACK": "x"})


def test_log_without_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    np = pytest.importorskip("numpy")
    monkeypatch.setenv("HVD_TRACK", "jsonl,per-rank")
    metrics.log({"train/loss": np.float32(0.5)}, acc=1, step=np.int64(7))
    metrics.log(loss=0.25, per_rank=True)
    lines = [json.loads(line) for line in Path("runs/metrics.jsonl").read_text().splitlines()]
    assert [(line["step"], line["values"]) for line in lines] == [
        (7, {"acc": 1.0, "train/loss": 0.5, "acc/rank_0": 1.0, "train/loss/rank_0": 0.5}),
        (None, {"loss": 0.25, "loss/rank_0": 0.25}),
    ]
    assert metrics.pop_logged().latest == {"train/loss": 0.5, "acc": 1.0, "loss": 0.25}


def test_log_on_a_rank_before_init(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HVD_TRACK", "jsonl")
    monkeypatch.setenv("HOROVOD_RANK", "1")
    metrics.log(loss=0.5)
    metrics.log_model("not there")
    assert not Path("runs").exists()
    assert metrics.pop_logged().latest == {"loss": 0.5}


def test_missing_model() -> None:
    metrics.log_model("m.pt")  # nothing is tracked
    tracking.choose("jsonl")
    with pytest.raises(FileNotFoundError, match=r"log_model: there is no .*/m\.pt"):
        metrics.log_model("m.pt")
    Path("m.pt").write_text("x")
    metrics.log_model("m.pt", framework="torch", step=3)
    line = json.loads(Path("runs/metrics.jsonl").read_text())
    assert (line["step"], line["artifact"]["name"], line["artifact"]["framework"]) == (3, "m", "torch")


def test_a_folder_for_outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HVD_TRACK_RUN", RUN.id)
    assert metrics.outputs_path("a", "b.pt") == tmp_path / "outputs/3f2a91c0/a/b.pt"
    assert (tmp_path / "outputs/3f2a91c0").is_dir()
    tracking.choose(f"jsonl,polyaxon:{tmp_path}/plx")
    assert metrics.outputs_path() == tmp_path / "plx/runs" / RUN.id / "outputs"


# The list of runs.


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ([], ""),
        ([1.0], "▁"),
        ([0, 1, 2, 3, 4, 5, 6, 7], "▁▂▃▄▅▆▇█"),
        ([0.0, math.nan, 1.0], "▁?█"),
        ([0.0] * 24 + [1.0] * 24, "▁" * 12 + "█" * 12),
    ],
)
def test_a_sparkline(values: list[float], line: str) -> None:
    assert listing.sparkline(values) == line


def test_the_page_of_every_kind(tmp_path: Path) -> None:
    for kind, sink in (("jsonl", JsonLines), ("tensorboard", TensorBoard), ("polyaxon", Polyaxon)):
        opened = sink(f"{tmp_path}/{kind}/", RUN)
        for step in range(4):
            opened.log(Point({"loss": 1.0 - step / 4}, step, BEGAN + step))
        choice = parse(f"{kind}:{tmp_path}/{kind}/")
        head, row = tracking.page(choice).splitlines()
        assert head.split() == ["run", "from", "began", "metric", "values", "last"]
        name = "20261123-184353_3f2a91c0" if kind == "tensorboard" else "3f2a91c0"
        shown = [name, f"{kind}:{tmp_path}/{kind}/", "2026-11-23", "18:43:53", "loss", "4", "0.25", "█▆▃▁"]
        assert row.split() == shown
    runs = tmp_path / "mlflow/0/abcdef0123/metrics"
    runs.mkdir(parents=True)
    (runs / "loss").write_text("1795459433250 0.5 0\n1795459434250 0.25 1\n")
    assert "abcdef01" in tracking.page(parse(f"mlflow:{tmp_path}/mlflow"))


def test_page_of_files_written_by_other_tools(tmp_path: Path) -> None:
    good = '{"run": "a", "time": "2026-11-23T18:43:53+00:00", "step": 1, "values": {"loss": "NaN"}}'
    (tmp_path / "a.jsonl").write_text(f'[]\n{{"run": 1}}\n{good}\n{good[:20]}')
    assert tracking.page(parse(f"jsonl:{tmp_path}/a.jsonl")).splitlines()[1].split()[-4:] == ["loss", "1", "nan", "?"]
    assert tracking.page(parse("jsonl:nowhere.jsonl")) == "no runs yet in jsonl:nowhere.jsonl\n"
    assert tracking.page(parse("off")).startswith("nothing is tracked: ")
