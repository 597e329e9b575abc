"""Whether a cell has ended on a rank: not while it runs, nor while a task of it may still call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from hvd_kernel.errors import HorovodInternalError, HvdTimeout, Mismatch, RankDied, RankFailed, RankStalled
from hvd_kernel.launch.outcome import FailedRank, is_consequence
from hvd_kernel.magics.display.user_errors import merged_error
from hvd_kernel.protocol.messages import Failure
from hvd_kernel.worker.communication import is_secondary
from hvd_kernel.worker.shell.engine import CellProgram

ENDED: dict[str, Any] = {"failure": None}


def program(loop: asyncio.AbstractEventLoop | None = None, **change: Any) -> CellProgram:
    state = {"busy": False, "has_clients": False, "latest": SimpleNamespace(ended=ENDED), "run_number": 7, "loop": loop}
    control: Any = SimpleNamespace(**state | change)
    return CellProgram(control)


def test_a_cell_has_ended_between_two_cells() -> None:
    assert program().is_over
    assert program().run == 7


@pytest.mark.parametrize(
    "change",
    [{"busy": True}, {"has_clients": True}, {"latest": SimpleNamespace(ended=None)}],
    ids=lambda change: str(*change),
)
def test_cell_has_not_ended_while_work_is_scheduled(change: dict[str, Any]) -> None:
    assert not program(**change).is_over
    assert program(**change).run == (7 if "busy" in change else None)


async def users() -> None:
    await asyncio.sleep(60)


@pytest.mark.parametrize("work", [users, lambda: asyncio.wait_for(users(), 60)], ids=["own", "in a library's"])
def test_a_task_of_the_cell_may_still_call(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    loop = asyncio.new_event_loop()
    task = loop.create_task(work())
    loop.run_until_complete(asyncio.sleep(0.001))
    assert not program(loop).is_over
    task.cancel()
    loop.run_until_complete(asyncio.sleep(0.001))
    assert program(loop).is_over
    loop.close()


def test_a_scheduled_callback_of_the_cell_may_still_call() -> None:
    def later(_argument: int) -> None:
        """Stand for a call of a collective."""

    for callback in (later, partial(later), partial(print, partial(later))):
        loop = asyncio.new_event_loop()
        handle = loop.call_later(60, callback, 1)
        assert not program(loop).is_over
        handle.cancel()
        assert program(loop).is_over
        loop.call_later(60, print)
        assert program(loop).is_over
        loop.close()


# Which of a rank's errors another rank is the cause of.


@pytest.mark.parametrize("kind", [RankFailed, RankDied, RankStalled])
def test_errors_that_another_rank_caused(kind: type[HorovodInternalError]) -> None:
    assert is_secondary(kind("rank 1 ...", 1))


@pytest.mark.parametrize("kind", [ValueError, RuntimeError, HorovodInternalError, Mismatch, HvdTimeout])
def test_errors_of_this_rank(kind: type[Exception]) -> None:
    assert not is_secondary(kind("..."))


@pytest.mark.parametrize(
    ("error", "secondary"),
    [(RankFailed("Rank 1 failed", 1), True), (RankDied("rank 1 died", 1), True), (ValueError("RankDied: x"), False)],
)
def test_error_in_a_future_of_torch(error: Exception, *, secondary: bool) -> None:
    """DDP's backward raised a RuntimeError with the text, and the rank that was released counted as the cause."""
    torch = pytest.importorskip("torch")
    base = torch.futures.Future()
    future = base.then(partial(raise_, error))
    base.set_result(None)
    with pytest.raises(RuntimeError) as caught:
        future.wait()
    assert type(caught.value) is RuntimeError
    assert is_secondary(caught.value) == secondary
    assert is_consequence(FailedRank(0, 1, tuple(f"RuntimeError: {caught.value}".splitlines()))) == secondary


def raise_(error: Exception, _base: object) -> None:
    raise error


def test_rank_that_timed_out_is_not_the_root_cause() -> None:
    """Rank 1 was stuck, so the others stalled; what it raised later is the error to fix."""
    errors = {0: RankStalled("rank 1 ...", 1), 1: ValueError("bad"), 2: RankStalled("rank 1 ...", 1)}
    raised_at = {0: 2.0, 1: 5.0, 2: 2.0}
    failures = [
        Failure(rank, type(error).__name__, str(error), (), raised_at[rank], is_secondary(error))
        for rank, error in errors.items()
    ]
    merged = merged_error(failures)
    assert (merged.rank, type(merged).__name__, str(merged)) == (1, "ValueError", "bad")
    assert merged.lines[-1] == "[0,2] released, because rank 1 failed"
