"""Stacks that a rank writes at a signal: reading the pipe to its end, and parsing calls and functions."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hvd_kernel.diagnosis import inquiry
from hvd_kernel.diagnosis.inquiry import below_signal, c_functions, python_calls
from hvd_kernel.protocol.messages import STACK_PIPE, Frame

WRITER = """
import os, signal, sys, time
pipe = os.open(sys.argv[1], os.O_RDWR | os.O_NONBLOCK)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGURG})  # a handler's would be lost just before a sleep
print("ready", flush=True)
signal.sigwait({signal.SIGURG})
for pause, piece in enumerate(sys.argv[2:]):
    time.sleep(0.1 * pause)
    os.write(pipe, piece.encode())
"""
WRITTEN = [
    'Stack (most recent call first):\n  File "/tmp/ipykernel_0/1.py", li',
    'ne 4 in inner\n  File "/tmp/ipykernel_0/1.py", line 5 in <module>\n',
    '  File "/x/IPython/core/interactiveshell.py", line 1 in run_code\nend of sta',
    "ck\n",
]

CELL = """Stack (most recent call first):
  File "/home/me/lib.py", line 12 in native
  File "/opt/venv/lib/python3.11/site-packages/hvd_kernel/torch/mpi_ops.py", line 3 in wrapper
  File "/tmp/ipykernel_4711/1234567.py", line 4 in <module>
  File "/x/site-packages/IPython/core/interactiveshell.py", line 3579 in run_code
  File "/x/site-packages/ipykernel/zmqshell.py", line 549 in run_cell
""".splitlines()

SCRIPT = """Stack (most recent call first):
  File "/home/me/train.py", line 7 in stuck
  File "/home/me/train.py", line 11 in <module>
  File "<frozen runpy>", line 88 in _run_code
/venv/hvd_kernel/libhvd_core.so(+0x28cfb)[0x7fe603828cfb]
/lib/libc.so.6(+0x3c050)[0x7fe60425a050]
/lib/libc.so.6(+0x8aeec)[0x7fe6042a8eec]
/lib/libc.so.6(gsignal+0x12)[0x7fe604259fb2]
/lib/libpython3.11.so.1.0(+0x2be18b)[0x7fe6046be18b]
/lib/libc.so.6(+0x3c050)[0x7fe60425a050]
/lib/libc.so.6(clock_nanosleep+0x23)[0x7fe6042ed503]
/lib/libc.so.6(sleep+0x3a)[0x7fe6042f1d8a]
/lib/libpython3.11.so.1.0(_PyObject_MakeTpCall+0x7d)[0x7fe60455861d]
/lib/libpython3.11.so.1.0(_PyEval_EvalFrameDefault+0x2e53)[0x7fe6044fd9c3]
/lib/libpython3.11.so.1.0(Py_BytesMain+0x47)[0x7fe6046ba217]
end of stack
""".splitlines()


def test_a12_a_cells_calls_are_read_up_to_the_cell() -> None:
    native = Frame("lib.py:12", "native", "", is_user_code=True)
    assert python_calls(CELL, {}) == (Frame("cell:4", "", "", is_user_code=True), native)
    assert python_calls(CELL, {"1234567.py": "cell 3"}) == (Frame("cell 3:4", "", "", is_user_code=True), native)


def test_a_scripts_calls_are_read_to_its_first() -> None:
    assert python_calls(SCRIPT, {}) == (
        Frame("train.py:11", "", "", is_user_code=True),
        Frame("train.py:7", "stuck", "", is_user_code=True),
    )


def test_c_stack_is_between_signal_and_interpreter() -> None:
    assert c_functions(SCRIPT) == (
        "libc.so.6(clock_nanosleep+0x23)",
        "libc.so.6(sleep+0x3a)",
        "libpython3.11.so.1.0(_PyObject_MakeTpCall+0x7d)",
    )
    assert c_functions(CELL) == ()


def test_truncated_stack_gives_its_complete_frames() -> None:
    assert python_calls(SCRIPT[:2], {}) == (Frame("train.py:7", "stuck", "", is_user_code=True),)
    assert below_signal([]) == ()
    assert below_signal(["/lib/libc.so.6(+0x3c050)"]) == ()


@pytest.mark.parametrize("pieces", [WRITTEN, WRITTEN[:1]], ids=["to its end", "until the rank ends"])
def test_a12_slowly_written_stack_is_read_completely(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pieces: list[str]
) -> None:
    monkeypatch.setattr(inquiry, "_WRITTEN_S", 60.0)
    (tmp_path / "ipython").mkdir()
    pipe = tmp_path / "ipython" / STACK_PIPE.format(rank=0)
    os.mkfifo(pipe)
    with subprocess.Popen([sys.executable, "-c", WRITER, str(pipe), *pieces], stdout=subprocess.PIPE) as rank:
        assert rank.stdout is not None
        assert rank.stdout.readline() == b"ready\n"
        assert inquiry.request_stacks(tmp_path, 0, rank.pid) == "".join(pieces).splitlines()
