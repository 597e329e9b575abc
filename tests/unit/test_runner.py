"""The loop around a run: it ends, it obeys the interrupt key and the clock, and it raises the right thing."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest
from hvdtest.fakes import FakeBoard, FakeScreen, FakeSession, ScriptedRun

from hvd_kernel.errors import HvdTimeout
from hvd_kernel.magics import runner
from hvd_kernel.magics.render import Renderer
from hvd_kernel.magics.runner import Watch
from hvd_kernel.protocol import Failure, RankDone, TextDelta


def press() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def driven(script: list[Any], timeout: float | None = None) -> tuple[Watch, FakeSession, FakeScreen]:
    session, screen = FakeSession(), FakeScreen()
    renderer = Renderer(screen, FakeBoard(), [0, 1])
    watch = Watch(session, ScriptedRun(script, [0, 1]), renderer, [0, 1], timeout)
    watch.drive()
    renderer.finish(watch.word())
    return watch, session, screen


def check(watch: Watch, is_local: Callable[[str], bool] = lambda _: False) -> None:
    watch.check(is_local)


def test_a_good_cell() -> None:
    watch, session, screen = driven([TextDelta(0, "stdout", "a\n"), RankDone(0), None, RankDone(1)])
    check(watch)
    assert session.interrupted == []
    assert screen.written == [("stdout", "[0] a\n")]


def test_a_failed_cell_raises_the_real_class() -> None:
    failed = Failure(1, "ZeroDivisionError", "division by zero", ("tb",), 1.0)
    watch, _, _ = driven([RankDone(0, Failure(0, "RankFailed", "r", (), 2.0, secondary=True)), RankDone(1, failed)])
    with pytest.raises(ZeroDivisionError, match="division by zero"):
        check(watch)


def test_interrupt_is_passed_on_and_output_is_drained() -> None:
    handler = signal.getsignal(signal.SIGINT)
    script = [press, None, TextDelta(1, "stdout", "last words\n"), RankDone(0), RankDone(1)]
    watch, session, screen = driven(script)
    with pytest.raises(KeyboardInterrupt, match="ranks 0-1 interrupted, variables are kept") as caught:
        check(watch)
    assert type(caught.value).__name__ == "KeyboardInterrupt"
    assert session.interrupted == [[0, 1]]
    assert screen.written == [("stdout", "[1] last words\n")]
    assert watch.word() == "interrupted"
    assert signal.getsignal(signal.SIGINT) is handler


def test_second_press_reaches_those_that_still_run_and_the_third_gives_up() -> None:
    watch, session, _ = driven([press, None, RankDone(0), press, None, press, None])
    with pytest.raises(KeyboardInterrupt, match="still running; %hvd restart"):
        check(watch)
    assert session.interrupted == [[0, 1], [1]]


def test_timeout_interrupts_and_says_so() -> None:
    watch, session, _ = driven([None, None, RankDone(0), RankDone(1)], timeout=1e-9)
    with pytest.raises(HvdTimeout, match="longer than 1e-09 s and was interrupted"):
        check(watch)
    assert session.interrupted == [[0, 1]]


def test_timeout_gives_up_on_ranks_that_do_not_obey(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "GRACE_S", 0.0)
    watch, _, _ = driven([None, RankDone(0)], timeout=1e-9)
    with pytest.raises(HvdTimeout, match="still running; %hvd restart"):
        check(watch)
