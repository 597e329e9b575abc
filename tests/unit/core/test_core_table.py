"""The core's C table, reached by its address and by its library: both give the same engine."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hvd_kernel import _native
from hvd_kernel._native import Engine, LocalHub
from hvd_kernel.core.tensor import DTYPES

INT32, TEXT, POINTER, SIZE = ctypes.c_int32, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t


class Table(ctypes.Structure):
    """Its beginning, as native/c_api/hvd_core.h has it."""

    _fields_ = (
        ("struct_size", SIZE),
        ("version", TEXT),
        ("current", ctypes.CFUNCTYPE(POINTER)),
        ("release", ctypes.CFUNCTYPE(None, POINTER)),
        ("rank", ctypes.CFUNCTYPE(INT32, POINTER)),
        ("size", ctypes.CFUNCTYPE(INT32, POINTER)),
    )


CORE = Table.from_address(_native.core_table())


@pytest.fixture
def engine() -> Engine:
    return Engine(0, 1, LocalHub(1))


def current() -> tuple[int, int] | None:
    """(rank, size) of the current engine."""
    found = CORE.current()
    if found is None:
        return None
    told = CORE.rank(found), CORE.size(found)
    CORE.release(found)
    return told


def in_a_child(what: Callable[[], bool]) -> bool:
    pid = os.fork()
    if pid == 0:
        os._exit(0 if what() else 1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_extension_uses_the_library_beside_it() -> None:
    library = ctypes.CDLL(str(Path(_native.__file__ or "").with_name("libhvd_core.so")))
    library.hvd_core_table.restype = POINTER
    assert library.hvd_core_table() == _native.core_table()
    assert CORE.version.decode() == _native.__version__
    assert CORE.struct_size > ctypes.sizeof(Table)


def test_engine_is_found_while_it_is_current(engine: Engine) -> None:
    assert current() is None
    engine.make_current()
    assert current() == (0, 1)
    assert in_a_child(lambda: current() is None)
    assert current() == (0, 1)
    other = Engine(0, 1, LocalHub(1))
    other.make_current(False)  # it was not
    assert current() == (0, 1)
    engine.make_current(False)
    assert current() is None


def test_current_engine_outlives_python_until_released(engine: Engine) -> None:
    engine.make_current()
    found = CORE.current()
    engine.make_current(False)
    values = np.ones(3, np.float32)
    tensor = (values.ctypes.data, values.ctypes.data, values.shape, DTYPES["float32"])
    engine.wait(engine.allreduce("x", [tensor], _native.SUM, postscale=2.0))
    assert values.tolist() == [2.0] * 3
    del engine
    assert CORE.size(found) == 1
    CORE.release(found)
