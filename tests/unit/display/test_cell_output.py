"""Stored output of a cell from its events: the same for every order of arrival, with a dashboard where the rules require one."""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace

from hvdtest.fakes import FakeBoard, FakeWriter
from hypothesis import given
from hypothesis import strategies as st

from hvd_kernel.magics.display import cell_output
from hvd_kernel.magics.display.cell_output import CellOutput
from hvd_kernel.protocol.messages import Event, Failure, MetricsSample, RankDone, RichOutput, TextDelta

PNG = {"image/png": "aGk=", "text/plain": "<Figure>"}


def sample(rank: int, **values: object) -> MetricsSample:
    return MetricsSample(rank, 0.0, "idle", **values)


def output(
    events: list[Event],
    writer: FakeWriter | None = None,
    n: int = 2,
    before: dict[int, MetricsSample] | None = None,
    word: str = "done",
) -> list[tuple[str, object]]:
    writer = writer or FakeWriter()
    cell = CellOutput(writer, FakeBoard(), range(n), before)
    for event in events:
        cell.handle(event)
        cell.tick()
    cell.finish(word)
    return writer.written


def result(rank: int, text: str, **data: str) -> RichOutput:
    return RichOutput(rank, {"text/plain": text, **data}, {}, is_result=True)


def test_order_of_stored_output() -> None:
    events: list[Event] = [
        result(1, "7"),
        RichOutput(1, PNG, {}),
        TextDelta(1, "stderr", "warn\n"),
        TextDelta(1, "stdout", "b1\n"),
        sample(0, step=1),
        TextDelta(0, "stdout", "a\nb0"),
        TextDelta(0, "stdout", "\n"),
        TextDelta(1, "stdout", "c"),
        RichOutput(0, {"text/plain": "text only"}, {}),
        result(0, "7"),
        RankDone(0),
        RankDone(1),
    ]
    assert output(events) == [
        ("display", {"text/plain": "hvd dashboard"}),
        ("stdout", "[0] a\n[0] b0\n[1] b1\n[1] c\n"),
        ("stderr", "[1] warn\n"),
        ("display", {"text/plain": "[0] text only"}),
        ("display", {"text/plain": "[1]"}),
        ("display", PNG),
        ("display", {"text/plain": "[0-1] 7"}),
    ]


@given(st.randoms(use_true_random=False), st.integers(2, 4))
def test_order_of_arrival_between_ranks_does_not_matter(random: object, n: int) -> None:
    own = {
        rank: [
            TextDelta(rank, "stdout", "common\n"),
            TextDelta(rank, "stdout", f"own {rank}\n"),
            TextDelta(rank, "stderr", "careful\n"),
            RichOutput(rank, PNG, {}),
            sample(rank, step=3),
            result(rank, str(rank % 2)),
            RankDone(rank),
        ]
        for rank in range(n)
    }
    expected = output(list(itertools.chain(*own.values())), n=n)
    left = {rank: list(events) for rank, events in own.items()}
    shuffled: list[Event] = []
    while left:
        rank = random.choice(sorted(left))
        shuffled.append(left[rank].pop(0))
        if not left[rank]:
            del left[rank]
    assert output(shuffled, n=n) == expected


def test_text_results_that_differ_are_one_text() -> None:
    assert output([result(1, "b\nb"), result(0, "a")]) == [("display", {"text/plain": "[0] a\n[1] b\n    b"})]


def test_rich_results_that_differ_are_shown_for_each_rank() -> None:
    """Figures, tables and pictures that differ were text only."""
    tables = [{"text/html": f"<table>{rank}</table>"} for rank in range(3)]
    events = [result(0, "t0", **tables[0]), result(1, "t1", **tables[1]), result(2, "t0", **tables[0])]
    assert output(events, n=3) == [
        ("display", {"text/plain": "[0,2]"}),
        ("display", {"text/plain": "t0", **tables[0]}),
        ("display", {"text/plain": "[1]"}),
        ("display", {"text/plain": "t1", **tables[1]}),
    ]
    assert output(events, FakeWriter(terminal=True), n=3) == [("display", {"text/plain": "[0,2] t0\n[1] t1"})]


def test_text_results_beside_rich_ones_keep_their_place() -> None:
    table = {"text/html": "<table>"}
    assert output([result(0, "a"), result(1, "b"), result(2, "t", **table), result(3, "c")], n=4) == [
        ("display", {"text/plain": "[0] a\n[1] b"}),
        ("display", {"text/plain": "[2]"}),
        ("display", {"text/plain": "t", **table}),
        ("display", {"text/plain": "[3] c"}),
    ]


def test_result_equal_on_all_ranks_stays_rich() -> None:
    html = {"text/html": "<table>"}
    assert output([result(0, "t", **html), result(1, "t", **html)]) == [("display", {"text/plain": "[0-1] t", **html})]


def test_a_quiet_cell_writes_nothing() -> None:
    assert output([sample(0), sample(1), RankDone(0), RankDone(1)]) == []


def test_training_means_new_steps_or_logged_values() -> None:
    before = {0: sample(0, step=5, logged={"loss": 1.0}), 1: sample(1)}
    board = ("display", {"text/plain": "hvd dashboard"})
    assert output([sample(0, step=5)], before=before) == []
    assert output([sample(0, step=6)], before=before) == [board]
    assert output([sample(0, step=5, logged={"loss": math.nan})], before=before) == [board]
    assert output([sample(0, step=5, logged={"loss": 1.0})], before=before) == [board], "the same value, logged again"
    assert output([sample(1, logged={"loss": 1.0})], before=before) == [board]


def test_interactive_board_appears_after_a_second_and_freezes(monkeypatch: object) -> None:
    clock = iter([0.0, 0.5, 1.01, 1.05, 1.2, 1.3])
    monkeypatch.setattr(cell_output, "time", SimpleNamespace(monotonic=lambda: next(clock)))  # no other thread's
    writer = FakeWriter(interactive=True)
    board = FakeBoard()
    cell = CellOutput(writer, board, [0])
    for text in ("a", "b", "c", "d\n"):
        cell.handle(TextDelta(0, "stdout", text))
        cell.tick()
    cell.handle(RankDone(0, Failure(0, "ValueError", "bad", (), 1.0)))
    cell.finish()
    assert [kind for kind, _ in writer.written] == ["live", "update", "stdout"]
    assert board.flushes == 2
    assert board.states == {0: "failed"}
    assert "".join(text for _, _, text in board.text) == "abcd\n"


def test_interactive_short_training_gets_its_board_at_the_end() -> None:
    writer = FakeWriter(interactive=True)
    assert [kind for kind, _ in output([sample(0, step=1)], writer)] == ["live"]


def test_terminal_prints_lines_on_arrival_and_figures() -> None:
    writer = FakeWriter(terminal=True)
    events = [
        TextDelta(1, "stdout", "b\nhal"),
        TextDelta(0, "stdout", "a\n"),
        TextDelta(1, "stdout", "f"),
        sample(0, step=1),
    ]
    assert output(events, writer) == [
        ("stdout", "[1] b\n"),
        ("stdout", "[0] a\n"),
        ("stdout", "2 ranks, 7 steps, 2.0 s, 1,234 samples/s, loss 0.5\n"),
        ("stdout", "[1] half\n"),
    ]


def test_a13_terminal_figures_name_the_slow_rank() -> None:
    told = {**FakeBoard().summary(), "slow": {"1": [1.43, 0.301]}}
    assert cell_output.figures(told) == (
        "2 ranks, 7 steps, 2.0 s, 1,234 samples/s, loss 0.5, rank 1 slow 1.4x, others wait 30 %\n"
    )


def test_death_is_marked_once_with_time_in_a_terminal() -> None:
    board = FakeBoard()
    cell = CellOutput(FakeWriter(), board, [0, 1])
    cell.handle(RankDone(0, Failure(0, "RankDied", "rank 1 died", (), 1.0, secondary=True)))
    cell.handle(RankDone(1, Failure(1, "RankDied", "rank 1 died", (), 1.0)))
    assert board.marks == [("died", "rank 1 died")]
    told = {**board.summary(), "marks": [[1.26, "died", "rank 1 died"]]}
    assert cell_output.figures(told).endswith("loss 0.5, rank 1 died at 1.3 s\n")


def test_ranks_outside_of_the_cell_are_ignored() -> None:
    assert output([TextDelta(5, "stdout", "late\n")]) == []


def test_text_of_a_cell_is_bounded() -> None:
    fifty = "".join(f"line {i}\n" for i in range(50))
    written = output([TextDelta(rank, "stdout", fifty) for rank in range(64) for _ in range(100)], n=64)
    assert len(written) == 1
    text = str(written[0][1])
    assert len(text) < 1_200_000
    assert text.count("\n") <= 64 * 126
    assert "lines more" in text


def test_interrupted_is_the_last_state() -> None:
    board = FakeBoard()
    cell = CellOutput(FakeWriter(), board, [0, 1])
    cell.handle(RankDone(1, Failure(1, "KeyError", "'k'", (), 1.0)))
    cell.finish("interrupted")
    assert board.states == {0: "interrupted", 1: "failed"}
