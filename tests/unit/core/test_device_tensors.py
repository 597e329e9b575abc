"""Tensors on a device, as the extension reads and refuses them where there is no driver."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from hvd_kernel._native import SUM, Engine, LocalHub
from hvd_kernel.core.tensor import DTYPES, from_buffer

FLOAT = DTYPES["float32"]
VALUES = np.arange(4, dtype=np.float32)
IN = (VALUES.ctypes.data, VALUES.shape, FLOAT)
IN_OUT = (VALUES.ctypes.data, VALUES.ctypes.data, VALUES.shape, FLOAT)


@pytest.fixture
def engine() -> Iterator[Engine]:
    engine = Engine(0, 1, LocalHub(1), {"cuda_driver": "/no/such/libcuda.so.1"})
    yield engine
    engine.shutdown()


def test_refusal_has_reason_and_remedy_and_counts_no_call(engine: Engine) -> None:
    trouble = engine.device_trouble(0)
    assert trouble
    with pytest.raises(ValueError, match="cannot be used here") as refused:
        engine.allreduce("", [(*IN_OUT, 0, 0)], SUM)
    assert str(refused.value) == (
        f"tensors on a device cannot be used here: {trouble}; move the tensor to the CPU first (tensor.cpu())"
    )
    assert engine.allreduce("", [IN_OUT], SUM) == 0  # the first handle
    assert engine.wait(0) is None


@pytest.mark.parametrize(
    ("tensors", "sentence"),
    [
        ([(*IN_OUT, 0)], "a tensor is a tuple of 4 values here, or of 6 on a device, not of 5"),
        ([(*IN_OUT, -1, 0)], "device -1 is not a valid device number"),
        ([(*IN_OUT, 2**31, 0)], "device 2147483648 is not a valid device number"),
        (
            [(*IN_OUT, 0, 16), (*IN_OUT, 0, 32)],
            "tensor 1 is on another stream than tensor 0; one operation has one stream",
        ),
    ],
)
def test_non_device_tensor_is_named(engine: Engine, tensors: list[tuple[object, ...]], sentence: str) -> None:
    with pytest.raises(ValueError, match=r".") as refused:
        engine.allreduce("x", tensors, SUM)  # type: ignore[arg-type]
    assert str(refused.value) == sentence
    assert engine.pending() == []


def test_results_on_the_host_have_no_mark_and_are_no_cuda_arrays(engine: Engine) -> None:
    outcome = engine.wait(engine.allgather("g", [IN]))
    assert outcome is not None
    assert outcome.event is None
    (buffer,) = outcome.buffers
    assert buffer.device == -1
    assert not hasattr(buffer, "__cuda_array_interface__")
    assert from_buffer(buffer, np.dtype(np.float32)).tolist() == [0, 1, 2, 3]
