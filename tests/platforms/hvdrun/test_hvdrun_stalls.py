"""hvdrun's report about waiting ranks: the missing rank and its line, and every rank's stack on SIGQUIT."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hvdtest.gate import Gate
from hvdtest.hvdrun import EITHER, HVDRUN, NIGHTLY, good, hvdrun, lines_of
from hvdtest.launch import clean_environment

from hvd_kernel.protocol.training_apart import LIVE_STEPS, nothing_exchanged, parameters_differ

pytestmark = pytest.mark.mp

SCRIPT = """
import sys, time
import numpy as np
import hvd_kernel.numpy as hvd

hvd.init()
rank = hvd.rank()

def never_comes():
    {arrive}
    {hold}

if rank == 1:
    never_comes()
hvd.allreduce(np.ones(3), name="grad/conv1")
print("went on")
"""
# C code that keeps Python's lock through all signals, until the test writes to the pipe.
IN_C = "import ctypes, os; ctypes.PyDLL(None).read(os.open({pipe!r}, os.O_RDWR), ctypes.create_string_buffer(1), 1)"
LINE = next(number for number, line in enumerate(SCRIPT.splitlines(), 1) if "{hold}" in line)


class Job:
    """A job that runs, its stderr line by line."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.said: list[str] = []

    def until(self, pattern: str) -> str:
        """Return the first line with it that has not been read so far."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said.append(line)
            if re.search(pattern, line):
                return line
        raise AssertionError(f"{pattern} is not in:\n{''.join(self.said)}")

    def report(self, last: str) -> str:
        """Ask for the stacks, and return them from their first line to the one with ``last``."""
        self.process.send_signal(signal.SIGQUIT)
        self.until("^hvdrun: where the ranks are:$")
        begin = len(self.said)
        self.until(last)
        return "".join(self.said[begin:])

    def goes_on(self) -> str:
        """Return the output of ranks that have all succeeded."""
        stdout, stderr = self.process.communicate(timeout=100)
        assert self.process.returncode == 0, stderr
        return stdout


@contextmanager
def job(*words: str, quit_is: str = "default", **env: str) -> Iterator[Job]:
    with subprocess.Popen(
        ["env", f"--{quit_is}-signal=QUIT", *HVDRUN, *words],  # these tests may run in a script's background
        env=clean_environment(**env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield Job(process)
        finally:
            process.kill()


def written(folder: Path, gate: Gate, hold: str = "") -> str:
    script = folder / "train.py"
    how = {"arrive": gate.arrive, "hold": hold or gate.hold}
    script.write_text(SCRIPT.format(**how))
    return str(script)


def test_background_processes_of_a_script_print_stacks(mark: str, tmp_path: Path) -> None:
    script = [sys.executable, "-c", "import time; print('begun', flush=True); time.sleep(1000)"]
    with job("-np", "1", "--gloo", *script, quit_is="ignore") as running:
        assert running.process.stdout is not None
        assert running.process.stdout.readline() == "[0]<stdout>:begun\n"
        assert "hvd.init()" in running.report(r"^\[0\] ")


@EITHER
def test_a_hang_is_reported_with_rank_and_line(mark: str, tmp_path: Path, how: str) -> None:
    with Gate(tmp_path) as gate, job("-np", "3", how, sys.executable, written(tmp_path, gate)) as running:
        said = running.until("waits for")
        assert f"hvdrun: allreduce 'grad/conv1' waits for rank 1, which is in train.py:{LINE} never_comes(): " in said
        stacks = running.report(rf"train\.py:{LINE} ")
        assert re.fullmatch(
            r"\[0,2\] waiting in allreduce 'grad/conv1'\n    train\.py:\d+: hvd\.allreduce.*\n"
            rf"\[1\] in the script's own code\n    train\.py:\d+: never_comes\(\)\n    train\.py:{LINE} .*\n",
            stacks,
        ), stacks
        gate.open()
        text = running.goes_on()
    assert [lines_of(text, rank) for rank in range(3)] == [["went on"]] * 3


@NIGHTLY
def test_stall_report_over_ssh(mark: str, tmp_path: Path, ssh: tuple[dict[str, str], Path]) -> None:
    with Gate(tmp_path) as gate, job("-H", "alpha:1,beta:2", sys.executable, written(tmp_path, gate), **ssh[0]) as far:
        assert f"waits for rank 1, which is in train.py:{LINE} never_comes(): " in far.until("waits for")
        gate.open()
        assert lines_of(far.goes_on(), 1) == ["went on"]


@NIGHTLY
@pytest.mark.parametrize("failing", [0, 1])
def test_a_rank_holding_the_gil_is_inspected_from_outside(mark: str, tmp_path: Path, failing: int) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with Gate(tmp_path) as gate:
        script = Path(written(tmp_path, gate, IN_C.format(pipe=str(pipe))))
        script.write_text(script.read_text().replace("rank == 1", f"rank == {failing}"))
        with job("-np", "2", sys.executable, str(script)) as running:
            said = running.until("waits for")
            assert f"waits for rank {failing}, which is in C code, called in train.py:{LINE} never_comes(): " in said
            running.report(r"C: libc\.so\S*\(.*read")
            pipe.write_bytes(b"x")
            assert lines_of(running.goes_on(), failing) == ["went on"]


@NIGHTLY
def test_stopped_rank_is_reported_as_stopped(mark: str, tmp_path: Path) -> None:
    with Gate(tmp_path) as gate:
        stops = "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"
        with job("-np", "2", sys.executable, written(tmp_path, gate, stops)) as running:
            running.until("waits for rank 1, which is stopped")
            running.process.terminate()
            assert running.process.wait(60) == 128 + signal.SIGTERM


@NIGHTLY
def test_report_includes_ranks_before_init(mark: str, tmp_path: Path) -> None:
    with Gate(tmp_path) as gate:
        early = "import os\nrank = int(os.environ['HOROVOD_RANK'])\nif rank == 1:\n"
        script = tmp_path / "early.py"
        script.write_text(f"{early}    {gate.arrive}\n    {gate.hold}\nimport hvd_kernel.numpy as hvd\nhvd.init()\n")
        with job("-np", "2", sys.executable, str(script)) as running:
            gate.wait_for(1)
            assert "cannot be asked: it has not called hvd.init()" in running.report(r"^\[(0-)?1\] ")
            gate.open()
            running.goes_on()


@NIGHTLY
def test_no_report_without_a_stall_check(mark: str) -> None:
    late = "import time\nhvd.init()\ntime.sleep(1.5 * hvd.rank())\nhvd.barrier()"
    done = hvdrun("-np", "2", "--no-stall-check", script=f"import hvd_kernel.numpy as hvd\n{late}")
    good(done)
    assert "waits for" not in done.stderr
    done = hvdrun("-np", "2", script=f"import hvd_kernel.numpy as hvd\n{late}")
    good(done)
    assert "hvdrun: barrier waits for rank 1, which is in <string>:4" in done.stderr


@NIGHTLY
def test_stalls_in_ranks_of_run_are_reported(mark: str, tmp_path: Path) -> None:
    script = tmp_path / "calls_run.py"
    script.write_text("""
import hvd_kernel

def late():
    import time
    import hvd_kernel.numpy as hvd
    hvd.init()
    time.sleep(1.5 * hvd.rank())
    hvd.barrier()

hvd_kernel.run(late, np=2)
""")
    done = subprocess.run(
        [sys.executable, str(script)], env=clean_environment(), capture_output=True, text=True, timeout=100, check=True
    )
    assert (
        "hvdrun: barrier waits for rank 1, which is in calls_run.py:8 late(): time.sleep(1.5 * hvd.rank())"
        in done.stderr
    )


APART = """
import numpy as np
import hvd_kernel.numpy as hvd

hvd.init()
if hvd.rank() == 0:
    hvd.allreduce(np.ones(3), name="a")
else:
    hvd.broadcast(np.ones(3), 0, name="b")
"""


def test_c4_ranks_that_wait_for_each_other_fail(tmp_path: Path) -> None:
    script = tmp_path / "apart.py"
    script.write_text(APART)
    done = hvdrun("-np", "2", sys.executable, "-P", str(script), cwd=tmp_path)
    assert done.returncode == 1
    error = "Mismatch: Ranks wait for each other forever, because they request different operations: "
    assert error in done.stderr
    assert "rank 0 for ALLREDUCE allreduce.a at apart.py:7" in done.stderr
    assert "rank 1 for BROADCAST broadcast.b at apart.py:9" in done.stderr


SUM = 'hvd.allreduce(np.ones(3), name="a")'


@pytest.mark.parametrize(
    ("waits", "end"),
    [
        (SUM, "pass"),
        pytest.param("hvd.join()", "pass", marks=pytest.mark.nightly),
        pytest.param(SUM, "hvd.shutdown()", marks=pytest.mark.nightly),
        pytest.param("hvd.join()", "import sys; sys.exit(0)", marks=pytest.mark.nightly),
    ],
)
def test_early_exit_of_a_script_is_reported_to_waiting_ranks(waits: str, end: str) -> None:
    script = f"import numpy as np\nimport hvd_kernel.numpy as hvd\nhvd.init()\nif hvd.rank() == 1:\n    {end}\nelse:"
    done = hvdrun("-np", "3", script=f"{script}\n    {waits}")
    assert done.returncode == 1
    assert "Horovod has been shut down." in done.stderr
    assert "(Rank 1 has shut down.)" in done.stderr


STEPS = """
import torch
import hvd_kernel.torch as hvd

hvd.init()
torch.manual_seed({seed})
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
{wrap}
for _ in range({steps}):
    model(torch.ones(2)).sum().backward()
    optimizer.step()
"""
WRAP = "optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())"
FINDINGS = {
    "plain": (STEPS.format(seed=1, wrap="", steps=300), nothing_exchanged("ranks 0-1", LIVE_STEPS)),
    "plain and short": (STEPS.format(seed=1, wrap="", steps=20), nothing_exchanged("ranks 0-1", 20)),
    "not broadcast": (STEPS.format(seed="hvd.rank()", wrap=WRAP, steps=4), parameters_differ("ranks 0-1", 1)),
    "together": (STEPS.format(seed=1, wrap=WRAP, steps=300), ""),
    "too few": (STEPS.format(seed=1, wrap="", steps=4), ""),
}


DEFAULT = {"plain", "not broadcast"}


@pytest.mark.parametrize(
    "case", [case if case in DEFAULT else pytest.param(case, marks=pytest.mark.nightly) for case in FINDINGS]
)
def test_scripts_that_train_apart_are_warned_once(case: str) -> None:
    script, warning = FINDINGS[case]
    done = hvdrun("-np", "2", script=script)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if "hvd_kernel:" in line]
    assert lines == ([warning] if warning else [])


@NIGHTLY
def test_a_script_turns_the_guard_off() -> None:
    script = STEPS.format(seed=1, wrap="", steps=300)
    done = hvdrun("-np", "2", script=f"import os\nos.environ['HVD_GUARD'] = 'off'\n{script}")
    assert (done.returncode, done.stderr) == (0, "")
