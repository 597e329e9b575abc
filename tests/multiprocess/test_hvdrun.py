"""hvdrun, through the real command: what ranks get, what is heard of them, how they end, and that nothing stays."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hvdtest.hvdrun import HVDRUN, RANK, SUM, gone, good, hvdrun, lines_of, marked, processes_with
from hvdtest.launch import clean_environment

from hvd_kernel.errors import ClusterError
from hvd_kernel.launch import lines, watch
from hvd_kernel.launch.api import Job, launch

pytestmark = pytest.mark.mp

EITHER = pytest.mark.parametrize("how", ["--gloo", "--mpi"])


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with marked(monkeypatch) as name:
        yield name


# What ranks get.


@pytest.mark.parametrize("np", [1, 2, 4])
def test_ranks_find_each_other(mark: str, np: int) -> None:
    text = good(hvdrun("-np", str(np), script=SUM))
    total = np * (np + 1) / 2
    assert [lines_of(text, rank) for rank in range(np)] == [
        [f"{rank} {np} {rank} {np} 1 {total}"] for rank in range(np)
    ]


def test_two_jobs_at_once_do_not_meet(mark: str) -> None:
    jobs = [
        subprocess.Popen(
            [*HVDRUN, "-np", "2", sys.executable, "-P", "-c", SUM],
            env=clean_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    for job in jobs:
        text = job.communicate(timeout=100)[0]
        assert job.returncode == 0
        assert [lines_of(text, rank) for rank in range(2)] == [["0 2 0 2 1 3.0"], ["1 2 1 2 1 3.0"]]


def test_variables_that_scripts_written_for_horovod_read(mark: str) -> None:
    names = [
        "RANK",
        "SIZE",
        "LOCAL_RANK",
        "LOCAL_SIZE",
        "CROSS_RANK",
        "CROSS_SIZE",
        "HOSTNAME",
        "CONTROLLER",
        "CPU_OPERATIONS",
    ]
    script = f"import os; print(*(os.environ['HOROVOD_' + n] for n in {names}), os.environ['PYTHONUNBUFFERED'])"
    text = good(hvdrun("-np", "2", script=script))
    assert lines_of(text, 0) == ["0 2 0 2 0 1 localhost gloo gloo 1"]
    assert lines_of(text, 1) == ["1 2 1 2 0 1 localhost gloo gloo 1"]


def test_what_another_launcher_left_is_not_passed_on(mark: str) -> None:
    left = {"OMPI_COMM_WORLD_RANK": "3", "RANK": "3", "HOROVOD_SIZE": "9", "HVD_BOOTSTRAP": "none", "FOO": "a b\n'c"}
    script = (
        "import os; print({n: os.environ.get(n) for n in ['OMPI_COMM_WORLD_RANK', 'RANK', 'HVD_BOOTSTRAP', 'FOO']})"
    )
    text = good(hvdrun("-np", "1", script=script, **left))
    expected = {"OMPI_COMM_WORLD_RANK": None, "RANK": None, "HVD_BOOTSTRAP": None, "FOO": "a b\n'c"}
    assert lines_of(text, 0) == [str(expected)]


@pytest.mark.parametrize("how", ["--gloo", "--mpi"])
def test_programs_written_for_horovod(mark: str, how: str) -> None:
    script = """
import numpy as np, torch
import horovod.torch as hvd
hvd.init()
x = hvd.allreduce(torch.tensor([hvd.rank() + 1]), op=hvd.Sum)
print(x.item(), hvd.__name__)
"""
    assert good(hvdrun("-np", "2", how, script=script)).count("3 hvd_kernel.torch") == 2


@EITHER
def test_working_folder(mark: str, how: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import os; print(os.getcwd())")
    text = good(hvdrun("-np", "2", how, sys.executable, "train.py", cwd=tmp_path))
    assert [lines_of(text, rank) for rank in range(2)] == [[str(tmp_path)]] * 2


def test_flags_win_over_the_file_and_both_over_the_environment(mark: str, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("params: {cycle_time_ms: 7, fusion_threshold_mb: 3}\nautotune: {enabled: true}\n")
    script = "from hvd_kernel import config; import json; print(json.dumps(config.engine_options()))"
    words = ["-np", "1", "--config-file", str(file), "--cycle-time-ms", "2.5", "--no-stall-check"]
    text = good(hvdrun(*words, script=script, HVD_FUSION_THRESHOLD="9", HOROVOD_CYCLE_TIME="1"))
    found = dict(json.loads(lines_of(text, 0)[0]))
    del found["secret"]
    assert found == {"fusion_threshold": "3145728", "cycle_time_ms": "2.5", "autotune": "1", "stall_warning_s": "0"}


@EITHER
def test_stdin_goes_to_rank_0_whole(mark: str, how: str) -> None:
    script = "import sys; data = sys.stdin.buffer.read(); print(len(data), data[:2], data[-2:])"
    text = good(hvdrun("-np", "2", how, script=script, given=b"ab" + bytes(5_000_000) + b"yz"))
    assert lines_of(text, 0) == [f"5000004 {b'ab'} {b'yz'}"]
    assert lines_of(text, 1) == [f"0 {b''} {b''}"]


@EITHER
def test_stdin_that_nobody_reads_holds_nothing_up(mark: str, how: str) -> None:
    assert lines_of(good(hvdrun("-np", "1", how, script="print('done')", given=bytes(5_000_000))), 0) == ["done"]


# What is heard.


@EITHER
def test_prefixes_and_order(mark: str, how: str) -> None:
    script = (
        RANK
        + """
import sys
for i in range(300):
    print("out", rank, i)
    print("err", rank, i, file=sys.stderr)
sys.stdout.write("no end")
"""
    )
    done = hvdrun("-np", "3", how, script=script)
    assert done.returncode == 0
    for rank in range(3):
        assert lines_of(done.stdout, rank) == [*(f"out {rank} {i}" for i in range(300)), "no end"]
        assert lines_of(done.stderr, rank, "stderr") == [f"err {rank} {i}" for i in range(300)]
    assert len(done.stdout.splitlines()) == 903
    assert len(done.stderr.splitlines()) == 900


@EITHER
def test_lines_stay_whole(mark: str, how: str) -> None:
    script = (
        RANK
        + """
letter = b"abcd"[rank]
for i in range(60):
    for piece in range(10):
        os.write(1, bytes([letter]) * 3000)
    os.write(1, b"\\n")
"""
    )
    text = good(hvdrun("-np", "4", how, script=script))
    wrong = [line[:40] for line in text.splitlines() if not re.fullmatch(r"\[(\d)\]<stdout>:(a+|b+|c+|d+)", line)]
    assert wrong == []
    assert {len(line) for line in text.splitlines()} == {len("[0]<stdout>:") + 30_000}
    assert len(text.splitlines()) == 240


@EITHER
def test_time_before_every_line(mark: str, how: str) -> None:
    text = good(hvdrun("-np", "1", how, "-prefix-timestamp", script="print('a')"))
    assert re.fullmatch(r"\w{3} \w{3} [ \d]\d \d\d:\d\d:\d\d \d{4}\[0\]<stdout>:a\n", text), text


@EITHER
def test_output_files_hold_what_a_rank_wrote(mark: str, how: str, tmp_path: Path) -> None:
    script = RANK + "import sys; print('out', rank); print('err', file=sys.stderr)"
    text = good(hvdrun("-np", "2", how, "--output-filename", str(tmp_path / "a" / "b"), script=script))
    assert [lines_of(text, rank) for rank in range(2)] == [["out 0"], ["out 1"]]
    for rank in range(2):
        assert (tmp_path / f"a/b/rank.{rank}/stdout").read_text() == f"out {rank}\n"
        assert (tmp_path / f"a/b/rank.{rank}/stderr").read_text() == "err\n"


def test_a_reader_that_leaves_ends_the_job(mark: str) -> None:
    script = "while True: print('y' * 1000)"
    command = subprocess.list2cmdline([*HVDRUN, "-np", "2", sys.executable, "-P", "-c"]) + f' "{script}" | head -n 1'
    done = subprocess.run(
        ["bash", "-c", command], env=clean_environment(), capture_output=True, text=True, timeout=60, check=False
    )
    assert re.fullmatch(r"\[\d\]<stdout>:y+\n", done.stdout)
    assert "Traceback" not in done.stderr
    assert gone(mark)


# How ranks end.


@EITHER
@pytest.mark.parametrize(
    ("end", "status", "said"),
    [
        ("sys.exit(7)", 7, "rank 1 failed (exit status 7)"),
        ("os.kill(os.getpid(), 9)", 137, "rank 1 failed (signal 9)"),
        ("os.abort()", 134, "rank 1 failed (signal 6)"),
        ("raise ValueError('my bug 7')", 1, "rank 1 failed (exit status 1)"),
    ],
)
def test_a_rank_that_fails_ends_the_others(mark: str, how: str, end: str, status: int, said: str) -> None:
    script = f"{RANK}import sys, time\nif rank == 1: {end}\ntime.sleep(120)"
    done = hvdrun("-np", "3", how, script=script)  # which waits for less than the others sleep
    assert done.returncode == status, done.stderr
    assert done.stderr.splitlines()[-1] == f"hvdrun: {said}; all ranks have ended."
    assert ("ValueError: my bug 7" in done.stderr) == ("bug" in end)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ranks have all the time they need to end by themselves: after a traceback, and after the first failure."""
    for module, name in ((watch, "_SETTLE_S"), (watch, "_SEARCH_S"), (lines, "_HOLD_S")):
        monkeypatch.setattr(module, name, 60.0)


@EITHER
def test_the_guilty_ranks_traceback_is_the_last_and_there_once(mark: str, how: str, patient: None) -> None:
    script = """
import numpy as np
from hvd_kernel import _session, ops
_session.init()
if _session.rank() == 1:
    raise ValueError("my bug 7")
ops.allreduce(np.ones(3), name="x")
"""
    err = io.StringIO()
    job = Job([sys.executable, "-P", "-c", script], 3, use_mpi=how == "--mpi")
    assert launch(job, stdout=io.StringIO(), stderr=err).status == 1
    *before, last = err.getvalue().splitlines()
    assert last == "hvdrun: rank 1 failed (exit status 1); ranks 0, 2 failed because of it; all ranks have ended."
    assert before[-1] == "[1]<stderr>:ValueError: my bug 7"
    begins = [number for number, line in enumerate(before) if line == "[1]<stderr>:Traceback (most recent call last):"]
    assert len(begins) == 1
    assert all(line.startswith("[1]<stderr>:") for line in before[begins[0] :])


@EITHER
def test_what_all_ranks_raise_is_there_once(mark: str, how: str, patient: None) -> None:
    err = io.StringIO()
    job = Job([sys.executable, "-P", "-c", "import nothing_of_that_name"], 3, use_mpi=how == "--mpi")
    outcome = launch(job, stdout=io.StringIO(), stderr=err)
    assert outcome.codes == (1, 1, 1)
    assert err.getvalue().count("ModuleNotFoundError") == 1
    last = err.getvalue().splitlines()[-1]
    assert re.fullmatch(r"hvdrun: rank \d failed \(exit status 1\); ranks \d, \d failed alike; .*", last), last


def test_who_says_the_same_and_is_ended_before_it_has_failed_is_not_heard_again(
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
    monkeypatch.setattr(lines, "_HOLD_S", 60.0)  # it may be slow to be ended, but it is ended
    err = io.StringIO()
    outcome = launch(Job([sys.executable, "-P", "-c", script], 2), stdout=io.StringIO(), stderr=err)
    assert outcome.codes == (-signal.SIGTERM, 1)
    assert err.getvalue().count("ModuleNotFoundError") == 1
    assert err.getvalue().splitlines()[-1] == "hvdrun: rank 1 failed (exit status 1); all ranks have ended."


@EITHER
def test_a_rank_that_will_not_end_is_killed_with_its_group(mark: str, how: str, tmp_path: Path) -> None:
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
    began = time.monotonic()
    job = Job(
        [sys.executable, "-P", "-c", script], 2, env={"PYTHONWARNINGS": "ignore"}, grace_s=0.5, use_mpi=how == "--mpi"
    )
    outcome = launch(job, stdout=out, stderr=err)
    assert time.monotonic() - began < 60
    assert (outcome.codes, outcome.failed, outcome.status) == ((-9, 3), 1, 3)
    assert gone(mark, 0.0), processes_with(mark)


@EITHER
def test_a_stopped_rank_does_not_hold_up_the_end(mark: str, how: str, tmp_path: Path) -> None:
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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_the_end_of_the_launcher_is_the_end_of_all(mark: str, number: int) -> None:
    script = """
import os, subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)"], start_new_session=True)
print("up", os.environ["HOROVOD_RANK"])
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
    assert {job.stdout.readline(), job.stdout.readline()} == {"[0]<stdout>:up 0\n", "[1]<stdout>:up 1\n"}
    assert len(processes_with(mark)) == 6  # launcher, agent, two ranks with a child each
    job.send_signal(number)
    assert job.wait(60) == (-9 if number == signal.SIGKILL else 128 + number)
    assert gone(mark, 30.0 if number == signal.SIGKILL else 0.0), processes_with(mark)
    assert job.communicate()[1] == ""


WITH_ALL_THE_TIME = """
import functools, sys
from hvd_kernel.launch import cli
cli.Job = functools.partial(cli.Job, grace_s=1000.0)
sys.exit(cli.main())
"""


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
        [sys.executable, "-P", "-c", WITH_ALL_THE_TIME, "-np", "1", how, sys.executable, "-P", "-c", script],
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


def test_on_a_terminal(mark: str) -> None:
    """Rank 0 reads what is typed; Ctrl-C reaches the launcher alone, which ends the job."""
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
def test_a_command_that_is_not_there(mark: str, how: str) -> None:
    done = hvdrun("-np", "2", how, "no-such-command-here")
    assert (done.returncode, done.stdout) == (1, "")
    said = r"hvdrun: rank \d cannot be started on localhost: No such file or directory: no-such-command-here\.\n"
    assert re.fullmatch(said, done.stderr), done.stderr


def test_too_late(mark: str) -> None:
    script = "print('waiting', flush=True); import time; time.sleep(60)"
    with pytest.raises(ClusterError, match="did not end in time"):
        launch(Job([sys.executable, "-P", "-c", script], 2, timeout_s=3.0), stdout=io.StringIO(), stderr=io.StringIO())


def test_the_function_takes_streams_of_text_and_of_bytes(mark: str) -> None:
    out, err = io.BytesIO(), io.StringIO()
    script = "import sys; print('ä'); print('ö', file=sys.stderr)"
    outcome = launch(Job([sys.executable, "-P", "-c", script], 1, env={"PYTHONUTF8": "1"}), stdout=out, stderr=err)
    assert (outcome.codes, outcome.failed, outcome.status) == ((0,), None, 0)
    assert (out.getvalue(), err.getvalue()) == ("[0]<stdout>:ä\n".encode(), "[0]<stderr>:ö\n")


# A caller that tells of failures itself.


@pytest.mark.parametrize("quiet", [False, True])
def test_a_quiet_job_leaves_the_last_words_to_the_caller(mark: str, quiet: bool, patient: None) -> None:
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


# Without ranks.


def test_version_and_build(mark: str) -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+\n", good(hvdrun("--version")))
    text = good(hvdrun("--check-build"))
    for row in ("[X] PyTorch", "[ ] TensorFlow", "[X] MPI", "[X] the core's own"):
        assert f"    {row}\n" in text


def test_wrong_use_is_status_2(mark: str) -> None:
    done = hvdrun("-np", "2", "--cycle-time-ms", "soon", "true")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--cycle-time-ms: 'soon' cannot be used: it must be a number" in done.stderr
