"""Ranks that die in every way: the cell reports rank and cause, the others live on, and no process is left."""

from __future__ import annotations

import json
import os
import re
import signal
import time
import uuid
from pathlib import Path

import pytest
from hvdtest.cluster import Traces, drain, living, processes_below, until
from hvdtest.gate import Gate
from hvdtest.kernel import Kernel, Outcome, tagged

from hvd_kernel.cluster import Session
from hvd_kernel.diagnosis import recorder
from hvd_kernel.processes.cluster_spec import ClusterSpec

pytestmark = [
    pytest.mark.jupyter,
    pytest.mark.mp,
    pytest.mark.timeout(400),
    pytest.mark.cluster(2, setup=("%%hvdrun\nkept = rank + 40",)),
]

MEMORY = Path("/sys/fs/cgroup/memory")

IN_A_COLLECTIVE = "import torch\nhvd.allreduce(torch.ones(4), name='last')"


def dies(kernel: Kernel, code: str) -> Outcome:
    """Run code with which rank 1 dies while rank 0 waits for it; rank 0 must live on, with its variables."""
    outcome = kernel.run(f"%%hvdrun\n{code}\n{IN_A_COLLECTIVE}", allow_error=True)
    assert outcome.reply["ename"] == "RankDied", outcome.error
    assert outcome.error.startswith("RankDied on rank 1\n"), outcome.error
    assert outcome.error.endswith("[0] released, because rank 1 failed"), outcome.error
    kernel.run("%hvdpull kept --ranks 0")
    assert kernel.run("kept").shown == ["40"]
    return outcome


def why(outcome: Outcome) -> str:
    found = re.fullmatch(
        r"rank 1 \(process \d+ on \S+\) died: (.*); the variables of the other ranks are intact\..*",
        outcome.reply["evalue"],
    )
    assert found, outcome.reply["evalue"]
    return found[1]


def with_mpi(kernel: Kernel) -> None:
    """Have ranks that mpiexec has started: one that was respawned after an earlier test has no MPI."""
    kernel.run("%hvd restart", timeout=120)
    kernel.run("%%hvdrun\nkept = rank + 40")


SIGNALLED = {
    "null call": ("ctypes.CFUNCTYPE(None)(0)()", "segmentation fault (SIGSEGV)"),
    "null read": ("ctypes.string_at(0)", "segmentation fault (SIGSEGV)"),
    "abort": ("os.abort()", "aborted (SIGABRT)"),
    "illegal instruction": ("os.kill(os.getpid(), signal.SIGILL)", "illegal instruction (SIGILL)"),
}


@pytest.mark.parametrize(("call", "name"), SIGNALLED.values(), ids=SIGNALLED.keys())
def test_a7_crash_in_c_is_named_with_its_python_line(kernel: Kernel, call: str, name: str) -> None:
    if call == "ctypes.string_at(0)":  # Open MPI's handler prints the C functions
        with_mpi(kernel)
    outcome = dies(kernel, f"import ctypes, os, signal\ndef down():\n    {call}\nif rank == 1: down()")
    assert why(outcome) == f"{name} in a cell, line 3, in down()"
    lines = outcome.error.splitlines()
    title = lines.index("its Python stack, most recent call first:")
    frames = [line for line in lines[title:] if line.startswith("  a cell")]
    assert frames == ["  a cell, line 3, in down()", "  a cell, line 4"]
    assert len(lines) < 45
    if call == "ctypes.string_at(0)":
        native = lines[lines.index("in C, innermost first:") + 1 :]
        assert any("ffi_call" in line for line in native), outcome.error
        assert not any("_PyEval" in line for line in native), "the interpreter's own frames say nothing"


def test_a7_crash_is_the_cause_though_other_ranks_raise(kernel: Kernel) -> None:
    """The other ranks' error arrived first, because a death is detected later; the crash was one line without a stack."""
    code = "import ctypes, os, signal\nif rank == 1: os.kill(os.getpid(), signal.SIGSEGV)\nundefined_name"
    outcome = kernel.run(f"%%hvdrun\n{code}", allow_error=True)
    assert outcome.reply["ename"] == "RankDied", outcome.error
    assert why(outcome) == "segmentation fault (SIGSEGV) in a cell, line 2"
    lines = outcome.error.splitlines()
    assert lines[0] == "RankDied on rank 1"
    stack, meanwhile = lines.index("its Python stack, most recent call first:"), lines.index("NameError on rank 0")
    assert lines[stack + 1] == "  a cell, line 2"
    assert stack < meanwhile
    assert "----> 3 undefined_name" in lines[meanwhile:]
    assert lines[-1] == "NameError: name 'undefined_name' is not defined"


def test_a8_os_exit_0_is_reported_as_an_exit(kernel: Kernel) -> None:
    assert why(dies(kernel, "import os\nif rank == 1: os._exit(0)")) == "it exited with os._exit(0) in a cell, line 2"
    refused = kernel.run("%%hvdrun\n1", allow_error=True)
    assert "rank 1 (it exited with os._exit(0) in a cell, line 2) is dead" in refused.error


def test_a8_os_exit_3_leaves_the_other_ranks_alive(kernel: Kernel) -> None:
    assert why(dies(kernel, "import os\nif rank == 1: os._exit(3)")) == "it exited with os._exit(3) in a cell, line 2"


@pytest.mark.parametrize(
    "code", ["import sys; rank and sys.exit(3)", "rank and exit()", "if rank: raise SystemExit(3)"]
)
def test_a8_sys_exit_ends_the_cell_but_not_the_rank(kernel: Kernel, code: str) -> None:
    outcome = kernel.run(f"%%hvdrun\n{code}\n{IN_A_COLLECTIVE}", allow_error=True)
    assert outcome.reply["ename"] == "SystemExit"
    assert outcome.error.startswith("SystemExit on rank 1\n")
    assert outcome.error.endswith("[0] released, because rank 1 failed"), "treated as a failure, not as success"
    assert outcome.text("stderr") == "", "no advice how to leave IPython"
    assert kernel.run("%%hvdrun\nkept").shown == ["[0] 40\n[1] 41"]


def test_a1_killed_rank_is_reported_as_killed(kernel: Kernel) -> None:
    outcome = dies(kernel, "import os, signal\nif rank == 1: os.kill(os.getpid(), signal.SIGKILL)")
    assert why(outcome) == "killed (SIGKILL)"
    assert "stack" not in outcome.error


def test_a2_a_rank_killed_between_cells_is_explained_by_the_next(kernel: Kernel) -> None:
    kernel.run("%%hvdrun -o me\nimport os; os.getpid()")
    kernel.run("import os, signal; os.kill(me[1], signal.SIGKILL)")
    until(lambda: "dead" in kernel.run("%hvd status").text(), "the death is told")
    refused = kernel.run("%%hvdrun\nkept", allow_error=True)
    assert refused.reply["ename"] == "ClusterError"
    assert re.search(r"rank 1 \((killed \(SIGKILL\)|it ended for an unknown reason)\) is dead", refused.error)


def test_a2_terminated_rank_is_reported_with_its_signal(kernel: Kernel) -> None:
    said = why(dies(kernel, "import os, signal\nif rank == 1: os.kill(os.getpid(), signal.SIGTERM); signal.pause()"))
    assert said == "it was terminated (SIGTERM)"


@pytest.mark.nightly  # needs a memory cgroup
@pytest.mark.skipif(
    not os.access(MEMORY / "cgroup.procs", os.W_OK), reason="needs a memory cgroup (v1) that this user may make"
)
def test_a14_out_of_memory_is_named_with_limit_and_use(kernel: Kernel) -> None:
    """A limit of the cgroup, where Linux kills; RLIMIT_AS is no substitute, it only makes malloc fail (row A15)."""
    kernel.run("%%hvdrun -o me\nimport os; os.getpid()")
    pid = int(kernel.run("me[1]").shown[0])
    box = MEMORY / f"hvd-test-{uuid.uuid4().hex}"
    box.mkdir()
    try:
        (box / "memory.limit_in_bytes").write_text(str(600 << 20))
        (box / "cgroup.procs").write_text(str(pid))
        outcome = dies(kernel, "import time\nhoard = []\nwhile rank: hoard.append(b'x' * (8 << 20)); time.sleep(0.02)")
        found = re.fullmatch(r"out of memory \(cgroup limit 629 MB; it held (\d+) MB when last seen\)", why(outcome))
        assert found, outcome.reply["evalue"]
        assert 100 < int(found[1]) < 1500
    finally:
        until(lambda: not living({pid}), "nobody is in the box")
        box.rmdir()


@pytest.mark.nightly
def test_crash_or_exit_of_a_forked_child_is_not_its_ranks(kernel: Kernel) -> None:
    cell = """%%hvdrun
import os, signal
def in_child(act):
    pid = os.fork()
    if not pid: act()
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
in_child(lambda: os.kill(os.getpid(), signal.SIGSEGV)), in_child(lambda: os._exit(7))
"""
    assert kernel.run(cell).shown == ["[0-1] (-11, 7)"]
    said = why(dies(kernel, "import os, signal\nif rank == 1: os.kill(os.getpid(), signal.SIGKILL)"))
    assert said == "killed (SIGKILL)", "the child's crash and departure are not the rank's"


def test_a22_detached_processes_are_listed_and_end(kernel: Kernel) -> None:
    with_mpi(kernel)  # whose variables tell below which rank a process was started
    cell = (
        "%%hvdrun --ranks 1 -o stray\nimport subprocess\nsubprocess.Popen(['sleep', '600'], start_new_session=True).pid"
    )
    kernel.run(cell)
    pid = int(kernel.run("stray[1]").shown[0])
    double = "%%hvdrun --ranks 0\nimport subprocess\nsubprocess.run(['sh', '-c', 'setsid sleep 601 >/dev/null 2>&1 &'])"
    kernel.run(double)
    # A shell is on its way to be that.
    until(lambda: "  sleep 601  (rank 0)\n" in kernel.run("%hvd clean").text(), "sleep 601 runs")
    said = kernel.run("%hvd clean").text()
    assert "2 processes that cells have detached; `%hvd stop` ends them with the ranks:\n" in said, said
    assert f"  {pid}  sleep 600  (rank 1)\n" in said
    other = re.search(r"  (\d+)  sleep 601  \(rank 0\)\n", said)
    assert other, said
    strays = {pid, int(other[1])}
    assert living(strays) == strays, "listed, not ended: the ranks live"
    kernel.run("%hvd stop")
    assert not living(strays)
    assert "sleep 60" not in kernel.run("%hvd clean").text()


# What is left on the machine.


def traces_of(kernel: Kernel) -> Traces:
    """Everything of the kernel's cluster."""
    code = (
        "import json\nfrom hvdtest.cluster import Traces\n"
        "from hvd_kernel.magics import manager_of\nprint(json.dumps(Traces.of(manager_of(get_ipython()).session).as_dict()))"
    )
    return Traces(**{name: set(value) for name, value in json.loads(kernel.run(code).text()).items()})


@pytest.mark.timeout(600)
@pytest.mark.parametrize("turn", [0, 1, *(pytest.param(turn, marks=pytest.mark.nightly) for turn in range(2, 10))])
def test_r11_a17_kill_9_of_the_kernel_leaves_nothing(tmp_path: Path, turn: int) -> None:
    """While idle, and in a cell."""
    kernel = Kernel(tmp_path)
    kernel.__enter__()
    kernel.run("%%hvdrun -np 2\n1", timeout=120)
    traces = traces_of(kernel)
    if turn % 2:
        with Gate(tmp_path) as gate:
            held = "hvd.barrier() if rank else __import__('time').sleep(600)"
            kernel.start(f"%%hvdrun\n{gate.arrive}\n{held}")
            gate.wait_for(0, 1)
    kernel.client.stop_channels()
    os.kill(kernel.pid, signal.SIGKILL)
    traces.wait_none_left()
    kernel.manager.shutdown_kernel(now=True)
    assert not tagged(kernel.tag)


def test_a17_clean_ends_orphans_of_dead_kernels_only(kernel: Kernel, tmp_path: Path) -> None:
    """Only a stopped supervisor leaves orphans: their kernel is killed while it is stopped."""
    mine = traces_of(kernel)
    with Kernel(tmp_path / "living") as other:
        other.run("%%hvdrun -np 2\nkept = rank", timeout=120)
        theirs = traces_of(other)
        gone = Kernel(tmp_path / "gone")
        gone.__enter__()
        gone.run(
            "%%hvdrun -np 2\nimport subprocess\nsubprocess.Popen(['sleep', '602'], start_new_session=True).pid",
            timeout=120,
        )
        supervisor = int(
            gone.run(
                "from hvd_kernel.magics import manager_of\nmanager_of(get_ipython()).session.executor.launched._process.pid"
            ).shown[0]
        )
        orphans = traces_of(gone)
        os.kill(supervisor, signal.SIGSTOP)
        gone.client.stop_channels()
        gone.manager.shutdown_kernel(now=True)
        assert supervisor in living(orphans.processes)

        listed = kernel.run("%hvd clean --dry-run").text()
        assert "would end" in listed
        assert f"\n  {supervisor}  " in listed
        assert not {pid for pid in mine.processes | theirs.processes if f"\n  {pid}  " in listed}
        assert supervisor in living(orphans.processes), "only listed"
        doctor = kernel.run("%hvd doctor").text()
        assert re.search(rf"FIX leftovers .*process {supervisor}.*\n +-> %hvd clean\n", doctor), doctor

        with kernel.figures(leftovers__END_S=60.0):  # on a busy machine the end of a process may take long
            said = kernel.run("%hvd clean").text()
        orphans.wait_none_left()
        assert f"\n  {supervisor}  " in said
        assert not {pid for pid in mine.processes | theirs.processes if f"\n  {pid}  " in said}
        assert all(Path(place).exists() for place in mine.folders | theirs.folders if "/hvd-" in place)
        assert living(mine.processes) == mine.processes
        assert living(theirs.processes) == theirs.processes
        assert other.run("%%hvdrun\nkept").shown == ["[0] 0\n[1] 1"]
        assert kernel.run("%%hvdrun\nkept").shown == ["[0] 40\n[1] 41"]
        assert f"  {supervisor}  " not in kernel.run("%hvd clean").text()


@pytest.mark.parametrize("victim", ["supervisor", "mpiexec"])
def test_a18_a19_dead_launcher_is_named_and_leaves_nothing(victim: str) -> None:
    session = Session.start(ClusterSpec(2))
    try:
        supervisor = session.executor.launched._process.pid
        traces = Traces.of(session)
        run = session.run("import time; time.sleep(600)")
        mpiexec = next(
            pid for pid in processes_below(supervisor) if Path(f"/proc/{pid}/comm").read_text().strip() == "prterun"
        )
        os.kill(supervisor if victim == "supervisor" else mpiexec, signal.SIGKILL)
        failures = drain(run).failures
        said = {
            "supervisor": "the cluster's supervisor has ended, and its ranks with it",
            "mpiexec": "mpiexec, which holds the ranks, was killed (SIGKILL)",
        }[victim]
        assert {rank: f"died: {said}; " in each.evalue for rank, each in failures.items()} == {0: True, 1: True}, (
            failures
        )
        session.stop()
        traces.wait_none_left()
    finally:
        session.stop()


@pytest.mark.nightly
def test_a1_older_linux_reads_the_status_from_mpiexec(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before Linux 6.15 a pidfd does not tell how its process exited."""
    monkeypatch.setattr(recorder, "_GET_INFO", 0)
    session = Session.start(ClusterSpec(2))
    try:
        failures = drain(session.run("import os, signal\nif rank: os.kill(os.getpid(), signal.SIGKILL)")).failures
        assert "died: killed (SIGKILL); " in failures[1].evalue
    finally:
        session.stop()


@pytest.mark.nightly  # the silence lasts as long as one of another host may
def test_a10_rank_stopped_for_long_is_alive_and_continues(kernel: Kernel) -> None:
    kernel.run("%%hvdrun\nkept = rank + 40")
    pid = int(kernel.run("%hvd status").text().splitlines()[2].split()[2])
    os.kill(pid, signal.SIGSTOP)
    try:
        time.sleep(18)  # longer than ten seconds of missed heartbeats and the search for the cause of a death
        assert [row.split()[1] for row in kernel.run("%hvd status").text().splitlines()[1:]] == ["alive"] * 2
    finally:
        os.kill(pid, signal.SIGCONT)
    assert kernel.run("%%hvdrun\nkept").shown == ["[0] 40\n[1] 41"]
