"""The panel of a job whose ranks are not the notebook's: when it begins, and its message at the end."""

from __future__ import annotations

from typing import Any

import pytest
from hvdtest.fakes import FakeWriter

from hvd_kernel.errors import RankFailed
from hvd_kernel.magics.display.cell_output import CellOutput
from hvd_kernel.magics.task_runs import job_panel
from hvd_kernel.protocol.messages import MetricsSample, RankLeft


def sample(rank: int, step: int = 5) -> MetricsSample:
    return MetricsSample(
        rank=rank, time=float(step), state="compute", step=step, samples=8 * step, logged={"loss": 0.5}
    )


class Kept:
    """A fake of the history."""

    def __init__(self) -> None:
        self.runs: list[tuple[int, str]] = []

    def origin(self) -> dict[str, Any]:
        return {"cell": 7}

    def keep(self, output: CellOutput, state: str) -> None:
        self.runs.append((output.record().steps, state))


def stored(writer: FakeWriter) -> tuple[str, list[str]]:
    """Return the stored text, and each rank's state in the picture."""
    [(kind, data)] = writer.written
    assert kind == "display"
    picture: Any = data["image/svg+xml"]
    states = [word for word in ("done", "failed", "ended", "interrupted") for _ in range(picture.count(f">{word}<"))]
    return data["text/plain"], states


def test_trained_cell_is_stored_as_picture_and_kept_as_run() -> None:
    writer: Any = FakeWriter()
    kept = Kept()
    with job_panel(writer, 2, "2 ranks on Spark", kept) as take:
        for step in (1, 2):
            take(sample(0, step))
            take(sample(1, step))
    assert stored(writer) == ("hvd dashboard: 2 ranks", ["done", "done"])
    assert kept.runs == [(2, "done")]


def test_ranks_of_an_elastic_job_join_and_leave() -> None:
    writer: Any = FakeWriter()
    with job_panel(writer, 1, "elastic ranks on Spark", Kept()) as take:
        take(sample(0))
        take(sample(1))
        take(RankLeft(1))
        take(sample(0, 6))
    picture = writer.written[0][1]["image/svg+xml"]
    assert stored(writer) == ("hvd dashboard: 2 ranks", ["done"])
    assert picture.count(">left<") == 1


def test_job_without_samples_has_no_panel() -> None:
    writer: Any = FakeWriter()
    with job_panel(writer, 2, "2 ranks on Spark", Kept()):
        pass
    assert writer.written == []


@pytest.mark.parametrize(
    ("error", "states"),
    [(RankFailed("rank 1", 1), ["failed", "ended"]), (KeyboardInterrupt(), ["interrupted", "interrupted"])],
)
def test_end_of_the_job_is_reported(error: BaseException, states: list[str]) -> None:
    writer: Any = FakeWriter()
    kept = Kept()

    def fail() -> None:
        with job_panel(writer, 2, "2 ranks on Spark", kept) as take:
            take(sample(0))
            take(sample(1))
            raise error

    with pytest.raises(type(error)):
        fail()
    assert stored(writer)[1] == states
    assert kept.runs == [(5, states[0])]
