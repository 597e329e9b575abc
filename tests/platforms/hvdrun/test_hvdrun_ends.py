"""hvdrun, through the real command: how ranks exit, the report, and that no process is left."""

from __future__ import annotations

import fcntl
import io
import os
import re
import signal
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from hvdtest.cluster import until
from hvdtest.hvdrun import EITHER, HVDRUN, NIGHTLY, RANK, gone, hvdrun, order, processes_with
from hvdtest.launch import clean_environment

from hvd_kernel.errors import ClusterError
from hvd_kernel.jobs.grace import GracePeriod
from hvd_kernel.launch import agents, line_output, monitor
from hvd_kernel.launch.agents import Agents
from hvd_kernel.launch.cancellation import cancelled_text
from hvd_kernel.launch.job_run import Job, launch
from hvd_kernel.launch.placement import Host

pytestmark = [pytest.mark.mp, pytest.mark.usefixtures("mark")]


@EITHER
@pytest.mark.parametrize(
    ("end", "status", "said"),
    [
        ("sys.exit(7)", 7, "rank 1 failed (exit status 7)"),
        ("os.kill(os.getpid(), 9)", 137, "rank 1 died: killed (SIGKILL)"),
        pytest.param("os.abort()", 134, "rank 1 died: aborted (SIGABRT)", marks=NIGHTLY),
        pytest.param("raise ValueError('my bug 7')", 1, "rank 1 failed (exit status 1)", marks=NIGHTLY),
    ],
)
def test_failed_rank_ends_the_others(mark: str, how: str, end: str, status: int, said: str) -> None:
    script = f"{RANK}import sys, time\nif rank == 1: {end}\ntime.sleep(300)"
    done = hvdrun("-np", "3", how, script=script)  # which waits for less than the others sleep
    assert done.returncode == status, done.stderr
    assert done.stderr.splitlines()[-1] == f"hvdrun: {said}; all ranks have ended."
    assert ("ValueError: my bug 7" in done.stderr) == ("bug" in end)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the ranks all the time they need to end on their own: after a traceback, and after the first failure."""
    for module, name in ((monitor, "_SETTLE_S"), (monitor, "_SEARCH_S"), (line_output, "_HOLD_S")):
        monkeypatch.setattr(module, name, 60.0)


@EITHER
def test_traceback_of_the_failing_rank_is_last_and_once(mark: str, how: str, patient: None) -> None:
    script = """
import numpy as np
from hvd_kernel.core import session, ops
session.init()
if session.rank() == 1:
    raise ValueError("my bug 7")
ops.allreduce(np.ones(3), name="x")
"""
    err = io.StringIO()
    job = Job([sys.executable, "-P", "-c", script], 3, use_mpi=how == "--mpi")
    assert launch(job, stdout=io.StringIO(), stderr=err).status == 1
    *before, last = err.getvalue().splitlines()
    assert last == "hvdrun: rank 1 failed (exit status 1); ranks 0,2 failed because of it; all ranks have ended."
    assert before[-1] == "[1]<stderr>:ValueError: my bug 7"
    begins = [number for number, line in enumerate(before) if line == "[1]<stderr>:Traceback (most recent call last):"]
    assert len(begins) == 1
    assert all(line.startswith("[1]<stderr>:") for line in before[begins[0] :])


@EITHER
def test_error_of_all_ranks_is_written_once(mark: str, how: str, patient: None) -> None:
    err = io.StringIO()
    job = Job([sys.executable, "-P", "-c", "import nothing_of_that_name"], 3, use_mpi=how == "--mpi")
    outcome = launch(job, stdout=io.StringIO(), stderr=err)
    assert outcome.codes == (1, 1, 1)
    assert err.getvalue().count("ModuleNotFoundError") == 1
    last = err.getvalue().splitlines()[-1]
    assert re.fullmatch(r"hvdrun: rank \d failed \(exit status 1\); ranks \d[,-]\d failed alike; .*", last), last


def test_an_equal_traceback_of_a_stopped_rank_is_written_once(
    mark: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = f"""{RANK}
import sys, time, traceback
from pathlib import Path
said = Path({str(tmp_path)!r}, "said")
while rank == 1 and not said.exists():
    time.sleep(0.01)
try:
    import nothing_of_that_name
except ImportError:
    if rank == 1:
        raise
    sys.stderr.write(traceback.format_exc())
    said.touch()
time.sleep(120)
"""
    monkeypatch.setattr(line_output, "_HOLD_S", 60.0)  # it may be slow to be ended, but it is ended
    err = io.StringIO()
    outcome = launch(Job([sys.executable, "-P", "-c", script], 2), stdout=io.StringIO(), stderr=err)
    assert outcome.codes == (-signal.SIGTERM, 1)
    assert err.getvalue().count("ModuleNotFoundError") == 1
    assert err.getvalue().splitlines()[-1] == "hvdrun: rank 1 failed (exit status 1); all ranks have ended."


@EITHER
def test_unresponsive_rank_is_killed_with_its_group(mark: str, how: str, tmp_path: Path) -> None:
    script = f"""{RANK}
import signal, subprocess, sys, time
from pathlib import Path
stubborn = Path({str(tmp_path)!r}, "stubborn")
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)"])
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)"], start_new_session=True)
if rank == 0:
    stubborn.touch()
while rank == 1 and not stubborn.exists():
    time.sleep(0.01)
if rank == 1:
    sys.exit(3)
time.sleep(120)
"""
    out, err = io.StringIO(), io.StringIO()
    job = Job(
        [sys.executable, "-P", "-c", script],
        2,
        env={"PYTHONWARNINGS": "ignore"},
        grace=GracePeriod(0.5, 0.5),
        use_mpi=how == "--mpi",
        timeout_s=60.0,  # half of what they sleep
    )
    outcome = launch(job, stdout=out, stderr=err)
    assert (outcome.codes, outcome.failed, outcome.status) == ((-9, 3), 1, 3)
    assert gone(mark, 0.0), processes_with(mark)


@EITHER
def test_stopped_rank_does_not_delay_the_end(mark: str, how: str, tmp_path: Path) -> None:
    script = f"""{RANK}
import signal, time
from pathlib import Path
pid = Path({str(tmp_path)!r}, "pid")
if rank == 0:
    pid.with_name("new").write_text(str(os.getpid()))
    pid.with_name("new").rename(pid)
    os.kill(os.getpid(), signal.SIGSTOP)
while not (pid.exists() and Path("/proc", pid.read_text(), "stat").read_text().rpartition(")")[2].split()[0] == "T"):
    time.sleep(0.01)
raise SystemExit(5)
"""
    done = hvdrun("-np", "2", how, script=script)
    assert done.returncode == 5


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=NIGHTLY), signal.SIGTERM, signal.SIGKILL])
def test_end_of_the_launcher_ends_all_processes(mark: str, number: int) -> None:
    script = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)"], start_new_session=True)
print(os.getpid(), child.pid)
time.sleep(120)
"""
    job = subprocess.Popen(
        [*HVDRUN, "-np", "2", sys.executable, "-P", "-c", script],
        env=clean_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert job.stdout is not None
    said = dict(job.stdout.readline().split(":") for _ in range(2))
    assert set(said) == {"[0]<stdout>", "[1]<stdout>"}
    assert "hvd_kernel.processes.agent" in "\n".join(processes_with(mark))
    for pid in (job.pid, *" ".join(said.values()).split()):  # the launcher, each rank and its child
        # The kernel shows no environment of a process that is just becoming another program.
        until(lambda pid=pid: f"({pid})" in "\n".join(processes_with(mark)), f"process {pid}")
    job.send_signal(number)
    assert job.wait(60) == (-9 if number == signal.SIGKILL else 128 + number)
    assert gone(mark, 30.0 if number == signal.SIGKILL else 0.0), processes_with(mark)
    report = "" if number == signal.SIGKILL else f"hvdrun: {cancelled_text(number)}\n"
    assert job.communicate()[1] == report


@EITHER
def test_a_second_ctrl_c_does_not_wait(mark: str, how: str) -> None:
    script = """
import signal, time
signal.signal(signal.SIGTERM, lambda *_: print("not yet"))
print("up")
while True:
    time.sleep(1)
"""
    job = subprocess.Popen(
        [*HVDRUN, "--grace-period", "1000", "-np", "1", how, sys.executable, "-P", "-c", script],
        env=clean_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert job.stdout is not None
    assert job.stdout.readline() == "[0]<stdout>:up\n"
    job.send_signal(signal.SIGINT)
    assert job.stdout.readline() == "[0]<stdout>:not yet\n"
    job.send_signal(signal.SIGINT)
    assert job.wait(60) == 130
    assert gone(mark)
    job.stdout.close()


def test_stdin_and_ctrl_c_on_a_terminal(mark: str) -> None:
    """Rank 0 reads the typed text; Ctrl-C reaches the launcher alone, which ends the job."""
    import pty

    def said(wanted: bytes) -> bytes:
        text = b""
        while wanted not in text:
            text += os.read(terminal, 4096)
        return text

    script = 'import os, time; os.environ["HOROVOD_RANK"] == "0" and print("got " + input()); time.sleep(120)'
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(sys.executable, [*HVDRUN, "-np", "2", sys.executable, "-P", "-c", script], clean_environment())
    os.write(terminal, b"typed\n")
    assert b"[0]<stdout>:got typed" in said(b"got typed\r\n")
    os.write(terminal, b"\x03")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 130
    os.close(terminal)
    assert gone(mark)


@EITHER
def test_missing_command(mark: str, how: str) -> None:
    done = hvdrun("-np", "2", how, "no-such-command-here")
    assert (done.returncode, done.stdout) == (1, "")
    said = r"hvdrun: rank \d cannot be started on localhost: No such file or directory: no-such-command-here\.\n"
    assert re.fullmatch(said, done.stderr), done.stderr


def test_ranks_that_start_too_late(mark: str) -> None:
    script = "print('waiting', flush=True); import time; time.sleep(60)"
    with pytest.raises(ClusterError, match="did not end in time"):
        launch(Job([sys.executable, "-P", "-c", script], 2, timeout_s=1.0), stdout=io.StringIO(), stderr=io.StringIO())


def test_silent_host_is_the_cause_of_the_survivors_failures(
    ssh: tuple[dict[str, str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that dies: ssh or srun notices that minutes later than the other ranks."""
    script = """
import os, signal
import numpy as np
from hvd_kernel.core import session, ops
session.init()
ops.allreduce(np.ones(3), name="x")
if session.rank() == 1:
    os.kill(os.getppid(), signal.SIGSTOP)
    os.kill(os.getpid(), signal.SIGKILL)
ops.allreduce(np.ones(3), name="y")
"""
    monkeypatch.setenv("PATH", ssh[0]["PATH"])
    monkeypatch.setattr(monitor, "_ANSWER_S", 1.0)
    monkeypatch.setattr(monitor, "_SEARCH_S", 60.0)
    job = Job([sys.executable, "-P", "-c", script], 2, hosts="localhost:1,there:1")
    with pytest.raises(ClusterError) as raised:
        launch(job, stdout=io.StringIO(), stderr=io.StringIO())
    assert str(raised.value) == str(agents.silent_loss_error("there"))


def test_function_accepts_streams_of_text_and_of_bytes(mark: str) -> None:
    out, err = io.BytesIO(), io.StringIO()
    script = "import sys; print('ä'); print('ö', file=sys.stderr)"
    outcome = launch(Job([sys.executable, "-P", "-c", script], 1, env={"PYTHONUTF8": "1"}), stdout=out, stderr=err)
    assert (outcome.codes, outcome.failed, outcome.status) == ((0,), None, 0)
    assert (out.getvalue(), err.getvalue()) == ("[0]<stdout>:ä\n".encode(), "[0]<stderr>:ö\n")


def test_an_agent_exits_although_its_output_is_not_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The agent waited until it was killed, 20 s after the reader of hvdrun's output had left."""
    monkeypatch.setattr(agents, "_EXIT_HERE_S", 100.0)
    ours = Agents()
    try:
        ours.start([Host("localhost", 1)], None, None, 60)
        (agent,) = ours.every
        agent.send(order(["yes"], tmp_path))
        until(lambda: fills(agent.channel.fileno()), "it says more than anybody reads")
    finally:
        ours.end()
    assert agent._process.returncode == 0, "it was killed"


def fills(pipe: int) -> bool:
    """Half of a pipe is enough to decide, since a full pipe need not have full pages."""
    waiting = bytearray(4)
    fcntl.ioctl(pipe, termios.FIONREAD, waiting)
    return int.from_bytes(waiting, sys.byteorder) > fcntl.fcntl(pipe, fcntl.F_GETPIPE_SZ) // 2


# A caller that reports failures itself.


@pytest.mark.parametrize("quiet", [False, True])
def test_quiet_job_leaves_the_summary_to_the_caller(mark: str, quiet: bool, patient: None) -> None:
    script = (
        RANK
        + """
import sys
print("before", file=sys.stderr)
if rank == 1: raise ValueError("my bug 7")
"""
    )
    err = io.StringIO()
    outcome = launch(Job([sys.executable, "-P", "-c", script], 2, quiet=quiet), stdout=io.StringIO(), stderr=err)
    assert (outcome.failed, outcome.last_lines[-1]) == (1, "ValueError: my bug 7")
    said = err.getvalue()
    assert said.count("before") == 2
    assert [said.count(words) for words in ("Traceback", "my bug 7", "hvdrun: rank 1")] == [0 if quiet else 1] * 3
