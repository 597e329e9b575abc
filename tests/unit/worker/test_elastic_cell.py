"""A rank that waits in elastic.run for the notebook: the tasks of its main thread, and the undone steps."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from hvd_kernel.core import metrics, session
from hvd_kernel.elastic.membership import ENDED, membership
from hvd_kernel.errors import HvdTimeout, OutOfMemory, RankDied, RankFailed
from hvd_kernel.protocol import notebook
from hvd_kernel.protocol.messages import ELASTIC_TYPE, UNDONE_TYPE, WAITING_TYPE
from hvd_kernel.worker.elastic_cell import SILENT, CellRanks, Commits, ElasticCell

AUTO = {"replaces": True}


@pytest.fixture
def published() -> Iterator[list[tuple[str, dict[str, Any]]]]:
    yield []
    notebook.provide_membership(None)


@pytest.fixture
def cell(published: list[tuple[str, dict[str, Any]]], monkeypatch: pytest.MonkeyPatch) -> ElasticCell:
    monkeypatch.setattr(session, "setting", lambda _name: "0.2")
    made = ElasticCell(lambda: 3, lambda kind, content: published.append((kind, content)))
    notebook.provide_membership(lambda: CellRanks(made))
    return made


def test_waiting_rank_runs_its_task_in_its_own_thread(
    cell: ElasticCell, published: list[tuple[str, dict[str, Any]]]
) -> None:
    threads: list[str] = []

    def act() -> tuple[dict[str, Any], list[Any]]:
        threads.append(threading.current_thread().name)
        return {"done": True}, []

    def notebook() -> None:
        while not published:
            pass
        given.append(cell.run_in_main_thread(act).result(5))
        cell.end_wait("", 2, (1,))

    given: list[Any] = []
    other = threading.Thread(target=notebook)
    with cell.during(AUTO):
        other.start()
        cell.wait("RankDied: rank 1", 7, 2)
        other.join()
        assert (membership().root, membership().fresh) == (2, (1,))
    told = {"rank": 3, "reason": "RankDied: rank 1", "commits": 7, "lost": 2}
    assert published == [(WAITING_TYPE, told)]
    assert given == [({"done": True}, [])]
    assert threads == [threading.current_thread().name]


def test_wait_ends_with_an_error_without_the_notebook(
    cell: ElasticCell, published: list[tuple[str, dict[str, Any]]]
) -> None:
    with cell.during(AUTO):
        with pytest.raises(HvdTimeout, match=re.escape(SILENT.format(seconds=0.2))):
            cell.wait("", 0, 0)
        other = threading.Thread(target=lambda: (await_first(published), cell.end_wait("no memory", 0, ())))
        published.clear()
        other.start()
        with pytest.raises(RankDied, match="no memory"):
            cell.wait("", 0, 0)
        other.join()


def await_first(published: list[Any]) -> None:
    while not published:
        pass


def test_rank_that_does_not_wait_gets_no_task(cell: ElasticCell) -> None:
    assert "does not wait" in str(cell.run_in_main_thread(lambda: ({}, [])).exception())
    cell.end_wait("nobody hears it", None, ())


def test_death_is_recovered_only_if_the_notebook_replaces(cell: ElasticCell) -> None:
    died = RankDied("rank 1 has died", 1)
    with cell.during({}):
        assert not membership().can_recover_from(died)
        assert membership().can_recover_from(RankFailed("rank 1 failed"))
    with cell.during(AUTO):
        assert membership().can_recover_from(died)
        assert not membership().can_recover_from(RankDied(f"{ENDED} on rank 1", 1))
        assert not membership().can_recover_from(OutOfMemory("no memory"))


def test_change_of_ranks_reaches_one_elastic_run(
    cell: ElasticCell, published: list[tuple[str, dict[str, Any]]]
) -> None:
    heard: list[tuple[float, int]] = []

    def hear(when: float, change: int) -> None:
        heard.append((when, change))

    assert not cell.expect_change(7)
    cell.announce(1.0, 2)
    with cell.during({"run": 6}), cell.entered(hear, lambda: None):
        assert heard == []
        assert not cell.waits_for_notebook, "of the run before"
    with cell.during({"run": 7}):
        assert cell.waits_for_notebook
        with cell.entered(hear, lambda: None):
            assert heard == [(1.0, 2)]
            assert cell.expect_change(7)
            cell.announce(2.0, 1)
            assert heard == [(1.0, 2), (2.0, 1)]
            cell.expect_change(0)
            assert not cell.waits_for_notebook, "it has been called off"
    assert published == [(ELASTIC_TYPE, {"rank": 3})] * 2


def test_early_change_of_ranks_is_not_lost(cell: ElasticCell, published: list[tuple[str, dict[str, Any]]]) -> None:
    heard: list[tuple[float, int]] = [(1.0, 2)]

    def notebook() -> None:
        await_first(published)
        cell.run_in_main_thread(lambda: (goes_on.wait(10), []) and ({}, []))
        cell.end_wait("", 0, ())
        cell.expect_change(5)
        cell.announce(2.0, 1)
        goes_on.set()

    goes_on = threading.Event()
    other = threading.Thread(target=notebook)
    with cell.during({"run": 5}), cell.entered(lambda *told: heard.append(told), heard.clear):
        published.clear()
        cell.expect_change(5)
        other.start()
        cell.wait("", 0, 0)
        other.join()
        assert cell.waits_for_notebook
        assert heard == [(2.0, 1)]


def test_leaving_rank_ends_the_cell_like_sys_exit(
    cell: ElasticCell, published: list[tuple[str, dict[str, Any]]]
) -> None:
    cell.expect_change(1)
    other = threading.Thread(target=lambda: (await_first(published), cell.quit()))
    with cell.during({"run": 1}):
        other.start()
        with pytest.raises(SystemExit) as ended:
            cell.wait("", 0, 0)
        other.join()
        assert ended.value.code == 0
        assert not cell.waits_for_notebook


def test_undone_are_the_steps_since_the_last_commit_or_vote(monkeypatch: pytest.MonkeyPatch) -> None:
    step = 10
    monkeypatch.setattr(metrics, "snapshot", lambda: metrics.MetricsSnapshot(step, 0))
    commits = Commits()
    step = 13
    assert commits.lost(0) == 3
    commits.record(4)
    assert commits.lost(4) == 0
    step = 18
    assert commits.lost(4) == 5
    assert commits.lost(8) == 1, "four steps were voted for"


def test_undone_steps_are_reported_once(cell: ElasticCell, published: list[tuple[str, dict[str, Any]]]) -> None:
    first = ElasticCell(lambda: 0, lambda kind, content: published.append((kind, content)))
    for each in (cell, first):
        with each.during({}):
            each.report_undone(0)
            each.report_undone(3)
    assert published == [(UNDONE_TYPE, {"steps": 3})]
