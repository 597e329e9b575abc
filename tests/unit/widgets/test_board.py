"""Messages to the browser: a view that starts from a snapshot and applies increments shows the state of the board."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hvdtest.node import evaluate, needs_node
from hvdtest.offenders import ROOT

from hvd_kernel.protocol.messages import MetricsSample, NotFinite
from hvd_kernel.widgets.board import MAX_NAMES, MOST_MARKS, MOST_ROWS, Board, Row, Size, summary
from hvd_kernel.widgets.definitions import BUS, COMM, DEFINITIONS, SAMPLES
from hvd_kernel.widgets.series import Grid

VIEWS = """
let view = null;
return data.map(({reloaded, increment, whole}) => {
    view = reloaded ?? view;
    if (whole) view = structuredClone(whole);
    else applyIncrement(view, increment);
    return structuredClone(view);
});
"""


def plain(message: Any) -> Any:
    """As it arrives."""
    return json.loads(json.dumps(message, allow_nan=False))


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def feed(board: Board, clock: Clock, i: int, ranks: int, **extra: Any) -> None:
    """The i-th round of telemetry: 40 steps, 160 samples, 40 MB and 50 ms of communication each."""
    clock.now = 100.0 + i * 0.2
    for rank in range(ranks):
        logged = {"loss": 2.0 / (i + 1) + rank / 8, "accuracy": i / 100}
        board.feed(
            MetricsSample(
                **{
                    "rank": rank, "time": 7.0 + i * 0.2, "state": "compute", "step": i * 40, "samples": i * 160,
                    "logged": logged, "bytes": i * 40_000_000, "ops": i, "comm_ns": i * 50_000_000,
                    "wait_ns": i * 30_000_000 * (rank != 1), "cpu_s": i * 0.19, "rss": 412_000_000, **extra,
                }
            )
        )  # fmt: skip


def test_rows_and_totals() -> None:
    board = Board(range(4), "t", clock := Clock())
    assert board.row(3) == Row("starting", "", 0, None, None, None, None, None, 0, (), ())
    for i in range(6):
        feed(board, clock, i, 4, gpu={"util": 71.0, "memory": 2e9, "power": 412.5, "pcie_rx": 1.2345678e9})
    assert board.row(2) == Row(
        "compute", "", 200, 800.0, 0.25, 0.15, 1.2, 95.0, 412_000_000,
        (71.0, 2e9, 412.5, None, None, None, None, 1.235e9), (0.583333, 0.05),
    )  # fmt: skip
    assert board.totals() == {
        "samples_per_s": 3200.0, "exposed": None, "overlapped": None, "bus": None, "step": 200, "logged": [0.520833, 0.05],
    }  # fmt: skip
    assert board.grid.curves[SAMPLES][-1] == [800.0] * 4
    assert board.grid.curves[BUS][-1] == [1.2] * 4
    assert board.grid.curves[COMM][-1] == [25.0] * 4


def test_head_and_sentences_have_the_same_figures() -> None:
    """The head showed 4.70 GB/s beside "bus bandwidth 1.23", and 11 % beside "23 % is not hidden"."""
    board = Board(range(2), "t", clock := Clock())
    for i in range(100):
        clock.now = 100.0 + i * 0.2
        for rank in range(2):  # rank 1 is three times as long in its operations; both import for 4 s
            busy = max(0, i - 20) * 50_000_000
            board.feed(
                MetricsSample(
                    rank, 7.0 + i * 0.2, "compute", step=max(0, i - 20), bytes=max(0, i - 20) * 40_000_000, ops=i,
                    comm_ns=busy * (1 + 2 * rank), wait_ns=busy * 4 // 5,
                )
            )  # fmt: skip
    for finished in (False, True):
        if finished:
            board.finish({})
        totals = board.snapshot()["totals"]
        assert (totals["exposed"], totals["bus"]) == (0.2, 0.4)
        assert totals["overlapped"] == 0.3
        assert board.snapshot()["limits"] == [
            "limited by communication: 20 % of the time is not hidden by computation, another 30 % overlaps with it",
            "bus bandwidth 0.40 GB/s in operations of 40 MB",
        ]


def test_docs_define_each_figure_as_the_panel_does() -> None:
    docs = (ROOT / "docs" / "guides" / "notebook" / "panel.md").read_text()
    rows = {name: f"| {name} | {text} |" for name, text in DEFINITIONS.items()}
    assert [name for name, row in rows.items() if row not in docs] == []


def test_marks_are_sent_once_with_cell_time_and_limited() -> None:
    board = Board(range(2), "t", clock := Clock())
    board.mark("died", "rank 1 died")
    clock.now += 2.0
    board.mark("joined", "rank 1 joined, generation 3")
    marks = [[0.0, "died", "rank 1 died"], [2.0, "joined", "rank 1 joined, generation 3"]]
    assert board.snapshot()["marks"] == board.increment()[0]["marks"] == summary(board)["marks"] == marks
    assert "marks" not in board.increment()[0]
    for _ in range(100):
        board.mark("lost", "2 steps lost")
    assert len(board.snapshot()["marks"]) == MOST_MARKS


def test_values_that_are_not_finite_are_marked_once_with_their_step() -> None:
    board = Board(range(2), "t", clock := Clock())
    feed(board, clock, 0, 2)
    feed(board, clock, 1, 2, not_finite={"loss": NotFinite(210, "nan", is_latest=True)}, logged={"accuracy": 0.5})
    feed(board, clock, 2, 2, not_finite={"loss": NotFinite(210, "nan", is_latest=True)}, logged={"accuracy": 0.5})
    assert board.snapshot()["marks"] == [[0.2, "not finite", "loss is NaN at step 210"]]
    assert board.totals()["logged"] == ["NaN since step 210", 0.5]
    assert board.row(0).logged == ("nan", 0.5)
    feed(board, clock, 3, 2)
    assert board.totals()["logged"][0] == 0.5625


def test_a13_awaited_rank_has_a_badge() -> None:
    """In each round of 0.2 s the others wait 30 ms, a share of 0.15; they need 0.17 s and the slow rank 0.2 s."""
    board = Board(range(4), "t", clock := Clock())
    for i in range(20):
        feed(board, clock, i, 4)
    assert board.snapshot()["slow"] == board.increment()[0]["slow"] == {"1": [1.176, 0.15]}
    board.finish({})
    assert board.snapshot()["slow"] == {"1": [1.176, 0.15]}


@needs_node
def test_snapshot_plus_increments_is_the_next_snapshot() -> None:
    """The page's own code applies them, and merges its columns; one that is reloaded begins with a snapshot."""
    board = Board(range(3), "t", clock := Clock())
    board.grid = Grid(3, limit=60)  # as many columns as a board of a hundred ranks: full after 12 s
    messages, wanted = [], []
    for i in range(150):  # enough for merges
        if i == 40:
            feed(board, clock, i, 3, logged={"loss": 1.0, "late": 3.0})
        feed(board, clock, i, 3, ranges={"loss": (0.1, 5.0 + i)} if i % 5 == 0 else {})
        board.log.feed(i % 3, "stdout", f"line {i}\nopen {i}")
        reloaded = board.snapshot() if i % 7 == 0 else None
        increment, whole = board.increment()
        wanted.append(board.snapshot())
        messages.append({"reloaded": reloaded, "increment": increment, "whole": wanted[-1] if whole else None})
    seen = evaluate(VIEWS, messages, applyIncrement="store")
    assert board.grid.merges == 2
    wrong = [i for i, (view, snapshot) in enumerate(zip(seen, wanted, strict=True)) if view != plain(snapshot)]
    assert wrong == [], "after these increments a view is not the snapshot"


@needs_node
def test_page_merges_curves_and_refreshes_rows_in_turn() -> None:
    board = Board(range(MOST_ROWS + 6), "t", clock := Clock())
    board.grid = Grid(MOST_ROWS + 6, limit=60)
    messages = []
    for i in range(200):
        feed(board, clock, i, MOST_ROWS + 6)
        increment, whole = board.increment()
        assert bool(increment["rows"]) == (i % 5 == 4), "a table that changes is laid out anew: once a second"
        messages.append({"reloaded": None, "increment": increment, "whole": board.snapshot() if whole else None})
    seen = evaluate(VIEWS, messages, applyIncrement="store")
    assert board.grid.merges == 2
    assert seen[-1]["curves"] == plain(board.snapshot())["curves"]
    steps = [seen[-1]["rows"][str(rank)][Row._fields.index("step")] for rank in range(MOST_ROWS + 6)]
    now = board.row(0).step
    assert sorted(steps) == [now - 5 * 40] * 6 + [now] * MOST_ROWS, (
        "those that had no turn have what they had a second ago"
    )


@needs_node
def test_every_view_follows_joining_and_leaving_ranks() -> None:
    board = Board(range(2), "t", clock := Clock())
    messages, wanted = [], []
    steps = {5: lambda: board.join(2), 12: lambda: board.leave(2), 18: lambda: board.join(2), 20: lambda: board.join(1)}
    for i in range(24):
        steps.get(i, lambda: None)()
        feed(board, clock, i, 3)
        board.size = Size(2 + (i >= 5), 4 if i % 2 else None, "at the next commit")
        increment, whole = board.increment()
        wanted.append(board.snapshot())
        messages.append(
            {"reloaded": wanted[0] if i == 0 else None, "increment": increment, "whole": wanted[-1] if whole else None}
        )
    seen = evaluate(VIEWS, messages, applyIncrement="store")
    assert [i for i, (view, each) in enumerate(zip(seen, wanted, strict=True)) if view != plain(each)] == []
    assert [each["ranks"] for each in wanted[4:6]] == [[0, 1], [0, 1, 2]]
    assert [each["rows"].get("2", [None])[0] for each in wanted[11:13]] == ["compute", "left"]
    assert wanted[13]["totals"]["samples_per_s"] == 1600.0, "of the two that are there"
    speeds = [column[2] for column in board.grid.curves[SAMPLES]]
    assert speeds[:6] == [None] * 6
    assert speeds[11] is not None
    assert speeds[13] is None
    assert wanted[-1]["size"] == [3, 4, "at the next commit"]
    board.finish({0: "done", 1: "done", 2: "left"})
    assert (board.snapshot()["size"], board.row(2).state) == (None, "left")


def test_unchanged_values_are_not_sent() -> None:
    board = Board(range(2), "t", clock := Clock())
    feed(board, clock, 0, 2)
    board.increment()
    feed(board, clock, 1, 2)
    assert set(board.increment()[0]) == {"seq", "rows", "t", "began", "totals", "curves"}
    assert set(board.increment()[0]) == {"seq", "rows", "t"}


def test_64_ranks_take_less_than_20_kb_a_second() -> None:
    """The rest of a message is Jupyter's, 0.4 kB of it."""
    board, size = Board(range(64), "t", clock := Clock()), 0
    for i in range(300):
        feed(board, clock, i, 64, logged={"loss": 2.3 - i / 1000}, waiting_for="grad/conv1.weight")
        for rank in range(i % 5, 64, 5):
            board.log.feed(rank, "stdout", f"step {i * 4}\n")
        news, whole = board.increment()
        size += len(json.dumps(news)) + 400
        size += len(json.dumps(board.snapshot())) + 400 if whole else 0
    assert size / 60 < 20_000


def test_snapshots_are_rare() -> None:
    board = Board(range(1), "t", Clock())
    whole = [n for n in range(1, 1001) if board.increment()[1]]
    assert whole == [1, 5, 25, 125, 625]


def test_bytes_of_100_flushes_of_8_ranks() -> None:
    board = Board(range(8), "t", clock := Clock())
    increments = snapshots = 0
    for i in range(100):
        feed(board, clock, i, 8)
        news, whole = board.increment()
        increments += len(json.dumps(news))
        snapshots += len(json.dumps(board.snapshot())) if whole else 0
    assert increments < 150_000
    assert snapshots < 150_000


def test_finish_freezes_and_means_are_over_the_cell() -> None:
    board = Board(range(2), "t", clock := Clock())
    for i in range(11):
        feed(board, clock, i, 2)
    clock.now += 5
    board.finish({0: "done", 1: "failed"})
    clock.now += 50
    feed(board, clock, 999, 2)
    board.finish({0: "dead"})
    shot = board.snapshot()
    assert (shot["finished"], shot["t"]) == (True, 7.0)
    assert [shot["rows"][r][0] for r in "01"] == ["done", "failed"]
    assert shot["rows"]["0"][2:7] == [400, 800.0, 0.25, 0.15, 0.8]


def test_summary() -> None:
    board = Board([0, 1], "t", clock := Clock())
    assert summary(board)["samples_per_s"] == {"total": None, "per_rank": {"0": None, "1": None}}
    for i in range(11):
        feed(board, clock, i, 2)
    board.finish({})
    digest = json.loads(json.dumps(summary(board), allow_nan=False))
    assert digest == {
        "ranks": [0, 1],
        "seconds": pytest.approx(2.0),
        "steps": 400,
        "samples_per_s": {"total": pytest.approx(1600), "per_rank": {"0": pytest.approx(800), "1": pytest.approx(800)}},
        "exposed_share": 0.0,
        "overlapped_share": pytest.approx(0.175),
        "bus_gbps": pytest.approx(0.8),
        "slow": {"1": [1.176, 0.15]},
        "marks": [],
        "logged": {"loss": 0.244318, "accuracy": 0.1},
        "logged_per_rank": {"loss": {"0": 0.181818, "1": 0.306818}, "accuracy": {"0": 0.1, "1": 0.1}},
    }


def test_values_without_a_json_number_are_sent_as_text() -> None:
    board = Board([0], "t", clock := Clock())
    feed(board, clock, 0, 1, logged={"loss": float("nan"), "big": float("inf")}, gpu={"util": float("nan")})
    feed(board, clock, 1, 1, logged={"loss": float("nan"), "big": float("inf")})
    board.finish({})
    shot = json.loads(json.dumps(board.snapshot(), allow_nan=False))
    assert shot["rows"]["0"][-1] == ["nan", "inf"]
    assert shot["totals"]["logged"] == ["nan", "inf"]
    json.dumps(summary(board), allow_nan=False)


def test_a_hundred_thousand_names_are_a_few_names_and_a_number() -> None:
    board = Board([0], "t", clock := Clock())
    feed(board, clock, 0, 1, logged={"loss": 1.0} | {f"metric {i}": 1.0 for i in range(100_000)})
    assert board.names == ["loss", *(f"metric {i}" for i in range(MAX_NAMES - 1))]
    assert board.unnamed == 100_001 - MAX_NAMES
    board.feed(MetricsSample(0, 99.0, "compute", logged={"x" * 10**6: 1.0}))
    assert len(json.dumps(board.snapshot())) < 5_000


def test_stored_output_of_64_ranks_is_bounded() -> None:
    board = Board(range(64), "t", clock := Clock())
    for i in (0, 1):
        feed(board, clock, i, 64, logged={f"metric {k}": 1 / (k + 1.1) for k in range(300)})
    for i in range(100):
        board.mark("died", f"rank {i} died")
    assert 4_000 < len(json.dumps(summary(board))) < 15_000, "it lies in the metadata of the cell's output"


def test_a_second_cell_counts_from_its_own_beginning() -> None:
    before = {
        0: MetricsSample(0, 3.0, "idle", step=50, samples=1000, logged={"loss": 0.5, "lr": 0.1}, comm_ns=10**9),
    }
    board = Board([0, 1], "t", clock := Clock(), before)
    clock.now += 0.5
    board.feed(MetricsSample(0, 999.0, "compute", step=71, samples=1100, logged={"loss": 0.4}, comm_ns=11 * 10**8))
    board.feed(MetricsSample(1, 999.0, "compute", step=20))  # of a fresh process
    assert (board.row(0).step, board.row(1).step, board.totals()["step"]) == (21, 20, 21)
    board.finish({})
    digest = summary(board)
    assert digest["steps"] == 21, "not those of all cells before it"
    assert digest["samples_per_s"]["per_rank"] == {"0": pytest.approx(200), "1": None}
    assert board.row(0).comm == pytest.approx(0.2)
    assert digest["logged"] == {"loss": 0.4}


def test_unknown_ranks_are_ignored() -> None:
    board = Board([2, 5], "t", Clock())
    board.feed(MetricsSample(0, 1.0, "compute"))
    assert [board.row(rank).state for rank in (2, 5)] == ["starting", "starting"]
