"""Arrays of other kinds: read by their interface, returned as the same kind; in place; and which are copied, by address."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hvdtest.exact import raises
from hvdtest.launch import RankPool

pytestmark = pytest.mark.mp


class Interface:
    """An array that has NumPy's interface alone."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return self.array.__array_interface__


class OnDevice:
    """An array on a device, as CuPy's: the host gets it by ``get``."""

    __cuda_array_interface__ = None

    def get(self) -> np.ndarray:
        return np.ones(2)


class Unreadable:
    __cuda_array_interface__ = None


def kinds() -> None:
    import torch

    import hvd_kernel.numpy as hvd

    rank, size = hvd.rank(), hvd.size()
    mean, total = (size - 1) / 2, size * (size - 1) / 2
    tensor = hvd.allreduce(torch.full((2,), float(rank)))
    assert isinstance(tensor, torch.Tensor)
    assert tensor.tolist() == [mean, mean]
    both = hvd.grouped_allreduce([torch.full((1,), float(rank)), np.full(1, float(rank))], op=hvd.Sum)
    assert [type(each) for each in both] == [torch.Tensor, np.ndarray]
    assert isinstance(hvd.allgather(torch.ones(rank + 1)), torch.Tensor)
    assert isinstance(hvd.alltoall(torch.ones(size))[0], torch.Tensor)
    assert hvd.allreduce(Interface(np.full(2, rank)), op=hvd.Sum).tolist() == [total, total]
    assert hvd.allreduce([rank, 1.0], op=hvd.Sum).tolist() == [total, size]
    assert float(hvd.allreduce(float(rank))) == mean
    assert hvd.allreduce(OnDevice(), op=hvd.Sum).tolist() == [size, size]
    raises(ValueError, "Unreadable on a device cannot be read from here", hvd.allreduce, Unreadable())


def test_every_kind_of_array_is_returned_as_the_same_kind(ranks: RankPool) -> None:
    ranks.run(kinds)


def in_place() -> None:
    import torch

    import hvd_kernel.numpy as hvd

    rank, size = hvd.rank(), hvd.size()
    total = size * (size - 1) / 2
    made: list[Any] = [
        np.full(3, float(rank)),
        torch.full((3,), float(rank)),
        Interface(np.full(3, float(rank))),
        np.full((3, 2), float(rank))[:, 0],
    ]
    for each in made:
        assert hvd.allreduce_(each, op=hvd.Sum) is each
        assert np.asarray(each).tolist() == [total] * 3
    one, two = np.full(2, rank), np.full(2, float(rank))
    assert hvd.grouped_allreduce_([one, two], op=hvd.Sum)[1] is two
    assert (one.tolist(), two.tolist()) == ([total] * 2, [total] * 2)
    root = torch.tensor([rank, 7])
    assert hvd.broadcast_(root, size - 1) is root
    assert root.tolist() == [size - 1, 7]
    out = np.empty(2)
    assert hvd.allreduce(np.full(2, float(rank)), op=hvd.Sum, out=out) is out
    assert out.tolist() == [total] * 2
    raises(
        ValueError,
        "out is float32 (2,), and the result is float64 (2,)",
        hvd.allreduce,
        np.ones(2),
        out=np.empty(2, "f4"),
    )
    frozen = np.ones(2)
    frozen.flags.writeable = False
    for wrong in ([1.0], frozen, 1.0, bytearray(8), range(3)):
        raises(ValueError, "cannot be overwritten from here", hvd.allreduce_, wrong)


def test_in_place_and_out(ranks: RankPool) -> None:
    ranks.run(in_place)


def addresses() -> None:
    """The usual path passes the operand's memory to the core, and returns the core's."""
    import torch

    import hvd_kernel.numpy as hvd
    from hvd_kernel.core import handles
    from hvd_kernel.numpy import arrays

    given: list[int] = []
    enqueue = handles.allreduce_places

    def watched(name: str, places: Any, *how: Any, **more: Any) -> int:
        given.extend(place[0] for place in places)
        return enqueue(name, places, *how, **more)

    from hvd_kernel.core import ops as core
    from hvd_kernel.numpy import ops

    at_once = ops._fast.allreduce
    ops._fast.allreduce = lambda *_: None  # the core's own function takes an array as it is
    core.allreduce_places = handles.allreduce_places = watched
    try:
        array, tensor = np.ones(1000), torch.ones(1000)
        hvd.allreduce(array)
        hvd.allreduce(tensor)
        hvd.allreduce(Interface(array))
        hvd.allreduce_(tensor)
    finally:
        core.allreduce_places = handles.allreduce_places = enqueue
        ops._fast.allreduce = at_once
    assert given == [array.ctypes.data, tensor.data_ptr(), array.ctypes.data, tensor.data_ptr()]
    result = np.ones(10)
    assert arrays.back(result, tensor).data_ptr() == result.ctypes.data
    assert ops.allreduce is hvd.allreduce


def test_arrays_are_not_copied_if_their_memory_allows(ranks: RankPool) -> None:
    ranks.run(addresses)


class Labelled:
    """A fake of a Series."""

    __module__ = "pandas.core.series"

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return np.ones(2)


class Sparse:
    """A fake of a sparse matrix."""

    def toarray(self) -> np.ndarray:
        return np.ones(2)


class Nulls(Interface):
    null_count = 1


class Meters(np.ndarray):
    """An array with a unit, which new arrays get from the old one."""

    def __array_finalize__(self, obj: Any) -> None:
        self.unit = getattr(obj, "unit", "m")


class Named(np.ndarray):
    """A subclass with nothing but another name."""


def losses() -> None:
    import torch

    import hvd_kernel.numpy as hvd

    rank, size = hvd.rank(), hvd.size()
    masked = np.ma.array([1.0, 2.0], mask=[False, rank == 0])
    lossy = {
        "numpy.ma.MaskedArray cannot be sent as an array: its mask would be lost": masked,
        "Labelled cannot be sent as an array: its labels would be lost": Labelled(),
        "Sparse cannot be sent as an array: it is sparse": Sparse(),
        "torch.Tensor cannot be sent as an array: it is sparse": torch.eye(2).to_sparse(),
        "Nulls cannot be sent as an array: its nulls would be lost": Nulls(np.ones(2)),
        "Meters cannot be sent as an array: what this subclass has besides elements": np.ones(2).view(Meters),
    }
    for text, value in lossy.items():
        for call in (hvd.allreduce, hvd.allgather, hvd.alltoall, hvd.reducescatter, hvd.allreduce_):
            raises(ValueError, text, call, value)
        raises(ValueError, text, hvd.broadcast, value, 0)
        raises(ValueError, text, hvd.broadcast_, value, 0)
        raises(ValueError, text, hvd.grouped_allreduce, [np.ones(2), value])
        raises(ValueError, text, hvd.allreduce, np.ones(2), out=value)
    assert masked.tolist() == [1.0, None if rank == 0 else 2.0]
    for kind in (np.matrix, Named):
        whole = hvd.allreduce(np.full((1, 2), float(rank)).view(kind), op=hvd.Sum)
        assert (type(whole), whole.tolist()) == (kind, [[size * (size - 1) / 2] * 2])
        mine = np.full((1, 2), float(rank)).view(kind)
        assert hvd.broadcast_(mine, size - 1) is mine
        assert mine.tolist() == [[size - 1.0] * 2]
    assert hvd.allgather(bytearray([rank])).tolist() == list(range(size))
    assert hvd.allgather(range(rank, rank + 1)).tolist() == list(range(size))


def test_values_that_an_array_would_lose_are_refused(ranks: RankPool) -> None:
    ranks.run(losses)


def read_only() -> None:
    import tempfile
    from pathlib import Path

    import torch

    import hvd_kernel.numpy as hvd
    import hvd_kernel.torch as hvd_torch

    rank, size = hvd.rank(), hvd.size()
    total = float(size * (size - 1) // 2)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.npy"
        np.save(path, np.full(4, float(rank)))
        mapped = np.load(path, mmap_mode="r")
        frozen = np.full(4, float(rank))
        frozen.flags.writeable = False
        for array in (mapped, frozen, np.broadcast_to(float(rank), 4), np.frombuffer(frozen.tobytes())):
            assert hvd.allreduce(array, op=hvd.Sum, prescale_factor=2.0).tolist() == [2 * total] * 4
            assert type(hvd.broadcast(array, size - 1)) is np.ndarray
            assert hvd.allgather(array).tolist() == [float(r) for r in range(size) for _ in range(4)]
            for call in (
                hvd.allreduce_,
                lambda each: hvd.broadcast_(each, 0),
                lambda each: hvd.grouped_allreduce_([each]),
            ):
                raises(ValueError, "is read-only and cannot be overwritten", call, array)
            raises(ValueError, "is read-only and cannot be overwritten", hvd.allreduce, np.ones(4), out=array)
            assert array.tolist() == [float(rank)] * 4
        with np.testing.suppress_warnings() as quiet:
            quiet.filter(UserWarning)
            tensor = torch.from_numpy(mapped)  # torch does not know that the memory is read-only
        assert hvd_torch.allreduce(tensor, op=hvd.Sum, prescale_factor=2.0).tolist() == [2 * total] * 4
        assert hvd_torch.broadcast(tensor, size - 1).tolist() == [size - 1.0] * 4


def test_read_only_arrays_are_read_and_never_written(ranks: RankPool) -> None:
    ranks.run(read_only)
