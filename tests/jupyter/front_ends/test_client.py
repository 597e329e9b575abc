"""A plain ipyparallel.Client beside the cells: its views, results and magics behave as in ipyparallel's own tests."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ipyparallel as ipp
import numpy as np
import pytest
from hvdtest.cluster import drain, execute, until
from hvdtest.gate import Gate
from hvdtest.kernel import Kernel
from ipyparallel import error

from hvd_kernel.cluster import Session
from hvd_kernel.errors import ClusterError
from hvd_kernel.magics.messages import NO_RANKS

N = 3
SUM = "import numpy as np\nfloat(hvd.allreduce(__import__('torch').ones(1), op=hvd.Sum))"
GET_S = 60.0
WHO = "def who():\n    return rank, size"  # a function of this file would look for names in this file
pytestmark = [pytest.mark.jupyter, pytest.mark.mp, pytest.mark.timeout(240), pytest.mark.cluster(N)]


@pytest.fixture
def rc(session: Session) -> Iterator[Any]:
    execute(session, WHO)
    client = session.client()
    yield client
    client.close()


def raised(call: Any, *args: Any) -> dict[int, str]:
    """Engine id -> name of the error that a call raised there."""
    with pytest.raises((error.CompositeError, error.RemoteError)) as caught:
        call(*args)
    one = caught.value
    each = [(info["engine_id"], name) for name, _, _, info in one.elist] if hasattr(one, "elist") else []
    return dict(each) if each else {one.engine_info["engine_id"]: one.ename}


def test_views_and_maps_beside_cells(session: Session, rc: Any) -> None:
    assert type(rc) is ipp.Client
    assert rc.ids == [0, 1, 2]
    assert rc[:].apply_sync(ipp.Reference("who")) == [(0, 3), (1, 3), (2, 3)]
    rc[:].push({"a": 5, "b": [1, 2]}, block=True)
    assert execute(session, "a, b").run.values() == dict.fromkeys(range(N), (5, [1, 2]))
    execute(session, "mine = rank * 10")
    assert rc[:].pull("mine", block=True) == [0, 10, 20]
    assert rc[1]["mine"] == 10
    assert rc.load_balanced_view().map_sync(lambda x: x * x, range(20)) == [x * x for x in range(20)]
    assert raised(rc[:].apply_sync, lambda: 1 / 0) == dict.fromkeys(range(N), "ZeroDivisionError")
    assert execute(session, SUM).run.values() == dict.fromkeys(range(N), 3.0)


@pytest.mark.nightly
def test_client_magic_returns_a_client_and_enables_px(kernel: Kernel) -> None:
    kernel.run("%hvd start -np 3")
    assert kernel.run("%hvd client").text() == "rc is an ipyparallel.Client of ranks [0, 1, 2]; %px and %%px use it\n"
    assert kernel.run("rc[:].apply_sync(lambda: rank)").shown == ["[0, 1, 2]"]
    assert kernel.run("%px c = rank + 1").text() == ""
    assert kernel.run("%%hvdrun\nc").shown == ["[0] 1\n[1] 2\n[2] 3"]
    assert kernel.run("rc[1].execute('print(c)', block=True).stdout").shown == ["'2\\n'"]
    assert kernel.run("import hvd_kernel\nmine = hvd_kernel.client()\nmine is rc, mine.ids").shown == [
        "(False, [0, 1, 2])"
    ]
    assert "is not a name of a variable" in kernel.run("%hvd client 1x", allow_error=True).error
    kernel.run("rc.close()\nmine.close()")


@pytest.mark.nightly
def test_px_is_interrupted_while_it_runs(kernel: Kernel, tmp_path: Path) -> None:
    kernel.run("%hvd start -np 3")
    kernel.run("%hvd client")
    with Gate(tmp_path) as gate:
        started = kernel.start(f"%%px\nprint('in', flush=True)\n{gate.arrive}\n{gate.hold}")
        gate.wait_for(0, 1, 2)
        kernel.press()
        outcome = kernel.finish(started, allow_error=True)
    assert "Sending signal SIGINT to engines" in outcome.text() + outcome.text("stderr")
    assert kernel.run("%%hvdrun\nrank").shown == ["[0] 0\n[1] 1\n[2] 2"]
    kernel.run("rc.close()")


@pytest.mark.nightly
def test_client_without_ranks_names_the_remedy(kernel: Kernel) -> None:
    kernel.run("%hvd stop")
    said = kernel.run("import hvd_kernel\nhvd_kernel.client()", allow_error=True).error
    assert NO_RANKS in said
    assert NO_RANKS in kernel.run("%hvd client", allow_error=True).error


@pytest.mark.nightly
def test_push_pull_of_values_arrays_and_functions(rc: Any) -> None:
    view = rc[:]
    data = np.arange(1000.0).reshape(10, 100)
    view.push({"data": data, "f": lambda x: x + 1}, block=True)
    for there in view.pull("data", block=True):
        np.testing.assert_array_equal(there, data)
    assert view.execute("r = f(3)", block=True)
    assert view["r"] == [4] * N
    assert raised(rc[0].pull, "nothing", None, True) == {0: "NameError"}
    view["q"] = 7
    assert rc[2].pull(("q", "r"), block=True) == [7, 4]
    view.update({"u": 1})
    assert view.get("u") == [1] * N


@pytest.mark.nightly
def test_scatter_gather_map_and_references(rc: Any) -> None:
    view = rc[:]
    view.scatter("part", list(range(16)), block=True)
    assert view.gather("part", block=True) == list(range(16))
    assert [len(part) for part in view["part"]] == [6, 5, 5]
    view.scatter("array", np.arange(64), block=True)
    np.testing.assert_array_equal(view.gather("array", block=True), np.arange(64))
    assert view.map_sync(lambda x: x**2, range(7)) == [x**2 for x in range(7)]
    assert view.map(lambda x, y: x + y, [1, 2], [3, 4]).get(GET_S) == [4, 6]
    view.execute("base = rank * 100", block=True)
    assert view.apply_sync(lambda x: x + 1, ipp.Reference("base")) == [1, 101, 201]
    assert set(raised(view.apply_sync, lambda x: x, ipp.Reference("none")).values()) == {"NameError"}


@pytest.mark.nightly
def test_load_balanced_views(rc: Any) -> None:
    view = rc.load_balanced_view()
    assert view.map_sync(lambda x: x, []) == []
    assert sorted(view.map(lambda x: -x, range(30), ordered=False)) == list(range(-29, 1))
    assert list(view.imap(lambda x: x + 1, range(10))) == list(range(1, 11))
    chosen = rc.load_balanced_view([1])
    assert [chosen.apply_sync(ipp.Reference("who")) for _ in range(4)] == [(1, 3)] * 4
    assert set(raised(view.apply_sync, lambda: {}["x"]).values()) == {"KeyError"}
    first = view.apply_async(lambda: 1)
    with view.temp_flags(after=[first]):
        assert view.apply_async(lambda: 2).get(GET_S) == 2


@pytest.mark.nightly
def test_async_results(rc: Any, tmp_path: Path) -> None:
    with Gate(tmp_path) as gate:
        rc[:].execute(f"def wait():\n    {gate.arrive}\n    {gate.hold}\n    return rank", block=True)
        result = rc[:].apply_async(ipp.Reference("wait"))
        gate.wait_for(0, 1, 2)
        assert not result.ready()
        assert len(result) == N
        with pytest.raises(TimeoutError):
            result.get(0.01)
    assert result.get(GET_S) == [0, 1, 2]
    assert result.successful()
    assert result.engine_id == [0, 1, 2]
    assert result.get_dict() == {0: 0, 1: 1, 2: 2}
    assert list(result) == [0, 1, 2]
    assert [each["status"] for each in result.metadata] == ["ok"] * N
    failed = rc[1].apply_async(lambda: {}["key"])
    assert raised(failed.get, GET_S) == {1: "KeyError"}
    assert not failed.successful()
    mixed = rc[:].apply_async(lambda x: 1 // x, ipp.Reference("rank"))
    values = mixed.get(GET_S, return_exceptions=True)
    assert [getattr(value, "ename", value) for value in values] == ["ZeroDivisionError", 1, 0]


@pytest.mark.nightly
def test_output_of_tasks_reaches_the_client_complete(session: Session, rc: Any) -> None:
    talk = "import sys\nfor i in range(50_000):\n    print(rank, i)\nprint('bad', file=sys.stderr)\nrank * 2"
    result = rc[:].execute(talk, silent=False)
    assert result.wait(GET_S)
    assert result.wait_for_output(GET_S)
    assert result.stdout == ["".join(f"{rank} {i}\n" for i in range(50_000)) for rank in range(N)]
    assert result.stderr == ["bad\n"] * N
    assert [each.execute_result["data"]["text/plain"] for each in result.get(GET_S)] == ["0", "2", "4"]
    shown = rc[0].execute("from IPython.display import HTML, display\ndisplay(HTML('<b>x</b>'))", silent=False)
    assert shown.wait_for_output(GET_S)
    assert shown.outputs[0]["data"]["text/html"] == "<b>x</b>"
    quiet = execute(session, "rank")
    assert quiet.text() == dict.fromkeys(range(N), "")
    printed = rc[:].apply_async(lambda: print("from a function"))
    assert printed.wait_for_output(GET_S)
    assert printed.stdout == ["from a function\n"] * N


@pytest.mark.nightly
def test_a_cell_and_tasks_do_not_disturb_each_other(session: Session, rc: Any, tmp_path: Path) -> None:
    with Gate(tmp_path) as gate:
        run = session.run(f"{gate.arrive}\n{gate.hold}\nrank + 100")
        gate.wait_for(0, 1, 2)
        result = rc[:].apply_async(ipp.Reference("who"))
        failing = rc[:].execute("1/0")
        rc.send_signal(signal.SIGINT, block=True)  # the cell is none of the client's
        assert not result.ready()
    cell = drain(run)
    assert (cell.failures, run.values()) == ({}, {0: 100, 1: 101, 2: 102})
    assert result.get(GET_S) == [(0, 3), (1, 3), (2, 3)]
    assert set(raised(failing.get, GET_S).values()) == {"ZeroDivisionError"}
    assert run.values() == {0: 100, 1: 101, 2: 102}, "a task's result is not the cell's"
    after = execute(session, "_ = 1\nrank")
    assert (after.failures, after.run.values()) == ({}, {0: 0, 1: 1, 2: 2})


@pytest.mark.nightly
def test_interrupts_reach_the_running_task(session: Session, rc: Any, tmp_path: Path) -> None:
    with Gate(tmp_path) as gate:
        rc[:].execute(f"def wait():\n    {gate.arrive}\n    {gate.hold}", block=True)
        for send in (signal.SIGINT, "SIGINT", 2):
            for file in tmp_path.iterdir():
                file.unlink()
            applied = rc[:].apply_async(ipp.Reference("wait"))
            gate.wait_for(0, 1, 2)
            rc.send_signal(send, block=True)
            assert raised(applied.get, GET_S) == dict.fromkeys(range(N), "KeyboardInterrupt")
        for file in tmp_path.iterdir():
            file.unlink()
        executed = rc[:].execute(f"import asyncio\n{gate.arrive}\nawait asyncio.sleep(3600)")
        gate.wait_for(0, 1, 2)
        rc.send_signal(signal.SIGINT, block=True)
        assert raised(executed.get, GET_S) == dict.fromkeys(range(N), "KeyboardInterrupt")
    assert execute(session, SUM).run.values() == dict.fromkeys(range(N), 3.0)


LATE = """
def late():
    import numpy as np, torch
    hvd.allreduce(torch.ones(1))
    if rank == 1:
        raise ValueError('late')
    hvd.allreduce(torch.ones(1))
def total():
    import torch
    return float(hvd.allreduce(torch.ones(1), op=hvd.Sum))
"""


@pytest.mark.nightly
def test_collectives_in_tasks_and_a_failing_rank(session: Session, rc: Any) -> None:
    execute(session, LATE)
    total, late = ipp.Reference("total"), ipp.Reference("late")
    assert rc[:].apply_sync(total) == [3.0] * N
    failed = {0: "RankFailed", 1: "ValueError", 2: "RankFailed"}
    assert raised(rc[:].apply_sync, late) == failed
    assert execute(session, SUM).run.values() == dict.fromkeys(range(N), 3.0), "a cell mends what a task has broken"
    assert raised(rc[:].apply_sync, late) == failed
    until(lambda: not session._repair.needed, "communication was made anew, without a cell")
    assert rc[:].apply_sync(total) == [3.0] * N


@pytest.mark.nightly
def test_abort_removes_queued_tasks_but_no_cells(session: Session, rc: Any, tmp_path: Path) -> None:
    with Gate(tmp_path) as gate:
        rc[:].execute(f"def wait():\n    {gate.arrive}\n    {gate.hold}", block=True)
        first = rc[:].apply_async(ipp.Reference("wait"))
        gate.wait_for(0, 1, 2)
        second = rc[1].apply_async(lambda: 2)
        run = session.run("rank")
        second.abort()
        rc.abort([], block=True)  # which would be: everything
    with pytest.raises(error.TaskAborted):
        second.get(GET_S)
    assert first.get(GET_S) == [None] * N
    cell = drain(run)
    assert (cell.failures, run.values()) == ({}, {0: 0, 1: 1, 2: 2})


@pytest.mark.nightly
def test_dead_rank_ends_its_tasks_and_is_replaced(session: Session, tmp_path: Path) -> None:
    execute(session, WHO)
    rc = session.client()
    with Gate(tmp_path) as gate:
        rc[:].execute(f"def wait():\n    {gate.arrive}\n    {gate.hold}\n    return rank", block=True)
        lost = rc[:].apply_async(ipp.Reference("wait"))
        gate.wait_for(0, 1, 2)
        os.kill(session.status()[1].pid, signal.SIGKILL)
        until(lambda: rc.ids == [0, 2], "the client hears of the death")
    values = lost.get(GET_S, return_exceptions=True)
    assert [getattr(value, "ename", value) for value in values] == [0, "EngineError", 2]
    assert rc[:].apply_sync(ipp.Reference("who")) == [(0, 3), (2, 3)]
    session.respawn()
    until(lambda: rc.ids == [0, 1, 2], "the client hears of the replacement")
    mine = ipp.Reference("rank")
    assert rc[:].apply_sync(abs, mine) == [0, 1, 2]
    assert rc.load_balanced_view([1]).apply_sync(abs, mine) == 1
    rc.close()


@pytest.mark.nightly
def test_client_calls_that_would_end_ranks_are_refused(session: Session, rc: Any) -> None:
    with pytest.raises(error.RemoteError, match="`%hvd stop` ends all of them"):
        rc.shutdown(block=True)
    with pytest.raises(error.RemoteError, match="Bad Message Type"):
        rc.shutdown(targets=[], hub=True, block=True)
    for ask in (rc.queue_status, rc.hub_history):
        with pytest.raises(error.RemoteError, match="Bad Message Type"):
            ask()
    execute(session, "mine = 1")
    rc.clear(block=True)
    assert execute(session, "'mine' in globals(), rank, hvd.size()").run.values() == {
        r: (False, r, 3) for r in range(N)
    }


@pytest.mark.nightly
def test_end_of_the_cluster_ends_waits_of_clients(tmp_path: Path) -> None:
    from hvdtest.cluster import cluster

    with cluster(2) as session, Gate(tmp_path) as gate:
        rc = session.client()
        view = rc.load_balanced_view()
        rc[:].execute(f"def wait():\n    {gate.arrive}\n    {gate.hold}", block=True)
        waiting = [rc[:].apply_async(ipp.Reference("wait")), view.apply_async(abs, -1)]
        gate.wait_for(0, 1)
        session.stop()
        for each in waiting:
            assert set(raised_names(each)) == {"EngineError"}
        with pytest.raises(RuntimeError, match="closed"):
            rc[:].apply_async(abs, 1)
        with pytest.raises(ClusterError, match="stopped"):
            session.client()


def raised_names(result: Any) -> list[str]:
    found = result.get(GET_S, return_exceptions=True)
    return [each.ename for each in (found if isinstance(found, list) else [found])]
