"""Memory that the core reads while ranks agree on sets stays alive, also if a user interrupts the wait."""

from __future__ import annotations

import ctypes
import weakref
from types import SimpleNamespace
from typing import Any

import pytest

from hvd_kernel.core import process_set_registry as registry


class Core:
    """An engine that returns its input; ``pressed``: the key is pressed while it still reads that."""

    def __init__(self, *, pressed: bool) -> None:
        self.pressed = pressed
        self.sent = b""

    def allgather(self, _name: str, places: list[Any]) -> int:
        [(pointer, (rows, width), _dtype)] = places
        self.sent = ctypes.string_at(pointer, rows * width)
        return 3

    def wait(self, handle: int) -> Any:
        assert handle == 3
        if self.pressed:
            raise KeyboardInterrupt
        return SimpleNamespace(buffers=[self.sent])


@pytest.fixture
def lent(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return weak references to all memory whose address the core was passed."""
    seen: list[Any] = []
    address = ctypes.addressof

    def spied(memory: Any) -> int:
        seen.append(weakref.ref(memory))
        return address(memory)

    monkeypatch.setattr(ctypes, "addressof", spied)
    monkeypatch.setattr(registry, "_lent", [], raising=False)
    return seen


def ask(monkeypatch: pytest.MonkeyPatch, generation: int, *, pressed: bool) -> None:
    monkeypatch.setattr(registry.session, "engine", lambda: Core(pressed=pressed))
    monkeypatch.setattr(registry.session, "generation", lambda: generation)
    if pressed:
        with pytest.raises(KeyboardInterrupt):
            registry.gather_rows("x", [(1, 0), (0, 1)])
    else:
        assert registry.gather_rows("x", [(1, 0), (0, 1)]) == [b"\1\0", b"\0\1"]


def test_interrupted_memory_is_held_until_the_engine_ends(monkeypatch: pytest.MonkeyPatch, lent: list[Any]) -> None:
    ask(monkeypatch, 1, pressed=True)
    ask(monkeypatch, 1, pressed=False)
    assert [each() is None for each in lent] == [False, True]
    ask(monkeypatch, 2, pressed=False)
    assert [each() is None for each in lent] == [True, True, True]
