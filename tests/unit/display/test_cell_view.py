"""The loop around a run: it ends, it obeys the interrupt key and the clock, and it raises the right thing."""

from __future__ import annotations

import os
import re
import signal
from types import SimpleNamespace
from typing import Any

import pytest
from hvdtest.fakes import FakeBoard, FakeSession, FakeWriter, ScriptedExecution

from hvd_kernel.errors import HvdTimeout
from hvd_kernel.magics import cell_view, interrupts
from hvd_kernel.magics.cell_view import CellView
from hvd_kernel.magics.display.cell_output import CellOutput
from hvd_kernel.protocol.messages import Failure, RankDone, RankRaised, TextDelta


def press() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def driven(
    script: list[Any], timeout: float | None = None, writer: FakeWriter | None = None
) -> tuple[CellView, FakeSession, FakeWriter]:
    session, writer = FakeSession(), writer or FakeWriter()
    output = CellOutput(writer, FakeBoard(), [0, 1])
    view = CellView(session, ScriptedExecution(script, [0, 1]), output, [0, 1], timeout)
    view.show()
    output.finish(view.end_state())
    return view, session, writer


def check(view: CellView) -> None:
    view.check()


def test_successful_cell() -> None:
    view, session, writer = driven([TextDelta(0, "stdout", "a\n"), RankDone(0), None, RankDone(1)])
    check(view)
    assert session.interrupted == []
    assert writer.written == [("stdout", "[0] a\n")]


def test_a_failed_cell_raises_the_real_class() -> None:
    failed = Failure(1, "ZeroDivisionError", "division by zero", ("tb",), 1.0)
    view, _, _ = driven([RankDone(0, Failure(0, "RankFailed", "r", (), 2.0, secondary=True)), RankDone(1, failed)])
    with pytest.raises(ZeroDivisionError, match="division by zero"):
        check(view)


def test_interrupt_is_passed_on_and_output_is_drained() -> None:
    handler = signal.getsignal(signal.SIGINT)
    script = [press, None, TextDelta(1, "stdout", "last words\n"), RankDone(0), RankDone(1)]
    view, session, writer = driven(script)
    with pytest.raises(KeyboardInterrupt, match="ranks 0-1 interrupted, variables are kept") as caught:
        check(view)
    assert type(caught.value).__name__ == "KeyboardInterrupt"
    assert session.interrupted == [[0, 1]]
    assert writer.written == [("stdout", "[1] last words\n")]
    assert view.end_state() == "interrupted"
    assert signal.getsignal(signal.SIGINT) is handler


@pytest.fixture
def presses_count_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupts, "SAME_S", 0.0)


@pytest.mark.usefixtures("presses_count_each")
def test_b2_second_press_interrupts_again_third_abandons() -> None:
    view, session, _ = driven([press, None, RankDone(0), press, None, press, None])
    with pytest.raises(KeyboardInterrupt) as caught:
        check(view)
    assert session.interrupted == [[0, 1], [1]]
    assert view.left == [1]
    assert str(caught.value) == (
        "rank 0 interrupted, variables are kept\nnot responding: rank 1 is in cell 1:2: sleep(60)\n"
        "%hvd respawn 1 --force replaces it, %hvd restart all"
    )


@pytest.mark.usefixtures("presses_count_each")
def test_b3_fate_of_replaced_ranks_replaces_the_remedy() -> None:
    view, _, _ = driven([press, None, RankDone(0), press, None, press, None])
    view.fate = "it was replaced"
    with pytest.raises(KeyboardInterrupt, match=re.escape("rank 1 is in cell 1:2: sleep(60)\nit was replaced")):
        check(view)


def test_b2_quick_presses_count_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupts, "SAME_S", 60.0)
    view, session, _ = driven([press, press, press, press, None, RankDone(0), RankDone(1)])
    with pytest.raises(KeyboardInterrupt, match=r"^ranks 0-1 interrupted, variables are kept$"):
        check(view)
    assert session.interrupted == [[0, 1]], "impatient fingers neither repeat the interrupt nor end ranks"


@pytest.mark.usefixtures("presses_count_each")
@pytest.mark.parametrize(("writer", "shown"), [("interactive", True), ("terminal", True), ("headless", False)])
def test_b3_second_press_shows_the_stacks_to_a_user(writer: str, *, shown: bool) -> None:
    seen = FakeWriter(interactive=writer == "interactive", terminal=writer == "terminal")
    driven([press, None, press, None, RankDone(0), RankDone(1)], writer=seen)
    said = [text for stream, text in seen.written if stream == "stderr" and "not responding" in text]
    assert said == ([f"{STACKS}{AGAIN}\n"] if shown else [])


STACKS = "[0-1] in the cell's own code\n    cell 1:2: sleep(60)\n"
ONCE, AGAIN = (interrupts.not_responding((0, 1), presses) for presses in (1, 2))


@pytest.mark.usefixtures("presses_count_each")
def test_b3_every_press_reports_its_effect_and_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first report promised what the next press did not do, and the second press printed nothing."""
    monkeypatch.setattr(cell_view, "PATIENT_S", 0.0)
    seen = FakeWriter(terminal=True)
    view, session, _ = driven([press, None, None, press, None, None, press, None], writer=seen)
    assert [text for _, text in seen.written] == [f"{STACKS}{ONCE}\n", f"{STACKS}{AGAIN}\n"]
    assert session.interrupted == [[0, 1], [0, 1]]
    assert view.abandoned
    assert "is sent to these again, the one after it ends only these" in ONCE
    assert "another interrupt ends only these and starts new ones" in AGAIN
    assert interrupts.ending(view.left) == "ending ranks 0-1 and starting new ones; their variables are lost"


def test_b3_stacks_are_shown_if_ranks_ignore_an_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cell_view, "PATIENT_S", 0.0)
    seen = FakeWriter(terminal=True)
    driven([press, None, None, RankDone(0), None, None, RankDone(1)], writer=seen)
    assert len([text for stream, text in seen.written if "not responding yet" in text]) == 1


OWN = Failure(1, "ValueError", "the real reason", ("Traceback", "ValueError: the real reason"), 1.0)
OBEYED = Failure(0, "KeyboardInterrupt", "", ("KeyboardInterrupt",), 2.0)


def shown(error: BaseException) -> list[str]:
    return [re.sub(r"\x1b\[\d+m", "", line) for line in error._render_traceback_()]  # type: ignore[attr-defined]


@pytest.mark.parametrize("event", [RankRaised(1, "ValueError", "the real reason"), RankDone(1, OWN)])
def test_a9_error_before_an_interrupt_is_the_cells_error(event: object) -> None:
    """It was lost: the cell reported only that its ranks were interrupted."""
    view, _, _ = driven([event, None, press, None, RankDone(1, OWN), RankDone(0, OBEYED)])
    with pytest.raises(ValueError, match=r"^the real reason$") as caught:
        check(view)
    assert shown(caught.value) == [
        "ValueError on rank 1",
        "Traceback",
        "ValueError: the real reason",
        "rank 0 interrupted, variables are kept",
    ]
    assert view.interrupted


def test_a9_error_before_the_timeout_is_the_cells_error(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(cell_view, "time", SimpleNamespace(monotonic=lambda: now[0]))
    late = lambda: now.append(now.pop() + 4.1)  # noqa: E731
    view, session, _ = driven([RankDone(1, OWN), late, None, RankDone(0, OBEYED)], timeout=4.0)
    with pytest.raises(ValueError, match=r"^the real reason$") as caught:
        check(view)
    assert shown(caught.value)[-1] == "the cell took longer than 4 s and was interrupted"
    assert session.interrupted == [[0]]


def test_a9_error_of_an_abandoned_rank_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cell_view, "GRACE_S", 0.0)
    view, _, _ = driven([RankRaised(1, "ValueError", "the real reason")], timeout=1e-9)
    with pytest.raises(
        HvdTimeout, match=r"was interrupted\n\[1\] ValueError: the real reason\nnot responding: ranks 0-1 "
    ):
        check(view)


def test_errors_after_an_interrupt_are_named_below_it() -> None:
    view, _, _ = driven([press, None, RankDone(1, OWN), RankDone(0, OBEYED)])
    with pytest.raises(KeyboardInterrupt) as caught:
        check(view)
    assert str(caught.value) == "ranks 0-1 interrupted, variables are kept\n[1] ValueError: the real reason"


@pytest.mark.parametrize("event", [RankRaised(1, "ValueError", "the real reason"), RankDone(1, OWN)])
def test_a9_error_is_shown_while_the_other_ranks_run(event: object, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(cell_view, "time", SimpleNamespace(monotonic=lambda: now[0]))
    session, board = FakeSession(), FakeBoard()
    script = [event, None, lambda: now.append(now.pop() + cell_view.RAISED_S), None, RankDone(1, OWN), RankDone(0)]
    view = CellView(session, ScriptedExecution(script, [0, 1]), CellOutput(FakeWriter(), board, [0, 1]), [0, 1], None)
    view.show()
    sentence = "rank 1 raised ValueError: the real reason; rank 0 still runs: interrupt the cell to end it"
    assert board.explained == [sentence, ""]


def test_a9_error_that_releases_the_others_is_not_announced() -> None:
    board = FakeBoard()
    script = [RankRaised(1, "ValueError", "v"), RankDone(1, OWN), None, RankDone(0)]
    CellView(
        FakeSession(), ScriptedExecution(script, [0, 1]), CellOutput(FakeWriter(), board, [0, 1]), [0, 1], None
    ).show()
    assert board.explained == []


def test_c5_why_ranks_waited_is_part_of_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cell_view, "StallMonitor", AlwaysWaiting)
    view, _, _ = driven([None, press, RankDone(0), RankDone(1)])
    with pytest.raises(KeyboardInterrupt, match=r"variables are kept\nat that moment: barrier waits for rank 1$"):
        check(view)
    now = [100.0]
    monkeypatch.setattr(cell_view, "time", SimpleNamespace(monotonic=lambda: now[0]))
    view, _, _ = driven([lambda: now.append(now.pop() + 1.1), None, RankDone(0), RankDone(1)], timeout=1.0)
    with pytest.raises(HvdTimeout, match=r"was interrupted\nat that moment: barrier waits for rank 1$"):
        check(view)
    view, _, _ = driven([None, None, RankDone(0), RankDone(1)])
    check(view)


class AlwaysWaiting:
    """A stall monitor that reports after its first tick."""

    def __init__(self, *_: object) -> None:
        self.sentence, self.awaited = "", set[int]()

    def hear(self, _sample: object) -> None:
        pass

    def tick(self) -> None:
        self.sentence = "barrier waits for rank 1"


def test_timeout_interrupts_and_is_reported() -> None:
    view, session, _ = driven([None, None, RankDone(0), RankDone(1)], timeout=1e-9)
    with pytest.raises(HvdTimeout, match="longer than 1e-09 s and was interrupted"):
        check(view)
    assert session.interrupted == [[0, 1]]


def test_timeout_abandons_unresponsive_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cell_view, "GRACE_S", 0.0)
    view, _, _ = driven([None, RankDone(0)], timeout=1e-9)
    with pytest.raises(
        HvdTimeout, match=r"not responding: ranks 0-1 are in .*\n%hvd respawn 0-1 --force replaces them"
    ):
        check(view)
