"""Conditions for replacing dead ranks within a cell, and the messages about it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from hvd_kernel.cluster.ranks.changes import ResizeOutcome, Respawned
from hvd_kernel.cluster.requests.cell_execution import CellExecution
from hvd_kernel.errors import ClusterError, UsageError
from hvd_kernel.magics.cell_changes import CellChanges
from hvd_kernel.processes.cluster_spec import ClusterSpec
from hvd_kernel.protocol.messages import WAITING_TYPE, Failure, MetricsSample, RankDone, RankLost, Waiting, to_content


class Session:
    """Of three ranks; ``rejoin`` ends when it is let."""

    n, spec = 3, ClusterSpec(3)

    def __init__(self, outcome: Respawned | ResizeOutcome | Exception | None) -> None:
        self.dead: tuple[int, ...] = ()
        self.generation = 4
        self.calls = 0
        self.asked: list[tuple[str, list[int], bool]] = []
        self.outcome = outcome
        self.let = threading.Event()
        self.ranks = self.executor = self.wire = self

    def soon(self, act: Callable[[], None]) -> None:
        act()

    def ask(self, handler: str, ranks: list[int], _content: dict[str, Any], *, urgent: bool) -> Any:
        self.asked.append((handler, list(ranks), urgent))
        return {rank: ({"choice": "off", "run": ""}, []) for rank in ranks}

    def rejoin(self, _run: CellExecution, prepare: Callable[[Respawned], None]) -> Respawned:
        self.calls += 1
        self.let.wait(10)
        if isinstance(self.outcome, Exception):
            raise self.outcome
        assert isinstance(self.outcome, Respawned)
        prepare(self.outcome)
        return self.outcome

    def resize_in_cell(
        self,
        _run: CellExecution,
        _n: int,
        *,
        restore: tuple[str, ...],
        prepare: Callable[[Respawned], None],
        progress: Callable[[str], None],
    ) -> ResizeOutcome | None:
        self.calls += 1
        progress(f"starting, {restore}")
        self.let.wait(10)
        if isinstance(self.outcome, Exception):
            raise self.outcome
        if isinstance(self.outcome, ResizeOutcome):
            prepare(self.outcome.respawned)
            self.n = self.outcome.n
            return self.outcome
        return None


class CellOutput:
    """A fake output that records what is shown."""

    def __init__(self) -> None:
        self.shown: list[str] = []

    def mark(self, kind: str, label: str) -> None:
        self.shown.append(f"{kind}: {label}")

    def notify(self, text: str) -> None:
        self.shown.append(text)

    def show_size(self, n: int, target: int | None = None, note: str = "") -> None:
        self.shown.append(f"size {n} -> {target}: {note}")


def begun(
    outcome: Respawned | ResizeOutcome | Exception | None,
) -> tuple[CellExecution, Session, CellOutput, CellChanges]:
    run = CellExecution((0, 1, 2), 1, lambda _force: {}, replaces=True)
    session, output = Session(outcome), CellOutput()
    return run, session, output, CellChanges(session, run, output)  # type: ignore[arg-type]


def die(run: CellExecution, session: Session, rank: int) -> None:
    session.dead = (*session.dead, rank)
    run.on_dead(rank, Failure(rank, "RankDied", "killed", (), 1.0))


def wait(run: CellExecution, rank: int, lost: int = 0) -> None:
    run.on_output(rank, WAITING_TYPE, to_content(Waiting(rank, "RankDied", 5, lost)))


def until_told(changes: CellChanges, session: Session) -> None:
    session.let.set()
    work = changes._work
    assert work is not None
    work.exception(10)
    changes.tick()


def test_rejoin_begins_once_all_living_ranks_wait() -> None:
    run, session, output, changes = begun(Respawned((1,), 0, ("model",)))
    changes.tick()
    die(run, session, 1)
    wait(run, 0, lost=3)
    changes.tick()
    assert session.calls == 0, "rank 2 still trains"
    wait(run, 2)
    for _ in range(3):
        changes.tick()
    until_told(changes, session)
    assert session.calls == 1
    assert session.asked == [("track", [0], True), ("track", [1], False)]
    assert output.shown == [
        "joined: rank 1 joined, generation 4",
        "rank 1 is fresh: it has model from rank 0; other variables are missing\n",
        "lost: 3 steps lost",
    ]
    assert [run.next(0) for _ in range(3)] == [
        RankLost(1, Failure(1, "RankDied", "killed", (), 1.0)),
        Waiting(0, "RankDied", 5, 3),
        Waiting(2, "RankDied", 5, 0),
    ]


def test_failed_rejoin_reports_the_reason() -> None:
    run, session, output, changes = begun(ClusterError("no memory"))
    die(run, session, 1)
    wait(run, 0)
    wait(run, 2)
    changes.tick()
    until_told(changes, session)
    assert output.shown == ["no memory\n"]
    run.give_up()  # as the session does
    changes.tick()
    assert session.calls == 1, "it is not tried again and again"


def test_death_without_waiters_ends_with_the_cell() -> None:
    run, session, _, changes = begun(Respawned((), 0))
    die(run, session, 1)
    for rank in (0, 2):
        run.on_reply(rank, {"hvd": {}}, [])
        run.on_silence(rank)
        assert not run.finished
    changes.tick()
    assert run.finished
    assert session.calls == 0
    ended = {event.rank: event.failure for event in iter(lambda: run.next(0), None) if isinstance(event, RankDone)}
    assert {rank: each and each.ename for rank, each in ended.items()} == {0: None, 1: "RankDied", 2: None}


def test_rank_that_ended_the_cell_does_not_rejoin_it() -> None:
    run, *_ = begun(Respawned((), 0))
    run.check_all_in()
    run.on_reply(2, {"hvd": {}}, [])
    run.on_silence(2)
    with pytest.raises(ClusterError, match="rank 2 has ended the cell"):
        run.check_all_in()


def test_several_ranks_have_ended_the_cell() -> None:
    run = CellExecution((0, 1, 2), 1, lambda _force: {}, replaces=True)
    for rank in (0, 1):
        run.on_reply(rank, {}, [])
        run.on_silence(rank)
    with pytest.raises(ClusterError, match=r"^ranks 0-1 have ended the cell, and do not come back to it$"):
        run.check_all_in()


def test_joined_and_left_ranks_are_marked_and_reported() -> None:
    run, session, output, changes = begun(ResizeOutcome(3, 5, (), {0: 0, 1: 1, 2: 2}, Respawned((3, 4), 0, ("model",))))
    told = changes.resize(5, ["model"])
    with pytest.raises(UsageError, match="to 5 already"):
        changes.resize(4)
    changes.tick()
    run.replaces = run.resizing = True  # as the session does
    for rank in run.ranks:
        wait(run, rank)
    changes.tick()
    assert session.calls == 1, "who waits, waits for the resize"
    until_told(changes, session)
    said = "ranks 0-2 stay\nranks 3-4 are fresh: they have model from rank 0; other variables are missing"
    assert told.result(0) == said
    assert output.shown == [
        "size 3 -> 5: at the next commit",
        "size 3 -> 5: starting, ('model',)",
        "joined: ranks 3-4 joined, generation 4",
        f"{said}\n",
        "size 5 -> None: ",
    ]
    session.outcome = ResizeOutcome(5, 2, (2, 3, 4), {0: 0, 1: 1})
    told = changes.resize(2)
    changes.tick()
    until_told(changes, session)
    assert told.result(0) == "ranks 0-1 stay, ranks 2-4 have left"
    assert output.shown[-3:] == [
        "left: ranks 2-4 left, generation 4",
        "ranks 0-1 stay, ranks 2-4 have left\n",
        "size 2 -> None: ",
    ]


def test_missing_new_ranks_are_reported_and_shown() -> None:
    _, session, output, changes = begun(ClusterError("no memory\nThe cell goes on with 3 ranks."))
    told = changes.resize(5)
    changes.tick()
    until_told(changes, session)
    assert str(told.exception(0)).startswith("no memory")
    assert output.shown[-2:] == ["no memory\nThe cell goes on with 3 ranks.\n", "size 3 -> None: no memory"]


HOW = {"restore": (), "force": False}


def test_resize_without_a_commit_happens_after_the_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, dict[str, Any]]] = []

    def resize(_session: Any, _samples: Any, n: int, say: Any, _progress: Any, **how: Any) -> None:
        asked.append((n, how))
        say("rank 0 stays")

    monkeypatch.setattr("hvd_kernel.magics.cell_changes.cluster_size.resize", resize)
    run, session, _, changes = begun(None)
    told = changes.resize(1)
    changes.tick()
    for rank in run.ranks:
        run.on_reply(rank, {"hvd": {}}, [])
        run.on_silence(rank)
    session.let.set()
    said: list[str] = []
    samples = {rank: MetricsSample(rank, 1.0, "idle") for rank in range(4)}
    changes.finalize(samples, said.append)
    assert (asked, said, told.result(0)) == ([(1, HOW)], ["rank 0 stays"], "rank 0 stays")
    assert sorted(samples) == [0, 1, 2], "there is no rank 3"
    with pytest.raises(UsageError, match="the cell has ended"):
        changes.resize(2)


def test_resize_of_an_aborted_cell_keeps_no_waiter(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any, **_more: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("hvd_kernel.magics.cell_changes.cluster_size.resize", interrupted)
    run, _, _, changes = begun(None)
    told = changes.resize(1)
    run.over.set_result(None)
    run.ranks = ()
    with pytest.raises(KeyboardInterrupt):
        changes.finalize({}, lambda _: None)
    assert "resize` again" in str(told.exception(0))
    *_, changes = begun(None)
    told = changes.resize(1)
    changes.close()
    assert "resize` again" in str(told.exception(0))
