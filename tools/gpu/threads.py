"""Ranks as threads of one process on one device, where their kernels run at the same time: speed of the ring. Markdown.

Terms.
  slices      the ring as it is for any memory: pack, fold, unpack, each rank in the order of its stream
  persistent  one kernel of each rank that stays until all is done, over slots in the memory of its neighbour
  shared      the same tensors in memory that the ranks share: folded from all into all
  limit       see measure: the bytes that a way moves, at the speed of a copy within the device, from 64 MiB on
"""

from __future__ import annotations

import statistics
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from hvdtest.gpu import BEYOND_L2

from hvd_kernel._native import SUM, Engine, LocalHub
from hvd_kernel.core.tensor import DTYPES

SIZES = {"1 MiB": 1 << 20, "16 MiB": 1 << 24, "64 MiB": 1 << 26, "256 MiB": 1 << 28}
ROUNDS, TOGETHER = 7, 10
MOVED: dict[str, Callable[[int], int]] = {
    "slices": lambda n: 5 * n + 1,
    "persistent": lambda n: 6 * n - 4,
    "shared": lambda n: 2 * n,
}
FORMS = {"slices": ("slices", "shared"), "persistent": ("persistent",)}
FLOAT32 = DTYPES["float32"]


class Device(Protocol):
    """Resources of a rank on its device: a stream of its own, and memory."""

    stream: int

    def floats(self, count: int) -> Any: ...
    def pointer(self, memory: Any) -> int: ...
    def wait(self) -> None: ...


class Cuda:
    """torch's device 0."""

    def __init__(self) -> None:
        import torch

        self._torch, self._stream = torch, torch.cuda.Stream(0)
        self.stream = self._stream.cuda_stream

    def floats(self, count: int) -> Any:
        with self._torch.cuda.stream(self._stream):
            return self._torch.zeros(count, device="cuda:0")

    def pointer(self, memory: Any) -> int:
        return int(memory.data_ptr())

    def wait(self) -> None:
        self._stream.synchronize()


def took(n: int, sizes: list[int], make: Callable[[], Device], options: dict[str, str]) -> dict[tuple[str, int], float]:
    """Return the seconds of one allreduce, by way and bytes: the median of rounds of several that follow one another."""
    times: dict[tuple[str, int], float] = {}
    for form, ways in FORMS.items():
        times |= _took(n, sizes, make, {"gpu_ring": form, **options}, ways)
    return times


def _took(
    n: int, sizes: list[int], make: Callable[[], Device], options: dict[str, str], ways: tuple[str, ...]
) -> dict[tuple[str, int], float]:
    hub, together = LocalHub(n), threading.Barrier(n, timeout=120)
    times: dict[tuple[str, int], float] = {}
    errors: list[BaseException] = []

    def rank(number: int) -> None:
        try:
            engine = Engine(number, n, hub, {"gpu_operations": "ring", **options})
            device = make()
            for size in sizes:
                for way in ways:
                    begin = _place(engine, device, way, size)
                    seconds = _one(engine, device, f"{way}.{size}", begin, size, together)
                    if number == 0:
                        times[way, size] = seconds
            together.wait()
            engine.shutdown()
        except BaseException as error:
            errors.append(error)
            together.abort()

    threads = [threading.Thread(target=rank, args=(number,), daemon=True) for number in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise next((error for error in errors if not isinstance(error, threading.BrokenBarrierError)), errors[0])
    return times


def _place(engine: Engine, device: Device, way: str, size: int) -> Any:
    if way != "shared":
        return device.floats(size // 4)
    outcome = engine.wait(engine.allocate_shared(size, 0))
    assert outcome is not None
    return outcome.buffers[0]


def _one(engine: Engine, device: Device, name: str, memory: Any, size: int, together: threading.Barrier) -> float:  # noqa: PLR0917
    pointer = memory.pointer if hasattr(memory, "pointer") else device.pointer(memory)
    place = (pointer, pointer, (size // 4,), FLOAT32, 0, device.stream)

    def all_of_them() -> None:
        handles = [engine.allreduce(f"{name}.{i}", [place], SUM) for i in range(TOGETHER)]
        for handle in handles:
            outcome = engine.wait(handle)
            assert outcome is not None
            outcome.event.stream_wait(device.stream)
        device.wait()

    seconds = []
    for _ in range(ROUNDS):
        together.wait()
        begin = time.perf_counter()
        all_of_them()
        together.wait()
        seconds.append((time.perf_counter() - begin) / TOGETHER)
    return statistics.median(seconds[1:])


def main(copy: float) -> None:
    """Print the table for 2 and 4 ranks; copy: bytes per second that the device reads and writes."""
    print("\n| ranks as threads | size | way | ms | busbw GB/s | of the limit |", flush=True)
    print("| --- | --- | --- | --- | --- | --- |", flush=True)
    for n in (2, 4):
        times = took(n, list(SIZES.values()), Cuda, {})
        for label, size in SIZES.items():
            for way, moved in MOVED.items():
                seconds = times[way, size]
                busbw = 2 * (n - 1) / n * size / seconds / 1e9
                share = f"{100 * moved(n) * size / copy / seconds:.0f} %" if size >= BEYOND_L2 else ""
                print(f"| {n} | {label} | {way} | {1e3 * seconds:.3f} | {busbw:.2f} | {share} |", flush=True)


if __name__ == "__main__":
    main(float(sys.argv[1]))
