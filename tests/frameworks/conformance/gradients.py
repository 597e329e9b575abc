"""Derivatives of the table's calls by Horovod's definitions, computed by NumPy from every rank's weights of its results.

A rank's loss is the sum of its results times its weights; its gradient is that of its operands.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from frameworks.conformance.table import MIXED_FLOATS, Options, Row, Value, each, how, rows_of, several, to_last
from hvdtest.cases import numbers


def differentiated() -> Iterator[Row]:
    half = {"prescale_factor": 2.0, "postscale_factor": 0.25}
    for dtype in ("float32", "float64"):
        for shape in ((), (4,), (3, 4, 5)):
            for op in ("Sum", "Average"):
                yield Row(f"allreduce {dtype} {op} {list(shape)}", "allreduce", each(dtype, shape), how(op=op))
        yield Row(f"allreduce {dtype} times 2 and 0.25", "allreduce", each(dtype, (4,)), how(op="Sum", **half))
        yield Row(f"broadcast {dtype}", "broadcast", each(dtype, (3, 2)), to_last)
        yield Row(f"broadcast {dtype} of rank 0", "broadcast", each(dtype, (3, 2)), how(root_rank=0))
        yield Row(f"allgather {dtype}", "allgather", rows_of(dtype, lambda place, size: place + 1, (2,)))
        yield Row(f"alltoall {dtype}", "alltoall", rows_of(dtype, lambda place, size: 2 * size))
        yield Row(
            f"alltoall {dtype} of unequal parts, the last row stays",
            "alltoall",
            rows_of(dtype, lambda place, size: sum((place + other) % 3 for other in range(size)) + 1),
            lambda place, size: {"splits": [(place + other) % 3 for other in range(size)]},
        )
        for op in ("Sum", "Average"):
            rows = rows_of(dtype, lambda place, size: 2 * size + 1, (2,))
            yield Row(f"reducescatter {dtype} {op}", "reducescatter", rows, how(op=op))
            yield Row(f"reducescatter {dtype} {op}, scaled", "reducescatter", rows, how(op=op, **half))
    for op in ("Sum", "Average"):
        yield Row(f"grouped_allreduce {op}", "grouped_allreduce", several(MIXED_FLOATS), how(op=op))
        scattered = lambda place, size: [  # noqa: E731
            Value(numbers((2 * size + 1, columns), place, "float32"), "float32") for columns in (1, 3)
        ]
        yield Row(f"grouped_reducescatter {op}", "grouped_reducescatter", scattered, how(op=op))
    gathered = lambda place, size: [  # noqa: E731
        Value(numbers((place + extra, 2), place, "float32"), "float32") for extra in (1, 2)
    ]
    yield Row("grouped_allgather", "grouped_allgather", gathered)


def weights(row: Row, place: int, size: int) -> list[Value]:
    """Return a rank's weights of its results, which differ between ranks and positions."""
    results = row.expected(place, size)[: None if row.operation.startswith("grouped") else 1]
    return [Value(numbers(value.numbers.shape, place + 7, value.dtype), value.dtype) for value in results]


def gradients(row: Row, place: int, size: int) -> list[Value]:
    """Return the gradients of a rank's operands."""
    everyone = [[value.numbers.astype(np.float64) for value in weights(row, other, size)] for other in range(size)]
    verb = row.operation.removeprefix("grouped_")
    results = []
    for number, operand in enumerate(row.operands(place, size)):
        shapes = [row.operands(other, size)[number].numbers.shape for other in range(size)]
        parts = [one[number] for one in everyone]
        options = [row.options(other, size) for other in range(size)]
        results.append(Value(np.asarray(BACK[verb](parts, place, options, shapes)), operand.dtype))
    return results


Shapes = list[tuple[int, ...]]


def _factor(options: Options) -> float:
    return float(options.get("prescale_factor", 1.0) * options.get("postscale_factor", 1.0))


def _of_allreduce(parts: list[np.ndarray], place: int, options: list[Options], shapes: Shapes) -> np.ndarray:
    total = np.sum(parts, axis=0) * _factor(options[place])
    return total / len(parts) if options[place]["op"] == "Average" else total


def _of_allgather(parts: list[np.ndarray], place: int, options: list[Options], shapes: Shapes) -> np.ndarray:
    begin = sum(shape[0] for shape in shapes[:place])
    return (np.sum(parts, axis=0) / len(parts))[begin : begin + shapes[place][0]]


def _of_broadcast(parts: list[np.ndarray], place: int, options: list[Options], shapes: Shapes) -> np.ndarray:
    mean = np.sum(parts, axis=0) / len(parts)
    return mean if place == options[place]["root_rank"] else np.zeros_like(mean)


def _of_alltoall(parts: list[np.ndarray], place: int, options: list[Options], shapes: Shapes) -> np.ndarray:
    size = len(parts)
    splits = [how.get("splits") or [shape[0] // size] * size for how, shape in zip(options, shapes, strict=True)]
    back = np.zeros(shapes[place])
    for other, part in enumerate(parts):
        to, at = sum(splits[place][:other]), sum(splits[rank][other] for rank in range(place))
        rows = splits[place][other]
        back[to : to + rows] = part[at : at + rows]
    return back


def _of_reducescatter(parts: list[np.ndarray], place: int, options: list[Options], shapes: Shapes) -> np.ndarray:
    """Horovod multiplies by the number of ranks."""
    whole = np.concatenate(parts) * _factor(options[place])
    return whole * len(parts) if options[place]["op"] == "Sum" else whole


BACK = {
    "allreduce": _of_allreduce,
    "allgather": _of_allgather,
    "broadcast": _of_broadcast,
    "alltoall": _of_alltoall,
    "reducescatter": _of_reducescatter,
}
