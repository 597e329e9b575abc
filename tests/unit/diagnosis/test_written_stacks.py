"""Stacks that a rank wrote at a signal: which calls and functions are read from them."""

from __future__ import annotations

from hvd_kernel.diagnosis.written_stacks import below_signal, c_functions, python_calls
from hvd_kernel.protocol.messages import Frame

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
    native = Frame("lib.py:12", "native", "", own=True)
    assert python_calls(CELL, {}) == (Frame("cell:4", "", "", own=True), native)
    assert python_calls(CELL, {"1234567.py": "cell 3"}) == (Frame("cell 3:4", "", "", own=True), native)


def test_a_scripts_calls_are_read_to_its_first() -> None:
    assert python_calls(SCRIPT, {}) == (
        Frame("train.py:11", "", "", own=True),
        Frame("train.py:7", "stuck", "", own=True),
    )


def test_c_functions_are_those_between_the_signal_and_the_interpreter() -> None:
    assert c_functions(SCRIPT) == (
        "libc.so.6(clock_nanosleep+0x23)",
        "libc.so.6(sleep+0x3a)",
        "libpython3.11.so.1.0(_PyObject_MakeTpCall+0x7d)",
    )
    assert c_functions(CELL) == ()


def test_a_stack_that_was_cut_off_gives_what_there_is() -> None:
    assert python_calls(SCRIPT[:2], {}) == (Frame("train.py:7", "stuck", "", own=True),)
    assert below_signal([]) == ()
    assert below_signal(["/lib/libc.so.6(+0x3c050)"]) == ()
