"""Cells on a real cluster of two ranks: output, results, failures, variables, interrupts."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hvdtest.cluster import PATIENCE_S, Outcome, drain, execute, wait_until_all_speak
from hvdtest.gate import Gate

from hvd_kernel.cluster import CellExecution, Session
from hvd_kernel.errors import ClusterError
from hvd_kernel.protocol.messages import Prompt, RankDone, RichOutput, TextDelta

pytestmark = [pytest.mark.jupyter, pytest.mark.mp, pytest.mark.cluster(2)]


def test_engine_id_is_mpi_rank_is_horovod_rank(session: Session) -> None:
    code = "from mpi4py import MPI\n(get_ipython().kernel.engine_id, MPI.COMM_WORLD.rank, hvd.rank(), rank, size)"
    outcome = execute(session, code)
    assert outcome.run.values() == {0: (0, 0, 0, 0, 2), 1: (1, 1, 1, 1, 2)}
    assert outcome.results() == {0: "(0, 0, 0, 0, 2)", 1: "(1, 1, 1, 1, 2)"}


def test_namespace_is_ready_and_persists(session: Session) -> None:
    assert execute(session, "mine = rank * 10 + local_rank; str(device)").run.values() == {0: "cpu", 1: "cpu"}
    assert execute(session, "mine").run.values() == {0: 0, 1: 11}


def test_users_names_are_never_overwritten(session: Session) -> None:
    execute(session, "rank = 'my own'")
    try:
        assert execute(session, "rank").run.values() == {0: "my own", 1: "my own"}
    finally:
        execute(session, "rank = hvd.rank()")


def test_status_names_every_process(session: Session) -> None:
    pids = execute(session, "import os; os.getpid()").run.values()
    assert [(s.rank, s.pid, s.alive, s.device) for s in session.status()] == [
        (0, pids[0], True, "cpu"),
        (1, pids[1], True, "cpu"),
    ]


def test_streams_are_separate_and_in_order(session: Session) -> None:
    code = "import sys\nfor i in range(50):\n    print(rank, i)\nprint('bad', rank, file=sys.stderr)"
    outcome = execute(session, code)
    assert outcome.text() == {r: "".join(f"{r} {i}\n" for i in range(50)) for r in (0, 1)}
    assert outcome.text("stderr") == {0: "bad 0\n", 1: "bad 1\n"}


def test_output_streams_while_the_cell_runs(session: Session, tmp_path: Path) -> None:
    with Gate(tmp_path) as gate:
        run = session.run(f"print('first', flush=True)\n{gate.hold}\nprint('second')")
        seen = Outcome(run)
        while "first\n" not in seen.text().values():  # a line and its end are written one after the other
            event = run.next(PATIENCE_S)
            assert event is not None, "a rank says nothing while it is held"
            seen.events.append(event)
    seen.events += drain(run).events
    assert seen.text() == dict.fromkeys((0, 1), "first\nsecond\n")


def test_deltas_are_linear_in_the_text(session: Session) -> None:
    lines = 5000
    outcome = execute(session, f"for i in range({lines}):\n    print(f'{{i:023d}}')")
    assert outcome.text() == dict.fromkeys((0, 1), "".join(f"{i:023d}\n" for i in range(lines)))
    assert sum(len(e.text) for e in outcome.events if isinstance(e, TextDelta)) == 2 * 24 * lines


def test_rank_done_is_the_last_event_of_each_rank(session: Session) -> None:
    events = execute(session, "print(rank); rank").events
    for rank in (0, 1):
        mine = [event for event in events if event.rank == rank]
        assert isinstance(mine[-1], RankDone)
        assert sum(isinstance(event, RankDone) for event in mine) == 1


def test_displays_and_figures_are_forwarded(session: Session) -> None:
    pytest.importorskip("matplotlib")
    code = (
        "from IPython.display import HTML, display\nimport matplotlib.pyplot as plt\n"
        "display(HTML(f'<b>{rank}</b>'))\nplt.plot([1, 2]); plt.show()"
    )
    outcome = execute(session, code)
    assert not outcome.failures
    for rank in (0, 1):
        # Not everything: while it makes its cache of fonts, matplotlib may say so on stderr.
        shown = [e.data for e in outcome.events if isinstance(e, RichOutput) and e.rank == rank]
        assert shown[0]["text/html"] == f"<b>{rank}</b>"
        assert "image/png" in shown[1]


def test_real_exception_with_its_traceback(session: Session) -> None:
    outcome = execute(session, "def inner():\n    raise ValueError(f'no {rank}')\ninner()", cell=42)
    assert {r: (f.ename, f.evalue, f.secondary) for r, f in outcome.failures.items()} == {
        0: ("ValueError", "no 0", False),
        1: ("ValueError", "no 1", False),
    }
    assert "In[42]" in "\n".join(outcome.failures[1].traceback)
    assert execute(session, "1").run.values() == {0: 1, 1: 1}


def test_syntax_error_is_a_failure_of_every_rank(session: Session) -> None:
    outcome = execute(session, "def f(:")
    assert {f.ename for f in outcome.failures.values()} == {"SyntaxError"}


def answered(session: Session, code: str, typed: dict[str, Any]) -> Outcome:
    """Run a cell on rank 1 that prompts once."""
    run = session.run(code, [1])
    prompt = next(event for event in iter(lambda: run.next(PATIENCE_S), None) if isinstance(event, Prompt))
    assert (prompt.rank, prompt.text, prompt.password) == (1, "name? ", False)
    session.ask("typed", [1], {"number": prompt.number, **typed}, urgent=True)
    return drain(run)


def test_prompt_of_a_rank_is_an_event_and_accepts_a_line(session: Session) -> None:
    assert answered(session, "input('name? ') * 2", {"text": "ab"}).run.values() == {1: "abab"}


def test_unanswered_input_fails_cleanly(session: Session) -> None:
    outcome = answered(session, "input('name? ')", {"refused": "nobody is here"})
    assert outcome.failures[1].ename == "StdinNotImplementedError"
    assert outcome.failures[1].evalue == "nobody is here"


def test_top_level_await(session: Session) -> None:
    assert execute(session, "import asyncio\nawait asyncio.sleep(0.05)\nrank + 1").run.values() == {0: 1, 1: 2}
    outcome = execute(session, "import asyncio\nawait asyncio.sleep(0.01)\n1/0")
    assert {f.ename for f in outcome.failures.values()} == {"ZeroDivisionError"}


def test_some_ranks_only(session: Session) -> None:
    outcome = execute(session, "print('here')", ranks=[1])
    assert outcome.run.ranks == (1,)
    assert outcome.text() == {1: "here\n"}
    with pytest.raises(ClusterError, match=r"no such rank: \[2\].*ranks 0 to 1"):
        session.run("1", ranks=[2])


def test_second_run_waits_for_the_first(session: Session) -> None:
    run = session.run("import time; time.sleep(600)")
    with pytest.raises(ClusterError, match="still run"):
        session.run("1")
    session.interrupt()
    drain(run)


@pytest.mark.parametrize(
    "code",
    [
        "import time; time.sleep(600)",
        "while True: pass",
        "import asyncio; await asyncio.sleep(600)",
        "import subprocess; subprocess.run(['sleep', '600'])",
    ],
)
def test_interrupt(session: Session, code: str) -> None:
    execute(session, "kept = [rank]")
    run = session.run(f"print('in', flush=True)\n{code}")
    wait_until_all_speak(run)
    session.interrupt()
    outcome = drain(run)
    assert {r: f.ename for r, f in outcome.failures.items()} == {0: "KeyboardInterrupt", 1: "KeyboardInterrupt"}
    after = execute(session, "print('said'); kept")
    assert after.text() == {0: "said\n", 1: "said\n"}
    assert after.run.values() == {0: [0], 1: [1]}


@pytest.mark.parametrize("code", ["import time; time.sleep(600)", "import asyncio; await asyncio.sleep(600)"])
def test_interrupt_before_the_cell_begins(session: Session, code: str) -> None:
    for _ in range(5):
        run = session.run(code)
        session.interrupt()
        assert {f.ename for f in drain(run).failures.values()} == {"KeyboardInterrupt"}
    assert execute(session, "rank").run.values() == {0: 0, 1: 1}


def test_interrupt_of_idle_ranks_does_nothing(session: Session) -> None:
    for _ in range(20):
        session.interrupt()
        assert execute(session, "rank").run.values() == {0: 0, 1: 1}


def test_push_and_pull_numpy(session: Session) -> None:
    sent = np.arange(1_000_000, dtype=np.float64)
    session.push({"a": sent, "f": lambda x: x + 1, "s": "text"})
    assert execute(session, "a += rank; f(1), s, a.flags.writeable").run.values() == dict.fromkeys(
        (0, 1), (2, "text", True)
    )
    got = session.pull(["a", "s"])
    for rank in (0, 1):
        np.testing.assert_array_equal(got[rank]["a"], sent + rank)
        got[rank]["a"] += 1  # it is ours
        assert got[rank]["s"] == "text"


def test_push_and_pull_torch(session: Session) -> None:
    torch = pytest.importorskip("torch")
    session.push({"t": torch.arange(4.0), "h": torch.ones(3, dtype=torch.bfloat16)}, ranks=[1])
    code = "w = torch.nn.Parameter(t * 2); y = (w * w).sum(); e = torch.empty(0, 3); n = t.view(2, 2).t()"
    assert not execute(session, f"import torch\n{code}", ranks=[1]).failures
    got = session.pull(["t", "h", "w", "y", "e", "n"], ranks=[1])[1]
    assert torch.equal(got["t"], torch.arange(4.0))
    assert got["h"].dtype is torch.bfloat16
    assert torch.equal(got["h"], torch.ones(3, dtype=torch.bfloat16))
    assert isinstance(got["w"], torch.nn.Parameter)
    assert got["w"].requires_grad
    assert torch.equal(got["w"], torch.arange(4.0) * 2)
    assert got["y"].item() == 56.0
    assert got["e"].shape == (0, 3)
    assert torch.equal(got["n"], torch.tensor([[0.0, 2.0], [1.0, 3.0]]))


def test_push_and_pull_name_the_failing_value(session: Session) -> None:
    execute(session, "only_here = 1", ranks=[0])
    with pytest.raises(ClusterError, match=r"rank 1.*'only_here'"):
        session.pull(["only_here"])
    with pytest.raises(ClusterError, match=r"`lock`.*cannot be sent"):
        session.push({"ok": 1, "lock": threading.Lock()})
    execute(session, "import threading; lock = threading.Lock()")
    with pytest.raises(ClusterError, match=r"rank 0.*lock"):
        session.pull(["lock"])


def test_metrics_while_the_main_thread_is_blocked(session: Session, tmp_path: Path) -> None:
    with Gate(tmp_path) as gate:
        run = session.run(gate.hold)
        seen = Outcome(run)
        while any(sum(s.rank == rank for s in seen.samples) < 5 for rank in (0, 1)):
            event = run.next(PATIENCE_S)
            assert event is not None, "a rank says nothing while it is blocked"
            seen.events.append(event)
    samples = seen.samples + drain(run).samples
    for rank in (0, 1):
        mine = [s for s in samples if s.rank == rank]
        assert [s.state for s in mine].index("idle") == len(mine) - 1
        assert all(s.rss > 10_000_000 and s.cpu_s > 0 for s in mine)
        assert [s.time for s in mine] == sorted(s.time for s in mine)
    assert set(session.metrics) == {0, 1}


def test_waiting_in_the_main_thread_can_be_interrupted(session: Session) -> None:
    run = session.run("import time; time.sleep(600)")
    timer = threading.Timer(0.3, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        _begin_and_drain(timer, run)
    session.interrupt()
    drain(run)
    assert execute(session, "rank").run.values() == {0: 0, 1: 1}


def _begin_and_drain(timer: threading.Timer, run: CellExecution) -> None:
    timer.start()
    drain(run)


def test_values_belong_to_the_latest_run(session: Session) -> None:
    first = execute(session, "1").run
    execute(session, "2")
    with pytest.raises(ClusterError, match="until the next one starts"):
        first.values()
