"""A cell in elastic.run whose cluster is resized: it continues with the current ranks."""

from __future__ import annotations

import os
import queue
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hvdtest.cluster import drain, execute, living
from hvdtest.kernel import Kernel

from hvd_kernel.cluster import CellExecution, Session
from hvd_kernel.cluster.ranks import events
from hvd_kernel.cluster.requests.cell_rejoin import CellRejoin
from hvd_kernel.errors import ClusterError
from hvd_kernel.protocol.messages import InElastic, RankJoined, RankLeft

pytestmark = [pytest.mark.jupyter, pytest.mark.mp]

TRAIN = """
import atexit, os, pathlib, signal, torch
folder = pathlib.Path({folder!r})
atexit.register((folder / f'exit-{{os.getpid()}}').touch)
state = hvd.elastic.ObjectState(step=0, sizes=[])
@hvd.elastic.run
def train(state):
    try:
        while not state.sizes or state.sizes[-1] != {until}:
            there = int(hvd.allreduce(torch.ones(1), op=hvd.Sum, name="one").item())
            state.sizes = state.sizes + [there] * (state.sizes[-1:] != [there])
            state.step += 1
            state.commit()
        return state.sizes, hvd.size(), hvd.rank() == rank, globals().get('kept')
    finally:
        (folder / f'end-{{os.getpid()}}').touch()
train(state)
"""
"""It ends when it has had a step with so many ranks."""


@pytest.fixture
def aside() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as pool:
        yield pool


def pids(session: Session) -> list[int]:
    return [status.pid for status in session.status()]


def begin(session: Session, folder: Path, last: int) -> CellExecution:
    """Begin a training and return when all ranks are in it."""
    run = session.run(TRAIN.format(folder=str(folder), until=last), cell=3)
    missing = set(run.ranks)
    while missing:
        event = run.next(100)
        assert event is not None
        missing -= {event.rank} if isinstance(event, InElastic) else set()
    return run


@pytest.mark.nightly
def test_a_cell_grows_and_shrinks_at_its_commits(own: Session, tmp_path: Path) -> None:
    execute(own, "import hvd_kernel\nkept = 'k'\nhvd_kernel.keep('kept')")
    before = pids(own)
    run = begin(own, tmp_path, last=1)
    grown = own.resize(4)
    assert (grown.n, grown.left, grown.numbers, grown.respawned.ranks) == (4, (), {0: 0, 1: 1}, (2, 3))
    assert pids(own)[:2] == before
    middle = pids(own)
    assert own.resize(3).left == (3,)
    assert own.resize(1).left == (1, 2)
    outcome = drain(run)
    assert outcome.failures == {}
    assert run.values() == {0: ([2, 4, 3, 1], 1, True, "k")}
    assert [event.rank for event in outcome.events if isinstance(event, RankJoined)] == [2, 3]
    left = [event.rank for event in outcome.events if isinstance(event, RankLeft)]
    assert (left[0], sorted(left)) == (3, [1, 2, 3])
    assert not living(set(middle[1:]))
    assert {f"{what}-{pid}" for what in ("end", "exit") for pid in middle[1:]} <= {p.name for p in tmp_path.iterdir()}
    assert execute(own, "hvd.size(), size, rank, kept").run.values() == {0: (1, 1, 0, "k")}
    assert own.resize(2).respawned.ranks == (1,)
    assert execute(own, "hvd.size(), rank, kept").run.values() == {r: (2, r, "k") for r in (0, 1)}


@pytest.mark.nightly
def test_non_elastic_cell_is_resized_when_it_ends(own: Session, tmp_path: Path, aside: ThreadPoolExecutor) -> None:
    gate = tmp_path / "gate"
    said: queue.SimpleQueue[str] = queue.SimpleQueue()
    run = own.run(f"import os, time\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.01)\n(rank, size)")
    resized = aside.submit(own.resize, 3, progress=said.put)
    assert said.get(timeout=100) == (
        "the cell is not in elastic.run: there will be 3 ranks when it comes to it, or when it ends"
    )
    with pytest.raises(ClusterError, match="being resized already"):
        own.resize(4)
    gate.touch()
    assert drain(run).results() == {0: "(0, 2)", 1: "(1, 2)"}
    assert resized.result(100).respawned.ranks == (2,)
    assert execute(own, "hvd.size(), rank").run.values() == {r: (3, r) for r in range(3)}


@pytest.mark.nightly
@pytest.mark.parametrize(("n", "victim"), [(3, 1), (1, 1), (3, 0)])
def test_rank_dead_before_the_commit_is_replaced_in_the_cell(
    own: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n: int, victim: int
) -> None:
    """This holds without ``--respawn auto``: the rank dies as soon as all ranks know of the change."""
    run = begin(own, tmp_path, last=n)
    before, announce = pids(own), CellRejoin._announce

    def announced(self: CellRejoin, wanted: int) -> bool:
        elastic = announce(self, wanted)
        os.kill(before[victim], signal.SIGKILL)
        return elastic

    monkeypatch.setattr(CellRejoin, "_announce", announced)
    resized = own.resize(n)
    assert not run.replaces
    assert resized.n == n
    outcome = drain(run)
    assert outcome.failures == {}
    values = run.values()
    assert {rank: value[1:3] for rank, value in values.items()} == dict.fromkeys(range(n), (n, True))
    assert all(value[0][-1] == n for value in values.values())
    assert pids(own)[1 - victim : 2 - victim] == [before[1 - victim]][: n - (1 - victim)]
    assert execute(own, "hvd.size(), rank").run.values() == {r: (n, r) for r in range(n)}


@pytest.mark.nightly
def test_cell_continues_without_ranks_that_do_not_start(
    own: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = begin(own, tmp_path, last=3)
    call, tried = own.executor.call, list[int]()

    def refuse(make: Any, *what: Any, **more: Any) -> Any:
        if make is events.ResizeRequested:
            tried.append(what[0])
            if len(tried) == 1:
                call(make, *what, **more | {"restore": ()})
                raise ClusterError("rank 2 not there after 60 s.")
        return call(make, *what, **more)

    monkeypatch.setattr(own.executor, "call", refuse)
    with pytest.raises(ClusterError, match=r"rank 2 not there after 60 s[.]\nThe cell goes on with 2 ranks[.]"):
        own.resize(3)
    assert tried == [3, 2]
    assert own.resize(3).respawned.ranks == (2,)
    assert {rank: value[:2] for rank, value in (drain(run), run.values())[1].items()} == dict.fromkeys(
        range(3), ([2, 3], 3)
    )


CELL = """%%hvdrun
import pathlib, torch
state = hvd.elastic.ObjectState(step=0, sizes=[])
@hvd.elastic.run
def train(state):
    pathlib.Path({begun!r}).touch()
    while not state.sizes or state.sizes[-1] != {last}:
        there = int(hvd.allreduce(torch.ones(1), op=hvd.Sum, name="one").item())
        state.sizes = state.sizes + [there] * (state.sizes[-1:] != [there])
        state.step += 1
        hvd.log(at=state.step)
        state.commit()
    return state.sizes, hvd.size(), hvd.rank() == rank
train(state)"""
THREAD = """import os, threading, time, hvd_kernel
said = []
def resize():
    while not os.path.exists({begun!r}):
        time.sleep(0.01)
    for n in {sizes}:
        said.append(hvd_kernel.resize(n))
thread = threading.Thread(target=resize)
thread.start()"""
NOTHING = "its variables are missing: run the cells that made them again, or hvd.broadcast_object them"


@pytest.mark.cluster(2)
def test_b8_cell_in_elastic_run_grows_and_shrinks(kernel: Kernel, tmp_path: Path) -> None:
    begun = str(tmp_path / "begun")
    kernel.run("%%hvdrun\nimport torch\nborn = rank")
    kernel.run(THREAD.format(begun=begun, sizes=(3, 2)))
    outcome = kernel.run(CELL.format(begun=begun, last=2).replace("sizes[-1] != 2", "sizes != [2, 3, 2]"), timeout=120)
    assert outcome.shown[-1] == "[0-1] ([2, 3, 2], 2, True)"
    [digest] = [each["metadata"]["hvd"] for each in outcome.contents("display_data") if "hvd" in each["metadata"]]
    assert [(kind, label.partition(",")[0]) for _, kind, label in digest["marks"]] == [
        ("joined", "rank 2 joined"),
        ("left", "rank 2 left"),
    ]
    assert digest["ranks"] == [0, 1, 2]
    said = kernel.run("thread.join(); print(*said, sep='\\n')").text()
    assert said == f"ranks 0-1 stay\nrank 2 is fresh: {NOTHING}\nranks 0-1 stay, rank 2 has left\n"
    assert kernel.run("%%hvdrun\nborn == rank, hvd.size(), size").shown == ["[0-1] (True, 2, 2)"]


@pytest.mark.nightly
@pytest.mark.cluster(2)
def test_panel_marks_joined_and_left_ranks_and_undone_steps(kernel: Kernel, tmp_path: Path) -> None:
    kernel.run("%%hvdrun\nimport pathlib, torch")
    kernel.run("%hvd resize 3", timeout=120)
    kernel.run("%hvd resize 2")
    once = str(tmp_path / "once")
    cell = f"""%%hvdrun
once = pathlib.Path({once!r})
model = torch.nn.Linear(1, 1)
opt = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), named_parameters=model.named_parameters())
state = hvd.elastic.TorchState(model, opt, step=0)
@hvd.elastic.run
def train(state):
    while state.step < 9:
        if state.step == 6 and hvd.rank() == 1 and not once.exists():
            once.touch()
            raise hvd.elastic.HorovodInternalError('once')
        opt.zero_grad()
        model(torch.ones(1, 1)).sum().backward()
        opt.step()
        state.step += 1
        if state.step % 4 == 0:
            state.commit()
    return state.step
train(state)"""
    for labels in (["rank 2 joined", "rank 2 left", "2 steps lost"], []):
        outcome = kernel.run(cell)
        assert outcome.shown[-1] == "[0-1] 9"
        [digest] = [each["metadata"]["hvd"] for each in outcome.contents("display_data") if "hvd" in each["metadata"]]
        assert [label.partition(",")[0] for _, _, label in digest["marks"]] == labels
