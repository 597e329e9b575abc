"""The C table between init and shutdown: plugins find the engine of the time, and none in a forked child."""

from __future__ import annotations

import pytest
from hvdtest.launch import RankPool
from hvdtest.pools import layouts

pytestmark = pytest.mark.mp

layout = layouts((2, "shm"))


def found() -> None:
    import ctypes
    import os

    import hvd_kernel.torch as hvd
    from hvd_kernel import _native

    table = _native.core_table() + 2 * ctypes.sizeof(ctypes.c_void_p)  # behind its size and version
    types = ctypes.CFUNCTYPE(ctypes.c_void_p), ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    rank_type = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)
    addresses = (ctypes.c_void_p * 4).from_address(table)
    current, release = types[0](addresses[0]), types[1](addresses[1])
    rank_of, size_of = rank_type(addresses[2]), rank_type(addresses[3])

    engine = current()
    assert (rank_of(engine), size_of(engine)) == (hvd.rank(), hvd.size())
    pid = os.fork()
    if pid == 0:
        os._exit(0 if current() is None else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    hvd.shutdown()
    assert current() is None
    assert size_of(engine) == 2, "who has one may keep it"
    release(engine)
    hvd.init()
    engine = current()
    assert rank_of(engine) == hvd.rank()
    release(engine)
    hvd.barrier()


def test_plugins_find_the_current_engine(ranks: RankPool) -> None:
    ranks.run(found)
