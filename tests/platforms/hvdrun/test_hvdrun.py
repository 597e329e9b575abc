"""hvdrun, through the real command: the environment and input of ranks, and their output."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from hvdtest.hvdrun import EITHER, FAULTS, HVDRUN, NIGHTLY, RANK, SUM, gone, good, hvdrun, lines_of, ran
from hvdtest.launch import clean_environment

pytestmark = pytest.mark.mp


# What ranks get.


@pytest.mark.parametrize("np", [pytest.param(1, marks=NIGHTLY), pytest.param(2, marks=NIGHTLY), 4])
def test_ranks_find_each_other(mark: str, np: int) -> None:
    text = good(hvdrun("-np", str(np), script=SUM))
    total = np * (np + 1) / 2
    assert [lines_of(text, rank) for rank in range(np)] == [
        [f"{rank} {np} {rank} {np} 1 {total}"] for rank in range(np)
    ]


def test_concurrent_jobs_do_not_meet(mark: str) -> None:
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


def test_variables_of_other_launchers_are_not_passed_on(mark: str) -> None:
    left = {"OMPI_COMM_WORLD_RANK": "3", "RANK": "3", "HOROVOD_SIZE": "9", "HVD_BOOTSTRAP": "none", "FOO": "a b\n'c"}
    script = (
        "import os; print({n: os.environ.get(n) for n in ['OMPI_COMM_WORLD_RANK', 'RANK', 'HVD_BOOTSTRAP', 'FOO']})"
    )
    text = good(hvdrun("-np", "1", script=script, **left))
    expected = {"OMPI_COMM_WORLD_RANK": None, "RANK": "0", "HVD_BOOTSTRAP": None, "FOO": "a b\n'c"}
    assert lines_of(text, 0) == [str(expected)]


def test_memory_freed_by_a_rank_is_used_again(mark: str) -> None:
    text = good(hvdrun("-np", "2", script=f"{FAULTS}print(later < 100)"))
    assert [lines_of(text, rank) for rank in range(2)] == [["True"], ["True"]]
    text = good(hvdrun("-np", "1", script="import os; print(os.environ.get('GLIBC_TUNABLES'))", HVD_KEEP_MEMORY="0"))
    assert lines_of(text, 0) == ["None"]


@EITHER
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


def test_flags_override_the_file_and_both_the_environment(mark: str, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("params: {cycle_time_ms: 7, fusion_threshold_mb: 3}\nautotune: {enabled: true}\n")
    script = "from hvd_kernel.settings import lookup; import json; print(json.dumps(lookup.engine_options()))"
    words = ["-np", "1", "--config-file", str(file), "--cycle-time-ms", "2.5", "--no-stall-check"]
    text = good(hvdrun(*words, script=script, HVD_FUSION_THRESHOLD="9", HOROVOD_CYCLE_TIME="1"))
    found = dict(json.loads(lines_of(text, 0)[0]))
    del found["secret"]
    assert found == {"fusion_threshold": "3145728", "cycle_time_ms": "2.5", "autotune": "1", "stall_warning_s": "0"}


@EITHER
def test_stdin_is_forwarded_to_rank_0_completely(mark: str, how: str) -> None:
    script = "import sys; data = sys.stdin.buffer.read(); print(len(data), data[:2], data[-2:])"
    text = good(hvdrun("-np", "2", how, script=script, given=b"ab" + bytes(5_000_000) + b"yz"))
    assert lines_of(text, 0) == [f"5000004 {b'ab'} {b'yz'}"]
    assert lines_of(text, 1) == [f"0 {b''} {b''}"]


@EITHER
def test_unread_stdin_does_not_block(mark: str, how: str) -> None:
    assert lines_of(good(hvdrun("-np", "1", how, script="print('done')", given=bytes(5_000_000))), 0) == ["done"]


# Output.


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
def test_lines_are_not_split(mark: str, how: str) -> None:
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
def test_output_files_hold_the_output_of_a_rank(mark: str, how: str, tmp_path: Path) -> None:
    script = RANK + "import sys; print('out', rank); print('err', file=sys.stderr)"
    text = good(hvdrun("-np", "2", how, "--output-filename", str(tmp_path / "a" / "b"), script=script))
    assert [lines_of(text, rank) for rank in range(2)] == [["out 0"], ["out 1"]]
    for rank in range(2):
        assert (tmp_path / f"a/b/rank.{rank}/stdout").read_text() == f"out {rank}\n"
        assert (tmp_path / f"a/b/rank.{rank}/stderr").read_text() == "err\n"


def test_closed_output_ends_the_job(mark: str) -> None:
    script = "while True: print('y' * 1000)"
    command = subprocess.list2cmdline([*HVDRUN, "-np", "2", sys.executable, "-P", "-c"]) + f' "{script}" | head -n 1'
    done = ran(["bash", "-c", command], seconds=60)
    assert re.fullmatch(r"\[\d\]<stdout>:y+\n", done.stdout)
    assert "Traceback" not in done.stderr
    assert gone(mark)


# Without ranks.


def test_version_and_build(mark: str) -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+\n", good(hvdrun("--version")))
    text = good(hvdrun("--check-build"))
    named = [
        "Available Frameworks:\n    [ ] TensorFlow\n    [X] PyTorch\n    [ ] MXNet\n    [X] NumPy\n",
        "Available Controllers:\n    [X] MPI\n    [X] Gloo\n\n",
        "    [ ] DDL\n    [ ] CCL\n    [X] MPI\n    [X] Gloo\n\n",
        "Available to hvd_kernel:\n    [X] the core, which stands for Gloo\n",
        f"Frameworks that are installed:\n    PyTorch {version('torch')}\n        [X] tensors of the CPU\n",
    ]
    places = [text.find(group) for group in named]
    assert -1 not in places, text
    assert places == sorted(places)


def test_wrong_use_is_status_2(mark: str) -> None:
    done = hvdrun("-np", "2", "--cycle-time-ms", "soon", "true")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--cycle-time-ms: 'soon' cannot be used: it must be a number" in done.stderr
