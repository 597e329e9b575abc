"""SIGINT that is sent until it is noticed: one interrupt raises once, and signals of other senders are kept."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import pytest

from hvd_kernel.worker.shell.repeated_signal import RepeatedSignal


class Handler:
    """A handler that notices the signals after ``deaf`` ones, and records which may raise."""

    def __init__(self, deaf: int) -> None:
        self.interrupt = RepeatedSignal()
        self.raising: list[bool] = []
        self._deaf = deaf

    def __call__(self, _number: int, _frame: FrameType | None) -> None:
        if self._deaf:
            self._deaf -= 1
        else:
            self.raising.append(self.interrupt.notice())


@contextmanager
def handling(deaf: int) -> Iterator[Handler]:
    handler = Handler(deaf)
    before = signal.signal(signal.SIGINT, handler)
    try:
        yield handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_signal_in_flight_is_the_same_interrupt() -> None:
    with handling(deaf=1) as handler:
        assert handler.interrupt.insist(lambda: True)  # two signals, of which the second is noticed
        os.kill(os.getpid(), signal.SIGINT)  # as the first one, if it comes late
    assert handler.raising == [True, False]


def test_signal_of_another_sender_raises() -> None:
    with handling(deaf=0) as handler:
        os.kill(os.getpid(), signal.SIGINT)  # no interrupt was requested
        assert handler.raising == [True]
        handler.interrupt = RepeatedSignal()
        assert handler.interrupt.insist(lambda: True)
        os.kill(os.getpid(), signal.SIGINT)
    assert handler.raising == [True, True, True]


def test_nothing_is_sent_to_a_cell_that_has_ended() -> None:
    with handling(deaf=0) as handler:
        assert handler.interrupt.insist(lambda: False)
    assert handler.raising == []


def test_unresponsive_main_thread_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hvd_kernel.worker.shell.repeated_signal._PAUSES_S", (0.0,) * 4)
    with handling(deaf=4) as handler:
        assert not handler.interrupt.insist(lambda: True)
    assert handler.raising == []
