"""Arrays of Numba, PyArrow, Paddle, and fakes on devices: the same kind is returned, in place if possible, and copies are known."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
from hvdtest.environments import Ranks, environment
from hvdtest.launch import RankPool

pytestmark = [pytest.mark.nightly, pytest.mark.mp]


@pytest.fixture(scope="module")
def array_ranks() -> Iterator[RankPool]:
    with Ranks(environment("arrays"), 2) as ranks:
        yield ranks


def given_to_the_core(call: Any) -> tuple[Any, list[tuple[int, int]]]:
    """Return a call's result, and the addresses of operands and results that the usual path passed to the core."""
    from hvd_kernel.core import handles
    from hvd_kernel.core import ops as core
    from hvd_kernel.numpy import ops

    before, given = handles.allreduce_places, []
    # The core's function takes an array as it is, and is not looked into.
    declines = mock.patch.object(ops._fast, "allreduce", return_value=None)

    def enqueue(name: str, places: Any, *how: Any, **more: Any) -> int:
        given.extend((place[0], place[1]) for place in places)
        return before(name, places, *how, **more)

    core.allreduce_places = handles.allreduce_places = enqueue
    try:
        with declines:
            return call(), given
    finally:
        core.allreduce_places = handles.allreduce_places = before


def pyarrow() -> None:
    import numpy as np
    import pyarrow as pa
    from frameworks.numpy.test_libraries import given_to_the_core
    from hvdtest.exact import raises

    import hvd_kernel.numpy as hvd

    hvd.init()
    mine = pa.array([1.0, 2.0 + hvd.rank()], pa.float32())
    address = mine.buffers()[1].address
    result, places = given_to_the_core(lambda: hvd.allreduce(mine, op=hvd.Sum))
    assert isinstance(result, pa.FloatArray)
    assert result.to_pylist() == [2.0, 5.0]
    assert [place[0] for place in places] == [address], "read where it lies"
    assert result.buffers()[1].address == places[0][1], "the core's result is the array's memory"
    rows = hvd.allgather(pa.array([hvd.rank()] * (hvd.rank() + 1), pa.int64()))
    assert rows.to_pylist() == [0, 1, 1]
    assert hvd.broadcast(mine, 1).to_pylist() == [1.0, 3.0]
    assert mine.to_pylist() == [1.0, 2.0 + hvd.rank()]
    raises(ValueError, "cannot be overwritten from here", hvd.allreduce_, mine)
    out = np.empty(2, "f4")
    assert hvd.allreduce(mine, op=hvd.Sum, out=out) is out
    assert out.tolist() == [2.0, 5.0]


def test_pyarrow(array_ranks: RankPool) -> None:
    array_ranks.run(pyarrow)


def numba() -> None:
    import numpy as np
    from frameworks.numpy.test_libraries import given_to_the_core
    from numba import njit

    import hvd_kernel.numpy as hvd

    hvd.init()

    @njit
    def doubled(x: Any) -> Any:
        return 2 * x

    mine = doubled(np.full(3, 1.0 + hvd.rank()))
    same, places = given_to_the_core(lambda: hvd.allreduce_(mine, op=hvd.Sum))
    assert same is mine
    assert places == [(mine.ctypes.data, mine.ctypes.data)]
    assert doubled(mine).tolist() == [12.0] * 3


def test_numba(array_ranks: RankPool) -> None:
    array_ranks.run(numba)


def paddle() -> None:
    import paddle
    from frameworks.numpy.test_libraries import given_to_the_core

    import hvd_kernel.numpy as hvd

    hvd.init()
    mine = paddle.full([3], 1.0 + hvd.rank())
    result, places = given_to_the_core(lambda: hvd.allreduce(mine, op=hvd.Sum))
    assert isinstance(result, paddle.Tensor)
    assert result.numpy().tolist() == [3.0] * 3
    assert [place[0] for place in places] == [mine.data_ptr()], "read where it lies"
    assert result.data_ptr() == places[0][1], "the core's result is the tensor's memory"
    assert hvd.allgather(paddle.full([hvd.rank() + 1], hvd.rank())).numpy().tolist() == [0, 1, 1]
    same, places = given_to_the_core(lambda: hvd.allreduce_(mine, op=hvd.Sum))
    assert same is mine
    assert places == [(mine.data_ptr(), mine.data_ptr())]
    assert mine.numpy().tolist() == [3.0] * 3


def test_paddle(array_ranks: RankPool) -> None:
    array_ranks.run(paddle)


def on_device() -> None:
    """Libraries with CuPy's and Numba's interface, whose arrays the host cannot read: only their own functions copy."""
    import sys
    from types import ModuleType

    import numpy as np
    from hvdtest.exact import raises

    import hvd_kernel.numpy as hvd

    hvd.init()
    copies: list[str] = []

    class OnDevice:
        def __init__(self, host: Any) -> None:
            self._host = np.array(host)

        @property
        def __cuda_array_interface__(self) -> dict[str, Any]:
            at = self._host.ctypes.data
            return {"shape": self._host.shape, "typestr": self._host.dtype.str, "data": (at, False), "version": 3}

        def __array__(self, *_: Any, **__: Any) -> Any:
            raise TypeError("Implicit conversion to a NumPy array is not allowed.")

        def _copied(self) -> Any:
            copies.append(type(self).__module__)
            return self._host.copy()

    class Cupys(OnDevice):
        get = OnDevice._copied

    class Numbas(OnDevice):
        copy_to_host = OnDevice._copied

    cupy, numba, cuda = (ModuleType(name) for name in ("cupy_like", "numba_like", "numba_like.cuda"))
    cupy.asarray, cuda.to_device = Cupys, Numbas  # type: ignore[attr-defined]
    Cupys.__module__, Numbas.__module__ = "cupy_like", "numba_like.cuda.devicearray"
    sys.modules |= {each.__name__: each for each in (cupy, numba, cuda)}
    for kind in (Cupys, Numbas):
        copies.clear()
        mine = kind([1.0, float(hvd.rank())])
        result = hvd.allreduce(mine, op=hvd.Sum)
        assert type(result) is kind
        assert copies == [kind.__module__], "once, to the host"
        assert result._host.tolist() == [2.0, 1.0]
        both = hvd.grouped_allreduce([mine, np.ones(1)], op=hvd.Sum)
        assert [type(each) for each in both] == [kind, np.ndarray]
        out = np.empty(2)
        assert hvd.allreduce(mine, op=hvd.Sum, out=out) is out
        raises(ValueError, "cannot be overwritten from here", hvd.broadcast_, mine, 0)


def test_arrays_on_devices(array_ranks: RankPool) -> None:
    array_ranks.run(on_device)
