"""Memory that the core writes to stays alive, also if an interrupt arrives before the handle."""

from __future__ import annotations

from typing import Any

import pytest

from hvd_kernel.core import handles
from hvd_kernel.core.ops import Sum


class Core:
    """An engine that has taken the memory, or refused it, when ``then`` is raised."""

    def __init__(self, then: type[BaseException] | None = None) -> None:
        self.then = then

    def allreduce(self, *_: Any) -> int:
        if self.then is not None:
            raise self.then
        return 7


@pytest.fixture(autouse=True)
def nothing_held(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, empty in {"_owner": None, "_live": {}, "_entering": []}.items():
        monkeypatch.setattr(handles, name, empty)


def begun(monkeypatch: pytest.MonkeyPatch, core: Core) -> Any:
    """Enqueue; return the finish function."""
    monkeypatch.setattr(handles.session, "engine", lambda: core)

    def finish(_: Any) -> None:
        return None

    if core.then is None:
        assert handles.allreduce_places("x", [], Sum, (1.0, 1.0), finish) == 7
    else:
        with pytest.raises(core.then):
            handles.allreduce_places("x", [], Sum, (1.0, 1.0), finish)
    return finish


def test_handle_holds_its_finish_function(monkeypatch: pytest.MonkeyPatch) -> None:
    core = Core()
    finish = begun(monkeypatch, core)
    assert (handles._live, handles._entering) == ({7: (core, finish)}, [])


def test_refused_operation_holds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    begun(monkeypatch, Core(ValueError))
    assert (handles._live, handles._entering) == ({}, [])


def test_interrupted_handle_is_held_until_the_next_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    finish = begun(monkeypatch, Core(KeyboardInterrupt))
    assert (handles._live, handles._entering) == ({}, [finish])
    begun(monkeypatch, Core())
    assert handles._entering == []
