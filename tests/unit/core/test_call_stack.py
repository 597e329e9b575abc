"""Call stacks of a rank, as they are read from frames of other threads."""

from __future__ import annotations

import sys
import threading
from types import CodeType, SimpleNamespace
from typing import Any

import pytest

from hvd_kernel.core import call_stack, group_engines, session
from hvd_kernel.protocol.messages import Pending


def test_a_frame_between_two_lines_is_shown_at_its_function() -> None:
    """Python reports None for its line while it enters or leaves a block: another thread may observe that."""

    def between() -> None:
        """Never called."""

    code: CodeType = between.__code__
    frame: Any = SimpleNamespace(f_code=code, f_lineno=None, f_globals={"__name__": __name__}, f_back=sys._getframe())
    (_, call), *_ = call_stack.calls(frame)
    assert call.line == code.co_firstlineno
    (shown,) = call_stack.frames([call])
    assert shown.function == "between"
    assert shown.text == "def between() -> None:"


def test_threads_running_user_code_are_distinguished() -> None:
    here, me = sys._getframe(), threading.current_thread()
    assert call_stack.runs_user_code(me, here)
    assert call_stack.runs_user_code(None, here), "one that began after the threads were listed"
    assert not call_stack.runs_user_code(threading.Thread(daemon=True), here)
    done = threading.Event()
    library = threading.Thread(target=done.wait)
    library.start()
    try:
        inside = sys._current_frames()[library.ident or 0]
        assert not call_stack.runs_user_code(library, inside), "none of its functions is the user's"
    finally:
        done.set()
        library.join()
    assert call_stack.runs_user_code(threading.Timer(1, print), inside), "what it will call is the user's"


class FakeEngine:
    """An engine with counters and operations."""

    def __init__(self, rank: int, *operations: tuple[str, str, float, list[int]], **counters: int) -> None:
        self.rank, self._operations, self._counters = rank, operations, counters

    def pending(self) -> list[dict[str, object]]:
        keys = ("name", "op", "seconds", "missing")
        return [dict(zip(keys, operation, strict=True)) for operation in self._operations]

    def counters(self) -> dict[str, int]:
        return self._counters


@pytest.fixture
def no_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_engines, "_engines", {})
    monkeypatch.setattr(group_engines, "_closed", {})


@pytest.mark.usefixtures("no_groups")
def test_operations_of_groups_have_the_numbers_of_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    main: Any = FakeEngine(2, ("allreduce.grad", "allreduce", 0.5, [2]))
    group: Any = FakeEngine(0, ("torch 7 (ranks 2,5).1", "allgather", 2.0, [1]), ("send.1to0.tag0.0", "send", 1.0, [1]))
    group_engines.add(group, (2, 5))
    assert call_stack.pending(main) == [
        Pending("torch all_gather (ranks 2,5)", 2.0, (5,)),
        Pending("torch send from rank 5 to rank 2", 1.0, (5,)),
        Pending("allreduce.grad", 0.5, (2,)),
    ]
    assert call_stack.waiting_for(main) == "", "the main thread is here"
    monkeypatch.setattr(call_stack, "inside_core", lambda: True)
    assert call_stack.waiting_for(main) == "torch all_gather (ranks 2,5)"
    group_engines.remove(group)
    assert call_stack.waiting_for(main) == "", "rank 2 has not requested it"


@pytest.mark.usefixtures("no_groups")
def test_counters_of_groups_remain_and_waits_never_decrease(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_engine", "_before", "_waited"):
        monkeypatch.setattr(session, name, {"_engine": None, "_before": {"bytes": 1}, "_waited": 0}[name])
    group: Any = FakeEngine(0, bytes=10, wait_ns=100)
    group_engines.add(group, (0, 1))
    for _ in range(2):
        assert session.counters() == {"bytes": 11, "wait_ns": 100}
        group_engines.hide(30)
        assert session.counters() == {"bytes": 11, "wait_ns": 100}, "it was reported a moment before"
        group_engines.hide(-30)
        group_engines.remove(group)
    parents: Any = FakeEngine(0, bytes=5)
    group_engines.add(parents, (0, 1))
    group_engines.remove(parents, is_ours=False)
    assert session.counters()["bytes"] == 11
