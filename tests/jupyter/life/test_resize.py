"""Resizes of a running cluster: survivors keep their process and variables, and get the right number."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hvdtest.cluster import drain, execute, living, processes_below, until, wait_until_all_speak
from hvdtest.kernel import Kernel

from hvd_kernel.cluster import Session
from hvd_kernel.cluster.ranks import events
from hvd_kernel.magics.messages import leaving_values
from hvd_kernel.protocol import rank_log
from hvd_kernel.worker.inspect.definitions import NOT_REPLAYED

pytestmark = [pytest.mark.jupyter, pytest.mark.mp]
EVERYTHING = (
    "import os\nimport numpy as np\nfrom hvd_kernel.core import ops\n"
    "total = ops.allreduce(np.array([rank + 1]), name='whole', op=ops.Sum).item()\n"
    "(get_ipython().kernel.engine_id, hvd.rank(), hvd.local_rank(), rank, local_rank, hvd.size(), size, total)"
)


def pids(session: Session) -> list[int]:
    return [status.pid for status in session.status()]


def assert_whole(session: Session, n: int) -> None:
    """Engine id, rank, Horovod's rank and the names of cells are one number on all; a sum over all is right."""
    found = execute(session, EVERYTHING).run.values()
    assert found == {r: (r, r, r, r, r, n, n, n * (n + 1) // 2) for r in range(n)}
    assert (session.n, session.spec.n, session.dead) == (n, n, ())
    assert execute(session, "os.getpid()").run.values() == dict(enumerate(pids(session)))


@pytest.mark.cluster(2)
def test_b8_cell_with_another_np_resizes_survivors_keep_state(kernel: Kernel) -> None:
    kernel.run("%%hvdrun\nimport os, hvd_kernel\nborn, model = (rank, os.getpid()), [7.0]\nhvd_kernel.keep('model')")
    grown = kernel.run("%%hvdrun -np 3\nprint(globals().get('born', ('none',))[0], model, hvd.size())", timeout=120)
    assert grown.text() == (
        "ranks 0-1 stay\nrank 2 is fresh: it has model from rank 0; other variables are missing\n"
        "[0] 0 [7.0] 3\n[1] 1 [7.0] 3\n[2] none [7.0] 3\n"
    )
    shrunk = kernel.run("%hvd resize 2")
    assert shrunk.text() == "ranks 0-1 stay, rank 2 has left\n"
    assert kernel.run("%%hvdrun\nborn == (rank, os.getpid()), hvd.size(), size").shown == ["[0-1] (True, 2, 2)"]


DEFINITIONS = """%%hvdrun
import collections.abc, json as js, os
from math import pi, tau
try:
    import no_such_module
except ImportError:
    from textwrap import dedent
from dataclasses import dataclass
counter = [0]
def count(x, *, step: int = 2) -> "int":
    counter[0] += step
    return x + step
@dataclass
class Point:
    x: int
    def norm(self):
        return abs(self.x)
class Child(Point):
    pass
def rebound(): return 1
rebound = 5
twice = lambda x: 2 * x
count(1)
"""
USE = """%%hvdrun
import inspect
counter = [10]
str((js.dumps([1]), pi < tau, dedent(" a"), count(1), counter, Child(-3).norm(), isinstance(Child(1), Point),
 collections.abc.Sized.__name__, 'rebound' in globals(), inspect.getsource(count).splitlines()[0], count.__module__))"""


@pytest.mark.cluster(2)
def test_new_ranks_have_the_definitions_of_earlier_cells(kernel: Kernel) -> None:
    kernel.run(DEFINITIONS)
    kernel.run("%%hvdrun\nimport hvd_kernel, torch\nkept = [Child(-7), torch.ones(2)]\nhvd_kernel.keep('kept')")
    kernel.run("%%hvdrun\nbase = 3\ndef needs(x, y=base): return x + y\ndef count(x, step=4):\n    return x + step")
    kernel.run("%%hvdrun\ndef later(): return 1\n1 / 0\ndef never(): return 2", allow_error=True)
    grown = kernel.run("%hvd resize 4", timeout=120).text()
    lines = grown.splitlines()
    assert lines[:2] == ["ranks 0-1 stay", lines[1]]
    assert lines[1].startswith("ranks 2-3 are fresh: ")
    assert lines[2:] == [
        "`needs` could not be restored: NameError: name 'base' is not defined",
        f"`twice` could not be restored: {NOT_REPLAYED}",
    ]
    used = kernel.run(USE, timeout=60).shown
    old, new = used[0].splitlines()
    values = "('[1]', True, 'a', 5, [10], 3, True, 'Sized', {}, 'def count(x, step=4):', '__main__')"
    assert (old, new) == (f"[0-1] {values.format(True)!r}", f"[2-3] {values.format(False)!r}")
    assert kernel.run("%%hvdrun --ranks 2\nlater(), 'never' in globals()").shown == ["[2] (1, False)"]
    own = "isinstance(kept[0], Child), kept[0].norm(), kept[1].tolist()"
    assert kernel.run(f"%%hvdrun\n{own}").shown == ["[0-3] (True, 7, [1.0, 1.0])"]


def test_b2_an_interrupt_while_ranks_are_added_is_undone(own: Session) -> None:
    before = pids(own)

    def press(_text: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        own.resize(4, progress=press)
    assert (own.n, own.dead, pids(own)) == (2, (), before)
    assert_whole(own, 2)
    assert own.resize(3).respawned.ranks == (2,)
    assert_whole(own, 3)


@pytest.mark.nightly
def test_survivors_keep_their_order_after_a_forced_respawn(own: Session) -> None:
    own.respawn([0], force=True)
    own.resize(3)
    before = pids(own)
    assert own.resize(2).numbers == {0: 0, 1: 1}
    assert pids(own) == before[:2]
    assert_whole(own, 2)


@pytest.mark.nightly
@pytest.mark.cluster(0)
def test_values_that_a_resize_would_lose_need_force(kernel: Kernel) -> None:
    kernel.run("%%hvdrun -np 4\nx = rank\nsame = 1\nif rank > 1: shard = [rank]", timeout=120)
    refused = kernel.run("%hvd resize 2", allow_error=True)
    assert refused.error == (
        "UsageError: ranks 2-3 would leave, and no other rank has `shard`: `%hvdpull shard --ranks 2-3` brings it "
        "here, --force drops it, --drop chooses other ranks"
    )
    cell = kernel.run("%%hvdrun -np 3\n1")
    first = leaving_values({3}, ["shard", "x"])
    assert cell.text().startswith(f"{first}\nranks 0-2 stay, rank 3 has left\n")
    assert kernel.run("%hvd resize --drop 0,1").text() == (
        f"{leaving_values({0, 1}, ['x'])}\nrank 0 stays (before 2), ranks 0-1 have left\n"
    )
    assert kernel.run("%%hvdrun\nshard, x, rank, size").shown == ["[0] ([2], 2, 0, 1)"]
    for line, said in (
        ("%hvd resize", "the number of ranks is missing: write %hvd resize 6, or --drop 0,3"),
        ("%hvd resize some", "'some' is not a number of ranks: write 1 or more, as in %hvd resize 6"),
        ("%hvd resize 2 -np 3", "2 and -np 3 are two numbers of ranks: keep one of them"),
    ):
        assert kernel.run(line, allow_error=True).error == f"UsageError: %hvd resize: {said}"
    assert kernel.run("%hvd resize 1").text() == "there is 1 rank already\n"
    forced = kernel.run("%hvd resize 2 --restore shard", timeout=120).text()
    assert forced.endswith("rank 0 stays\nrank 1 is fresh: it has shard from rank 0; other variables are missing\n")
    kernel.run("%%hvdrun --ranks 1\nmine = 1")
    assert kernel.run("%hvd resize 1 --force").text() == (
        f"{leaving_values({1}, ['mine'])}\nrank 0 stays, rank 1 has left\n"
    )


@pytest.mark.nightly
def test_processes_are_renumbered_and_clients_see_it(own: Session, tmp_path: Path) -> None:
    client = own.client()
    execute(own, "x = rank")
    before = pids(own)
    assert own.resize(4).respawned.ranks == (2, 3)
    assert pids(own)[:2] == before
    assert_whole(own, 4)
    until(lambda: client.ids == [0, 1, 2, 3])
    assert client[:].apply_sync(os.getpid) == pids(own)
    said = f"import atexit, pathlib\nx = rank\natexit.register(pathlib.Path({str(tmp_path)!r}, f'left-{{rank}}').touch)"
    execute(own, f"{said}\nprint('said by', rank)", cell=7)
    before = pids(own)
    execute(own, "hvd.shutdown(); hvd.init(process_sets='dynamic')")
    execute(own, "pair, gone = hvd.add_process_set([1, 2]), hvd.add_process_set([0, 1])")
    assert own.resize(2, [0, 3]).numbers == {1: 0, 2: 1}
    assert pids(own) == before[1:3]
    assert execute(own, "pair.ranks, pair.process_set_id is None, gone.process_set_id").run.values() == dict.fromkeys(
        (0, 1), ([0, 1], False, None)
    )
    lost = execute(own, "hvd.allreduce(__import__('torch').ones(1), process_set=gone)").failures
    assert {rank: (each.ename, "0" in each.evalue) for rank, each in lost.items()} == dict.fromkeys(
        (0, 1), ("ValueError", True)
    )
    assert not living({before[0], before[3]})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["left-0", "left-3"], "exit handlers have run"
    assert_whole(own, 2)
    assert execute(own, "x").run.values() == {0: 1, 1: 2}
    logs = rank_log.folder(str(own.folder / "ipython"))
    assert [rank_log.excerpt(logs, rank, "stdout", 7) for rank in (0, 1)] == ["said by 1\n", "said by 2\n"]
    until(lambda: client.ids == [0, 1])
    assert client[:].apply_sync(os.getpid) == pids(own)


@pytest.mark.nightly
def test_renumbered_ranks_are_interrupted_and_explained(own: Session) -> None:
    own.resize(3)
    own.resize(2, [0])
    run = own.run("print('in', rank, flush=True)\n__import__('time').sleep(600)")
    wait_until_all_speak(run)
    own.interrupt([1])
    own.interrupt([0])
    assert {r: each.ename for r, each in drain(run).failures.items()} == dict.fromkeys((0, 1), "KeyboardInterrupt")
    os.kill(pids(own)[1], signal.SIGKILL)
    until(lambda: own.dead == (1,))
    until(lambda: own.status()[1].why == "killed (SIGKILL)")
    assert own.respawn().ranks == (1,)
    assert_whole(own, 2)
    assert own.resize(1).left == (1,), "rank 0 is older, whatever happens"
    assert_whole(own, 1)


def at(session: Session, kind: type[events.Action], act: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Call a function at the first action of a kind during a resize."""
    left, plain = [act], session.executor._carry_out[kind]

    def carry_out(action: events.Action) -> None:
        if left:
            left.pop()()
        plain(action)

    monkeypatch.setitem(session.executor._carry_out, kind, carry_out)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("n", "kind"),
    [
        (4, events.AwaitCell),
        (2, events.AwaitCell),
        (4, events.Send),
        (2, events.Send),
        (4, events.Renumber),
        (2, events.Renumber),
        (4, events.Greet),
        (4, events.FormCommunicator),
        (2, events.FormCommunicator),
    ],
)
def test_rank_that_dies_during_a_resize_is_replaced(
    own: Session, n: int, kind: type[events.Action], monkeypatch: pytest.MonkeyPatch
) -> None:
    own.resize(3)
    execute(own, "import hvd_kernel\nkept = 'k'\nhvd_kernel.keep('kept')")
    before = pids(own)
    at(own, kind, lambda: os.kill(before[1], signal.SIGKILL), monkeypatch)
    own.resize(n)
    assert not living({before[1]})
    assert pids(own)[0] == before[0]
    assert_whole(own, n)
    assert execute(own, "kept").run.values() == dict.fromkeys(range(n), "k")


@pytest.mark.nightly
def test_new_rank_that_dies_is_replaced(own: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    known = processes_below(own.supervisor)

    def kill() -> None:
        fresh = [who.pid for who in own.ranks.arrivals.values()]
        assert fresh
        assert not known & set(fresh)
        os.kill(fresh[0], signal.SIGKILL)

    at(own, events.Greet, kill, monkeypatch)
    assert own.resize(4).respawned.ranks == (2, 3)
    assert_whole(own, 4)


@pytest.mark.nightly
def test_many_resizes_leave_no_process_and_are_fast(own: Session) -> None:
    took = []
    for n in (3, 2, 4, 1, 2):
        began = time.monotonic()
        own.resize(n)
        took.append(time.monotonic() - began)
        assert_whole(own, n)
    ranks = set(pids(own))
    assert len(processes_below(own.supervisor)) == len(ranks) + 1, "mpiexec and the ranks"
