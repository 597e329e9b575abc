"""GPU tensors on their way to the core and back, on fakes of both: pointers, streams, lifetimes, queries."""

from __future__ import annotations

import ctypes
import gc
import weakref
from typing import Any

import numpy as np
import pytest
from hvdtest.fake_device import FakeCuda, FakeDeviceTensor, on_device

import hvd_kernel.torch as hvd
from hvd_kernel.core import collectives, handles, session, tensor
from hvd_kernel.core.tensor import DTYPES
from hvd_kernel.errors import HorovodInternalError, RankDied

torch = pytest.importorskip("torch")

FLOAT, INT64 = DTYPES["float32"], DTYPES["int64"]


class FakeBuffer:
    """Memory of the core on a device: NumPy's array interface is used in place of CUDA's."""

    def __init__(self, array: Any) -> None:
        self._bytes = np.frombuffer(array.tobytes(), np.uint8).copy()
        self.shape, self.dtype, self.device = array.shape, DTYPES[array.dtype.name], 1

    def __len__(self) -> int:
        return len(self._bytes)

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return self._bytes.__array_interface__


class FakeEvent:
    def __init__(self, log: list[Any], fails: Exception | None) -> None:
        self._log, self._fails = log, fails

    def stream_wait(self, stream: int) -> None:
        self._log.append(("stream_wait", stream))
        if self._fails is not None:
            raise self._fails


class FakeOutcome:
    def __init__(self, event: FakeEvent, buffers: list[FakeBuffer]) -> None:
        self.event, self.buffers, self.sizes = event, buffers, [1, 2]


class FakeEngine:
    """Takes device tensors and does nothing with them, unless ``writes`` are bytes for the last output."""

    rank, size = 0, 2

    def __init__(self) -> None:
        self.log: list[Any] = []
        self.trouble = ""
        self.asked: list[int] = []
        self.fails: Exception | None = None
        self.buffers: list[FakeBuffer] = []
        self.writes: Any = None

    def device_trouble(self, device: int) -> str:
        self.asked.append(device)
        return self.trouble

    def _taken(self, kind: str) -> Any:
        def take(_name: str, places: Any, *_: Any) -> int:
            self.log.append(
                (kind, places if isinstance(places, tuple) and isinstance(places[0], int) else list(places))
            )
            self._places = list(places)
            return len(self.log)

        return take

    def __getattr__(self, name: str) -> Any:
        if name in {"allreduce", "reducescatter", "allgather", "broadcast", "alltoall"}:
            return self._taken(name)
        raise AttributeError(name)

    def wait(self, _handle: int) -> FakeOutcome:
        self.log.append("wait")
        if self.writes is not None:
            ctypes.memmove(self._places[-1][1], self.writes.ctypes.data, self.writes.nbytes)
        return FakeOutcome(FakeEvent(self.log, self.fails), self.buffers)


@pytest.fixture
def core(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    made = FakeEngine()
    for name, empty in {"_owner": None, "_live": {}, "_entering": []}.items():
        monkeypatch.setattr(handles, name, empty)
    monkeypatch.setattr(tensor, "_troubles", (0, {}))
    monkeypatch.setattr(tensor, "_logged", set())
    monkeypatch.setattr(session, "_engine", made)
    monkeypatch.setattr(session, "_generation", 1)
    monkeypatch.setattr(session, "_environment", {})
    return made


@pytest.fixture
def cuda(core: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    return FakeCuda(monkeypatch)


def device_range(count: int, **how: Any) -> FakeDeviceTensor:
    return on_device(torch.arange(count, **how))


def test_in_place_sums_pass_pointers_and_order_streams(core: FakeEngine, cuda: FakeCuda) -> None:
    x = device_range(6, dtype=torch.float32).view(2, 3)
    handle = hvd.allreduce_async_(x, name="x", op=hvd.Sum)
    assert core.log == [("allreduce", [(x.data_ptr(), x.data_ptr(), (2, 3), FLOAT, 1, 0xA1)])]
    assert hvd.synchronize(handle) is x
    assert core.log[1:] == ["wait", ("stream_wait", 0xA1)]
    assert "recorded" not in x.__dict__, "its own stream orders its memory"


def test_result_is_read_only_after_the_operation(core: FakeEngine, cuda: FakeCuda) -> None:
    x = device_range(6).view(2, 3).t()  # has to be copied to be contiguous, and back
    core.writes = np.arange(6)[::-1].copy()
    assert hvd.allreduce_(x, name="x", op=hvd.Sum) is x
    (_, [place]), *rest = core.log
    assert place[0] == place[1] != x.data_ptr()
    assert (place[2:], rest) == (((3, 2), INT64, 1, 0xA1), ["wait", ("stream_wait", 0xA1)])
    assert x.tolist() == [[5, 4], [3, 2], [1, 0]]


def test_another_final_stream_is_recorded_on_all_touched_tensors(core: FakeEngine, cuda: FakeCuda) -> None:
    x = device_range(4)
    handle = hvd.allreduce_async(x, name="x", op=hvd.Sum)
    with cuda.stream(0xB1):
        out = hvd.synchronize(handle)
    assert core.log[1:] == ["wait", ("stream_wait", 0xB1)]
    assert out is not x
    assert [t.__dict__["recorded"] for t in (x, out)] == [[0xB1], [0xB1]]


def test_operands_live_until_the_stream_is_past_the_operation(core: FakeEngine, cuda: FakeCuda) -> None:
    x = device_range(4)
    gone = weakref.ref(x)
    handle = hvd.allreduce_async(x, name="x", op=hvd.Sum)
    del x
    gc.collect()
    assert gone() is not None
    hvd.synchronize(handle)
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("name", ["broadcast", "broadcast_", "reducescatter"])
def test_other_collectives_with_an_output(
    name: str, core: FakeEngine, cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collectives, "share_of", lambda shape, _: (shape[0] // 2, *shape[1:]))
    core.process_set_ranks = lambda _: range(2)  # type: ignore[attr-defined]
    x = device_range(6).view(2, 3)
    how = {"op": hvd.Sum} if name == "reducescatter" else {"root_rank": 0}
    out = getattr(hvd, name)(x, name="x", **how)
    [(_, [place]), *rest] = core.log
    assert place == (x.data_ptr(), out.data_ptr(), (2, 3), INT64, 1, 0xA1)
    assert (out is x, rest) == (name.endswith("_"), ["wait", ("stream_wait", 0xA1)])
    assert (out.shape, out.device) == ((1, 3) if name == "reducescatter" else (2, 3), torch.device("cuda", 1))


def test_gathered_rows_are_memory_of_the_core_without_a_copy(core: FakeEngine, cuda: FakeCuda) -> None:
    core.buffers = [FakeBuffer(np.arange(8, dtype=np.int64).reshape(4, 2)), FakeBuffer(np.empty((0, 2), np.float32))]
    x, y = device_range(4).view(2, 2), device_range(2, dtype=torch.float32).view(1, 2)
    first, second = hvd.synchronize(hvd.grouped_allgather_async([x, y], name="x"))
    assert core.log[0] == (
        "allgather",
        [(x.data_ptr(), (2, 2), INT64, 1, 0xA1), (y.data_ptr(), (1, 2), FLOAT, 1, 0xA1)],
    )
    assert core.log[1:] == ["wait", ("stream_wait", 0xA1)]
    assert first.tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert first.data_ptr() == core.buffers[0]._bytes.ctypes.data
    assert (second.shape, second.dtype, second.device) == ((0, 2), torch.float32, torch.device("cuda", 1))


def test_alltoall_reads_its_splits_from_the_host(core: FakeEngine, cuda: FakeCuda) -> None:
    core.buffers = [FakeBuffer(np.arange(3, dtype=np.int64))]
    x = device_range(3)
    out, received = hvd.alltoall(x, splits=torch.tensor([1, 2], dtype=torch.int32), name="x")
    assert core.log[0] == ("alltoall", (x.data_ptr(), (3,), INT64, 1, 0xA1))
    assert (out.tolist(), received.tolist(), received.is_cpu) == ([0, 1, 2], [1, 2], True)


@pytest.mark.parametrize("in_place", [False, True])
def test_a_group_is_one_operation_with_one_wait(in_place: bool, core: FakeEngine, cuda: FakeCuda) -> None:
    tensors = [device_range(3), device_range(2)]
    start = hvd.grouped_allreduce_async_ if in_place else hvd.grouped_allreduce_async
    handle = start(tensors, name="g", op=hvd.Sum)
    with cuda.stream(0xB1):
        out = hvd.synchronize(handle)
    assert [place[2:] for place in core.log[0][1]] == [((3,), INT64, 1, 0xA1), ((2,), INT64, 1, 0xA1)]
    assert core.log[1:] == ["wait", ("stream_wait", 0xB1)]
    assert all((a is b) == in_place for a, b in zip(tensors, out, strict=True))
    assert all(t.__dict__["recorded"] == [0xB1] for t in (*tensors, *out))


def test_error_after_the_wait_is_that_of_the_operation(core: FakeEngine, cuda: FakeCuda) -> None:
    core.fails = RankDied("rank 1 died", 1)
    x = device_range(4)
    handle = hvd.allreduce_async_(x, name="x", op=hvd.Sum)
    with pytest.raises(RankDied, match="rank 1 died"):
        hvd.synchronize(handle)
    assert handles._live == {}
    assert hvd.synchronize(handle) is None


# Where the core takes none.


def staged(core: FakeEngine) -> list[Any]:
    """Places of the memory that a tensor of a GPU is staged through."""
    x = device_range(4)
    places = []
    for name in ("x", "y"):
        hvd.allreduce_(x, name=name, op=hvd.Sum)
        places.append(core.log[-2][1][0])
    assert ("stream_wait", 0xA1) not in core.log
    return places


def test_an_engine_without_devices_is_queried_and_logged_once(
    core: FakeEngine, cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    core.trouble = "there is no driver: ..."
    for place in staged(core):
        assert len(place) == 4
    assert (core.asked, tensor.device_trouble(1)) == ([1], "there is no driver: ...")
    said = "hvd_kernel: tensors of a GPU are copied through host memory, which is slower: there is no driver: ..."
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [("WARNING", said)]
    monkeypatch.setattr(session, "_generation", 2)
    assert tensor.device_trouble(1) == core.trouble
    assert len(caplog.records) == 1, "the ranks met again, and the user knows"
    core.trouble = ""
    monkeypatch.setattr(session, "_generation", 3)
    assert (tensor.device_trouble(1), core.asked) == ("", [1, 1, 1]), "another engine may have another driver"


def test_each_device_is_queried(core: FakeEngine, cuda: FakeCuda) -> None:
    assert [
        tensor.device_trouble(0),
        tensor.device_trouble(1),
        tensor.device_trouble(0),
    ] == ["", "", ""]
    core.trouble = "too old"
    assert [tensor.device_trouble(2), tensor.device_trouble(0)] == ["too old", ""]
    assert core.asked == [0, 1, 2]


def test_torch_stages_silently_if_the_user_requests_it(
    core: FakeEngine, cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", "hvd_kernel")
    monkeypatch.setattr(session, "_environment", {"HVD_GPU": "staged"})
    assert [len(place) for place in staged(core)] == [4, 4]
    assert (core.asked, tensor.device_trouble(1)) == ([], "HVD_GPU=staged")
    assert caplog.records == []


def test_cpu_tensors_query_no_device(core: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "current_stream", lambda *_: pytest.fail("this is no business of CUDA's"))
    x = torch.arange(4)
    hvd.allreduce_(x, name="x", op=hvd.Sum)
    assert core.log[0] == ("allreduce", [(x.data_ptr(), x.data_ptr(), (4,), INT64)])
    assert core.asked == []


def test_error_without_an_engine_equals_horovods(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_engine", None)
    monkeypatch.setattr(session, "_generation", 7)
    monkeypatch.setattr(tensor, "_troubles", (0, {}))
    with pytest.raises(HorovodInternalError, match=r"use hvd\.init\(\)"):
        hvd.allreduce_(device_range(4), name="x")
