"""A cell in elastic.run whose cluster grows and shrinks under it: it goes on with the ranks that there are."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hvdtest.cluster import Traces, drain, execute, living
from hvdtest.kernel import Kernel

from hvd_kernel.cluster import Run, Session
from hvd_kernel.processes.cluster_spec import ClusterSpec
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
def own() -> Iterator[Session]:
    """A cluster of two ranks, which leaves nothing; it has another size at the end."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HVD_SPARES", "0")
        session = Session.start(ClusterSpec(2))
        yield session
    traces = Traces.of(session)
    session.stop()
    traces.wait_none_left()


@pytest.fixture
def aside() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as pool:
        yield pool


def pids(session: Session) -> list[int]:
    return [status.pid for status in session.status()]


def begin(session: Session, folder: Path, last: int) -> Run:
    """Begin a training and return when all ranks are in it."""
    run = session.run(TRAIN.format(folder=str(folder), until=last), cell=3)
    missing = set(run.ranks)
    while missing:
        event = run.next(100)
        assert event is not None
        missing -= {event.rank} if isinstance(event, InElastic) else set()
    return run


@pytest.mark.nightly
def test_a_cell_grows_and_shrinks_at_its_commits(own: Session, tmp_path: Path, aside: ThreadPoolExecutor) -> None:
    execute(own, "import hvd_kernel\nkept = 'k'\nhvd_kernel.keep('kept')")
    before = pids(own)
    run = begin(own, tmp_path, last=1)
    grown = own.resize(4)
    assert (grown.n, grown.left, grown.numbers, grown.given.ranks) == (4, (), {0: 0, 1: 1}, (2, 3))
    assert pids(own)[:2] == before
    middle = pids(own)
    assert own.resize(3).left == (3,)
    assert own.resize(1).left == (1, 2)
    outcome = drain(run)
    assert outcome.failures == {}
    assert run.values() == {0: ([2, 4, 3, 1], 1, True, "k")}
    assert [event.rank for event in outcome.events if isinstance(event, RankJoined)] == [2, 3]
    assert [event.rank for event in outcome.events if isinstance(event, RankLeft)] == [3, 1, 2]
    assert not living(set(middle[1:]))
    assert {f"{what}-{pid}" for what in ("end", "exit") for pid in middle[1:]} <= {p.name for p in tmp_path.iterdir()}
    assert execute(own, "hvd.size(), size, rank, kept").run.values() == {0: (1, 1, 0, "k")}
    assert own.resize(2).given.ranks == (1,)
    assert execute(own, "hvd.size(), rank, kept").run.values() == {r: (2, r, "k") for r in (0, 1)}


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
def test_b8_a_cell_in_elastic_run_grows_and_shrinks_while_it_runs(kernel: Kernel, tmp_path: Path) -> None:
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
