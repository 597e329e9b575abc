"""Gradients on the fake driver's device while rank 0's device is busy: number and contents of the resulting operations.

Terms.
  gate   rank 0's stream is held until all ranks have asked for all gradients: the first is in flight until then
"""

from __future__ import annotations

import ctypes
import math
import time
from typing import Any

import numpy as np
from hvdtest import fake_cuda_driver

from hvd_kernel._native import SUM
from hvd_kernel.core.tensor import DTYPES

GRADIENTS = 160
HOLD_S = 0.02  # native/engine/controller/news.h: hold_ns
IN_TURNS = 5  # native/engine/controller/fusion.cc: kInTurns
FLOAT32 = DTYPES["float32"]


def most_operations(seconds: float) -> int:
    """Return the most that the rule allows while one operation is in flight for that long.

    That one, one whenever it has taken as long again, and all the rest when it is done.
    """
    return 2 + max(0, math.floor(math.log2(max(seconds, HOLD_S) / HOLD_S)) + 1)


def most_in_turns(seconds: float) -> int:
    """Return the maximum that the rule allows in a time when processes share the device by turns."""
    return 1 + math.ceil(seconds / (IN_TURNS * HOLD_S))


def reduce_behind_gate(engine: Any, rank: int, size: int, driver: str) -> tuple[int, float]:
    """Sum the gradients; return the number of operations, and the seconds, gate included."""
    device = fake_cuda_driver.FakeCudaDriver(driver)
    stream, calls = device.stream.cuda_stream, ctypes.CDLL(driver)
    gradients = [np.arange(1 + number, dtype=np.float32) + rank for number in range(GRADIENTS)]
    device.keep(gradients)
    cursor, _ = engine.trace(0)
    engine.wait(engine.barrier("begin"))
    begin = time.monotonic()
    if rank == 0:
        calls.fake_cuda_hold(ctypes.c_void_p(stream))
    handles = []
    for number, each in enumerate(gradients):
        place = (each.ctypes.data, each.ctypes.data, each.shape, FLOAT32, 0, stream)
        handles.append(engine.allreduce(f"gradient.{number}", [place], SUM))
    engine.wait(engine.barrier("asked"))
    while any(each["missing"] for each in engine.pending()):  # rank 0 knows
        time.sleep(0.001)
    if rank == 0:
        calls.fake_cuda_release(ctypes.c_void_p(stream))
    for handle in handles:
        engine.wait(handle).event.stream_wait(stream)
    device.wait()
    seconds = time.monotonic() - begin
    for number, each in enumerate(gradients):
        want = size * np.arange(1 + number, dtype=np.float32) + sum(range(size))
        assert each.tobytes() == want.astype(np.float32).tobytes(), f"gradient {number} on rank {rank}: {each}"
    _, records = engine.trace(cursor)
    shares = [detail for *_, phase, name, _, detail in records if phase == "ALLREDUCE" and name.startswith("gradient.")]
    assert len(shares) == GRADIENTS
    return round(sum(1 / share for share in shares)), seconds
