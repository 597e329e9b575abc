"""Collectives of every kind of memory, with a fake engine: pointers, results, and lifetimes."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hvdtest import fake_array as xp

import hvd_kernel.numpy as hvd
from hvd_kernel.core import collectives, handles, session
from hvd_kernel.core.collectives import HOST
from hvd_kernel.core.tensor import DTYPES
from hvd_kernel.errors import HorovodInternalError
from hvd_kernel.numpy import device_memory

FLOAT = DTYPES["float32"]
SCALES = (1.0, 1.0)


class FakeEvent:
    def __init__(self) -> None:
        self.streams: list[int] = []

    def stream_wait(self, stream: int) -> None:
        self.streams.append(stream)


class FakeEngine:
    """Records operations, and completes them without doing anything."""

    rank, size = 1, 2

    def __init__(self) -> None:
        self.log: list[Any] = []
        self.event = FakeEvent()

    def __getattr__(self, kind: str) -> Any:
        if kind not in {"allreduce", "reducescatter", "allgather", "broadcast", "alltoall"}:
            raise AttributeError(kind)

        def enqueue(name: str, places: Any, *options: Any) -> int:
            self.log.append((kind, name, places, *options))
            return len(self.log)

        return enqueue

    def wait(self, _handle: int) -> Any:
        return SimpleNamespace(event=self.event, buffers=[], sizes=[])

    def device_trouble(self, _device: int) -> str:
        return ""


class NoDriver:
    """A driver of a GPU that does nothing."""

    stream = SimpleNamespace(cuda_stream=0xA1)

    def keep(self, _used: Any) -> None:
        """Keep nothing: nothing is asynchronous."""


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    fake = FakeEngine()
    for name, empty in {"_owner": None, "_live": {}, "_entering": []}.items():
        monkeypatch.setattr(handles, name, empty)
    monkeypatch.setattr(session, "_engine", fake)
    monkeypatch.setattr(session, "_generation", 1)
    monkeypatch.setattr(session, "_environment", {})
    monkeypatch.setattr(session, "is_initialized", lambda: True)
    monkeypatch.setattr(device_memory, "device_trouble", lambda _: "")
    monkeypatch.setattr(xp, "_driver", [NoDriver()])
    monkeypatch.setattr(xp, "asked", [])
    return fake


def rows(*values: float) -> Any:
    return np.array(values, np.float32).reshape(-1, 1)


def test_reduction_writes_to_new_memory_of_the_same_shape(engine: FakeEngine) -> None:
    x = rows(1, 2)
    (y,) = handles.synchronize(collectives.allreduce(HOST, [x], "n", hvd.Sum, SCALES, group=3, waits=True))
    place = (x.ctypes.data, y.ctypes.data, (2, 1), FLOAT)
    assert engine.log == [("allreduce", "n", [place], hvd.Sum, 1.0, 1.0, 3, True)]
    assert (y.shape, y.dtype, y is x) == ((2, 1), np.float32, False)


def test_arrays_with_gaps_are_sent_as_copies_and_overwritten(engine: FakeEngine) -> None:
    x = np.arange(6, dtype=np.float32)
    every_second = x[::2]
    assert hvd.broadcast_(every_second, root_rank=0, name="n") is every_second
    [(_, _, [place], *_)] = engine.log
    assert place[0] == place[1] != every_second.ctypes.data
    assert place[2] == (3,)


def test_group_in_place_has_places_of_its_own_arrays(engine: FakeEngine) -> None:
    x, y = rows(1), rows(2, 3)
    assert hvd.grouped_allreduce_([x, y], "n", hvd.Max, 0.5, 2.0) == [x, y]
    places = [(array.ctypes.data, array.ctypes.data, array.shape, FLOAT) for array in (x, y)]
    assert engine.log == [("allreduce", "grouped_allreduce.n", places, hvd.Max, 0.5, 2.0, 0, True)]


def test_share_of_rows_is_larger_on_the_first_ranks(engine: FakeEngine) -> None:
    (share,) = handles.synchronize(collectives.reducescatter(HOST, [rows(1, 2, 3)], "n", hvd.Sum, SCALES))
    assert share.shape == (1, 1)
    engine.rank = 0
    (share,) = handles.synchronize(collectives.reducescatter(HOST, [rows(1, 2, 3)], "n", hvd.Sum, SCALES))
    assert share.shape == (2, 1)
    with pytest.raises(ValueError, match="Reducescatter does not support scalar inputs"):
        collectives.reducescatter(HOST, [np.float32(1)], "n", hvd.Sum, SCALES)
    with pytest.raises(HorovodInternalError, match="currently only supports AVERAGE and SUM"):
        collectives.reducescatter(HOST, [rows(1)], "n", hvd.Max, SCALES)


def test_form_makes_the_result_and_operands_live_until_then(engine: FakeEngine) -> None:
    x = rows(1, 2)
    gone = weakref.ref(x)
    handle = collectives.broadcast(HOST, [x], "n", 0, form=tuple)
    del x
    gc.collect()
    assert gone() is not None
    assert type(handles.synchronize(handle)) is tuple
    gc.collect()
    assert gone() is None


def test_types_without_a_reduction_are_refused_before_the_core(engine: FakeEngine) -> None:
    for op, dtype in ((hvd.Average, np.bool_), (hvd.Max, np.complex64), (hvd.Sum, np.uint64)):
        with pytest.raises(ValueError, match=f"{np.dtype(dtype).name} is not supported by"):
            collectives.allreduce(HOST, [np.ones(2, dtype)], "n", op, SCALES)
    with pytest.raises(ValueError, match="op=9 does not exist"):
        collectives.allreduce(HOST, [rows(1)], "n", 9, SCALES)
    assert (engine.log, handles._live, handles._entering) == ([], {}, [])


# Arrays of a GPU.


def device_rows(*values: float) -> xp.Array:
    return xp.array(rows(*values))


def test_device_arrays_are_reduced_where_they_are(engine: FakeEngine) -> None:
    x = device_rows(1, 2)
    y = hvd.allreduce(x, "n", hvd.Sum)
    [(_, _, [place], *_)] = engine.log
    assert place == (x.address, y.address, (2, 1), FLOAT, 0, 0)
    assert engine.event.streams == [0xA1]  # of the library that continues with the result
    assert xp.asked == [1, 1, -1]  # the default stream for operand and result; then the consumer orders its own work


def test_device_arrays_in_place_are_never_copied(engine: FakeEngine) -> None:
    x = device_rows(1, 2)
    assert hvd.broadcast_(x, root_rank=0) is x
    assert hvd.allreduce_(x, op=hvd.Max) is x
    assert [entry[2] for entry in engine.log] == [[(x.address, x.address, (2, 1), FLOAT, 0, 0)]] * 2
    with pytest.raises(ValueError, match="contiguous"):
        hvd.allreduce_(xp.array(np.arange(4, dtype=np.float32))[::2])
    assert len(engine.log) == 2


def test_device_arrays_with_gaps_are_copied_by_their_library(engine: FakeEngine) -> None:
    x = xp.array(np.arange(4, dtype=np.float32))[::2]
    assert hvd.allreduce(x, op=hvd.Sum).shape == (2,)
    [(_, _, [place], *_)] = engine.log
    assert place[0] != x.address


def test_device_share_has_this_ranks_rows(engine: FakeEngine) -> None:
    engine.rank = 0
    share, whole = hvd.grouped_reducescatter([device_rows(1, 2, 3), device_rows(1, 2)], "n", hvd.Sum)
    assert (share.shape, whole.shape) == ((2, 1), (1, 1))
