"""Many operations at once: every rank starts them in its own order, all in flight together, and checks every result.

Terms.
  case  a name, what starts it (giving a handle), and the result that is right
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from hvdtest.exact import same

if TYPE_CHECKING:
    import torch

BATCH = 64
OPS = ("Average", "Sum", "Min", "Max", "Product")
FLOATS = ("float16", "bfloat16", "float32", "float64")
COMPLEX = ("complex64", "complex128")
WHOLE = ("uint8", "int8", "uint16", "int16", "int32", "int64")
MOVED = (
    *("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"),
    *("uint32", "uint64", "complex32"),
)
REDUCED = (*WHOLE, *FLOATS, *COMPLEX, "bool")


@dataclass(frozen=True)
class Case:
    name: str
    start: Callable[[], int]
    want: Any  # a tensor, or several; or a function that checks the result


def run(cases: Iterable[Case], seed: int) -> dict[str, Any]:
    """Return the errors, case by case, and a digest of all results."""
    import hvd_kernel.torch as hvd

    wrong: list[str] = []
    digest = hashlib.sha256()
    listed = list(cases)
    for begin in range(0, len(listed), BATCH):
        batch = listed[begin : begin + BATCH]
        order = np.random.default_rng(seed + begin).permutation(len(batch)).tolist()
        handles = {i: batch[i].start() for i in order}
        for i, case in enumerate(batch):
            try:
                got = hvd.synchronize(handles[i])
                compare(got, case.want, case.name)
                digest.update(case.name.encode() + raw(got))
            except (AssertionError, RuntimeError) as error:
                wrong.append(f"{case.name}: {str(error)[:300]}")
    return {"cases": len(listed), "wrong": wrong[:20], "wrong_count": len(wrong), "digest": digest.hexdigest()}


def compare(got: Any, want: Any, name: str) -> None:
    if callable(want):
        want(got)
    elif isinstance(want, (list, tuple)):
        assert len(got) == len(want), f"{len(got)} results"
        for number, (one, other) in enumerate(zip(got, want, strict=True)):
            same(bits(one), bits(other), f"{name}[{number}]")
    else:
        same(bits(got), bits(want), name)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """Types without arithmetic cannot be compared by torch: their bytes can."""
    import torch

    name = str(tensor.dtype).removeprefix("torch.")
    kinds = {1: torch.uint8, 4: torch.int32, 8: torch.int64}
    return tensor.view(kinds[tensor.element_size()]) if name in MOVED else tensor


def raw(got: Any) -> bytes:
    import torch

    if isinstance(got, (list, tuple)):
        return b"".join(raw(one) for one in got)
    return bytes(got.detach().reshape(-1).view(torch.uint8).numpy()) if got.numel() else b"-"


def reducible(dtype: str, op: str) -> bool:
    if dtype in COMPLEX:
        return op not in {"Min", "Max"}
    return dtype != "bool" or op != "Average"


def numbers(shape: tuple[int, ...], rank: int, dtype: str, op: str = "Sum") -> np.ndarray:
    """Return numbers whose reduction over 8 ranks is exact in the type; different on every rank and at every index.

    Whole ones for an average are near the ends of the type's range: sums of them do not fit.
    """
    count = int(np.prod(shape, dtype=np.int64))
    base = np.arange(count, dtype=np.int64) * 7 + rank * 5 + 1
    if dtype == "bool":
        plain = base % 3 != 0 if op in {"Product", "Min"} else base % 5 == 0
    elif op == "Product":
        plain = np.array([1, 2, 1, 2, 1])[base % 5] if dtype.startswith("u") else np.array([1, 2, -1, 1, -2])[base % 5]
    elif op == "Average" and dtype in WHOLE:
        ends = np.iinfo(dtype)
        plain = np.where(base % 3 == 0, ends.min + base % 16, ends.max - base % 16)
    elif dtype.startswith("u") or dtype in MOVED:
        plain = base % 16
    else:
        plain = base % 31 - 15
    if dtype in COMPLEX:
        plain = plain + 1j * np.roll(plain, 1)
    return np.asarray(plain).reshape(shape)


def reduced(parts: list[np.ndarray], dtype: str, op: str) -> np.ndarray:
    """NumPy's answer."""
    stack, size = np.stack(parts), len(parts)
    if dtype == "bool":
        return np.asarray(stack.any(0) if op in {"Sum", "Max"} else stack.all(0))
    if op == "Average" and dtype in WHOLE:  # exact, then toward zero
        total = stack.astype(object).sum(0)
        return np.asarray(np.abs(total) // size * np.sign(total)).astype(np.int64)
    if op == "Average":
        total = stack.sum(0)
        if dtype in COMPLEX:  # NumPy multiplies by the reciprocal there
            return np.asarray(total.real / size + 1j * (total.imag / size))
        return np.asarray(total / size)
    function: Any = {"Sum": np.sum, "Min": np.min, "Max": np.max, "Product": np.prod}[op]
    return np.asarray(function(stack, axis=0))


def torch_of(array: np.ndarray, dtype: str) -> torch.Tensor:
    import torch

    plain = torch.from_numpy(np.ascontiguousarray(array).reshape(array.shape))
    kind = getattr(torch, dtype)
    if dtype in {"float16", "bfloat16"} and plain.dtype == torch.float64:
        plain = plain.float()  # the core divides in float32 and rounds once more
    return plain.to(kind)
