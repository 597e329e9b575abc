"""Messages of a resize, values it would lose, and the new numbers of ranks: in files and at the hub."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hvd_kernel.cluster import controller, executor
from hvd_kernel.cluster.ranks.changes import ResizeOutcome, Respawned
from hvd_kernel.cluster.ranks.rank_table import RankStatus, RankTable
from hvd_kernel.magics import cluster_size
from hvd_kernel.magics.cluster_size import lost
from hvd_kernel.magics.messages import leaving_values, resize_outcome
from hvd_kernel.processes.cluster_spec import ClusterSpec


def table(*since: int, dead: set[int] = frozenset()) -> RankTable:  # type: ignore[assignment]
    """Return a table of ranks that joined in these generations."""
    ranks = RankTable(len(since), "here")
    ranks.members = {r: RankStatus(r, 100 + r, "here", alive=True, device="", since=g) for r, g in enumerate(since)}
    ranks.here, ranks.registered, ranks.dead = ranks.all, ranks.all - dead, set(dead)
    return ranks


@pytest.mark.parametrize(
    ("ranks", "n", "drop", "leave", "numbers"),
    [
        (table(0, 0, 0, 0), 2, set(), {2, 3}, {0: 0, 1: 1}),
        (table(0, 0, 0, 0), 2, {0, 3}, {0, 3}, {1: 0, 2: 1}),
        (table(2, 0, 1, 0), 3, set(), {0}, {1: 0, 2: 1, 3: 2}),
        (table(1, 0, 2), 2, set(), {2}, {0: 0, 1: 1}),
        (table(0, 0, 0, 0, dead={1}), 3, set(), {1}, {0: 0, 2: 1, 3: 2}),
        (table(0, 0, 0, 0, dead={1}), 4, set(), set(), {0: 0, 2: 2, 3: 3}),
        (table(0, 0, 0, 0, dead={0}), 3, {3}, {3}, {1: 1, 2: 2}),
        (table(0, 0, 0, 0, dead={0}), 2, {3}, {0, 3}, {1: 0, 2: 1}),
        (table(1, 0), 4, set(), set(), {0: 0, 1: 1}),
    ],
)
def test_leaving_ranks_and_new_numbers(
    ranks: RankTable, n: int, drop: set[int], leave: set[int], numbers: dict[int, int]
) -> None:
    assert ranks.leavers(n, drop) == leave
    assert ranks.resize(n, leave) == numbers
    assert {rank: who.pid - 100 for rank, who in ranks.members.items() if rank not in ranks.dead} == {
        now: before for before, now in numbers.items()
    }
    assert ranks.dead == set(range(n)) - set(numbers.values())
    assert ranks.apart
    assert [who.rank for who in ranks.status({})] == list(range(n))


def test_replacement_keeps_an_identity_and_new_ranks_get_one() -> None:
    """By identities the ranks recognise each other after a rendezvous: process sets are restored by them."""
    ranks = RankTable(3, "here")
    for rank in range(3):
        ranks.introduce(rank, {"pid": 100 + rank, "host": "here", "device": "cpu"})

    def come(*joining: int) -> list[int]:
        ranks.dead |= {*joining}
        ranks.join({rank: 200 + rank for rank in joining})
        ranks.admit(dict.fromkeys(joining, "cpu"), joining)
        return [who.identity for who in ranks.status({})]

    assert come(1) == [0, 1, 2]
    ranks.resize(2, {0})
    assert come() == [1, 2]
    ranks.resize(3, ())
    assert come(2) == [1, 2, 3]
    ranks.resize(2, {2})
    ranks.resize(3, ())
    assert come(0, 2) == [1, 2, 4], "rank 0 has been replaced, the third is new"


GIVEN = Respawned((4, 5), 0, ("model",))


@pytest.mark.parametrize(
    ("done", "text"),
    [
        (ResizeOutcome(4, 4, (), {0: 0, 1: 1, 2: 2, 3: 3}), "there are 4 ranks already\n"),
        (
            ResizeOutcome(4, 6, (), {0: 0, 1: 1, 2: 2, 3: 3}, GIVEN),
            "ranks 0-3 stay\nranks 4-5 are fresh: they have model from rank 0; other variables are missing\n",
        ),
        (ResizeOutcome(4, 2, (2, 3), {0: 0, 1: 1}), "ranks 0-1 stay, ranks 2-3 have left\n"),
        (ResizeOutcome(4, 3, (0,), {1: 0, 2: 1, 3: 2}), "ranks 0-2 stay (before 1-3), rank 0 has left\n"),
    ],
)
def test_messages_of_the_change(done: ResizeOutcome, text: str) -> None:
    assert resize_outcome(done) == text


class Interruptible:
    """A fake session of four ranks, whose resize is interrupted and leaves ``n`` ranks."""

    spec, dead = ClusterSpec(4), ()

    def __init__(self, leaves: int, said: list[str]) -> None:
        self.n, self._leaves, self._said = 4, leaves, said
        self.ranks = table(0, 0, 0, 0)

    def ask(self, _handler: str, ranks: list[int], *_: Any, **__: Any) -> dict[int, Any]:
        return {rank: ({"rows": {"x": {"digest": str(rank)}}}, []) for rank in ranks}

    def resize(self, *_: Any, **__: Any) -> None:
        self._said.append("begun")
        self.n = self._leaves
        raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("n", "leaves", "before", "text"),
    [
        (6, 4, [], "the resize from 4 to 6 ranks was interrupted and undone: ranks 0-3 keep their variables"),
        (
            2,
            2,
            [leaving_values({2, 3}, ["x"])],
            "the resize from 4 to 2 ranks was interrupted after ranks had left or joined: there are ranks 0-1 now",
        ),
    ],
)
def test_interrupted_resize_reports_its_outcome(n: int, leaves: int, before: list[str], text: str) -> None:
    said: list[str] = []
    session: Any = Interruptible(leaves, said)
    with pytest.raises(KeyboardInterrupt) as interrupted:
        cluster_size.resize(session, {}, n, said.append, said.append)
    assert str(interrupted.value) == text
    assert said == [*before, "begun"], "values are named before their ranks leave"


def test_loss_differs_from_another_value_on_leaving_ranks() -> None:
    one, two, three = ({"digest": each} for each in "abc")
    leaving = {2: {"shard": one, "x": two, "same": one}, 3: {"x": one, "same": one}}
    staying = [{"x": three, "same": one}, {"x": one, "same": three, "more": one}]
    assert lost(leaving, staying) == (["shard"], ["x"])
    assert lost({}, staying) == ([], [])


def test_files_follow_the_numbers(tmp_path: Path) -> None:
    ipython = tmp_path / "ipython"
    (ipython / "logs").mkdir(parents=True)
    for rank in range(4):
        (ipython / f"stack-{rank}").write_text(f"{rank}")
        for stream in ("stdout", "index"):
            (ipython / "logs" / f"rank-{rank}.{stream}").write_text(f"{rank}{stream}")
    (ipython / "profile").write_text("untouched")
    executor.rename_files(tmp_path, {1: 0, 3: 1, 2: 2})
    found = {path.name: path.read_text() for path in ipython.rglob("*") if path.is_file()}
    assert found == {
        "profile": "untouched",
        "left-stack-0": "0",
        "stack-0": "1",
        "stack-1": "3",
        "stack-2": "2",
        **{f"{name}.{stream}": f"{before}{stream}" for stream in ("stdout", "index") for name, before in LOGS.items()},
    }


LOGS = {"left-rank-0": 0, "rank-0": 1, "rank-1": 3, "rank-2": 2}


@dataclass
class Hub:
    """A fake of the used parts of ipyparallel's hub."""

    engines: dict[int, Any] = field(default_factory=dict)
    ids: set[int] = field(default_factory=set)
    by_ident: dict[bytes, int] = field(default_factory=dict)
    hearts: dict[bytes, int] = field(default_factory=dict)
    queues: dict[int, Any] = field(default_factory=dict)
    tasks: dict[int, Any] = field(default_factory=dict)
    completed: dict[int, Any] = field(default_factory=dict)
    expect_stopped_hearts: deque[bytes] = field(default_factory=deque)
    notifier: str = "notifier"
    sent: list[tuple[str, int, str]] = field(default_factory=list)

    @property
    def session(self) -> Any:
        return SimpleNamespace(send=lambda _to, kind, content: self.sent.append((kind, content["id"], content["uuid"])))


def test_hub_renumbers_survivors_and_drops_removed_ranks() -> None:
    hub = Hub()
    for eid, uuid in enumerate("ABCD"):
        hub.engines[eid] = SimpleNamespace(id=eid, uuid=uuid, ident=uuid.encode())
        hub.ids.add(eid)
        hub.by_ident[uuid.encode()] = hub.hearts[uuid.encode()] = eid
    controller._move(hub, {"B": 0, "C": 2, "D": 1})
    assert {eid: each.uuid for eid, each in hub.engines.items()} == {0: "B", 1: "D", 2: "C"}
    assert hub.ids == {0, 1, 2}
    assert hub.by_ident == hub.hearts == {b"B": 0, b"C": 2, b"D": 1}
    assert list(hub.expect_stopped_hearts) == [b"A"]
    gone, come = "unregistration_notification", "registration_notification"
    assert hub.sent == [(gone, 0, "A"), (gone, 1, "B"), (gone, 3, "D"), (come, 0, "B"), (come, 1, "D")]
