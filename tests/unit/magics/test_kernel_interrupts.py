"""The interrupt key raises in the user's code, and waits for it elsewhere."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from hvd_kernel.kernel.interrupt_key import Interrupts
from hvd_kernel.magics import interrupts as presses


@pytest.fixture
def interrupts() -> Iterator[Interrupts]:
    taken = Interrupts()
    before = taken.begin()
    yield taken
    signal.signal(signal.SIGINT, before)


def press() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_press_in_user_code_raises_there(interrupts: Interrupts) -> None:
    with pytest.raises(KeyboardInterrupt), interrupts.users_code():
        press()


def test_press_outside_user_code_waits_for_the_next_statement(interrupts: Interrupts) -> None:
    press()
    reached = False
    with pytest.raises(KeyboardInterrupt), interrupts.users_code():
        reached = True
    assert not reached
    with interrupts.users_code():
        pass


def test_press_after_the_last_statement_is_forgotten(interrupts: Interrupts) -> None:
    with interrupts.users_code():
        pass
    press()
    interrupts.begin()
    with interrupts.users_code():
        pass


def nested(interrupts: Interrupts) -> None:
    with interrupts.users_code():
        with interrupts.users_code():
            pass
        press()


def test_code_after_a_nested_cell_is_still_user_code(interrupts: Interrupts) -> None:
    with pytest.raises(KeyboardInterrupt):
        nested(interrupts)


def test_a_repeated_press_after_the_cell_has_no_effect(interrupts: Interrupts, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last of five quick presses arrived between the ranks' end and the cell's error, and replaced the error."""
    monkeypatch.setattr(presses, "SAME_S", 600.0)
    with interrupts.users_code():
        with presses.counted() as count:
            press()
        press()
        assert count.count == 1
        monkeypatch.setattr(presses, "SAME_S", 0.0)
        with pytest.raises(KeyboardInterrupt):
            press()
        with presses.restoring_handler():
            pass
        assert signal.getsignal(signal.SIGINT) is interrupts
