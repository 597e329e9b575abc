"""Table of calls that every frontend must answer alike: operands of each rank, options, and NumPy's results or the error.

Terms.
  row      one call, made by every rank of a team
  place    position of a rank in its team; the team is all ranks, or the members of a process set
  subject  rows that are run together, by one test per framework
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hvdtest.cases import FLOATS, MOVED, OPS, REDUCED, WHOLE, numbers, reduced, reducible

from hvd_kernel.core.ops import SPLITS_ARE_A_VECTOR, SPLITS_ARE_INT32, SPLITS_ARE_INTEGERS
from hvd_kernel.core.tensor import not_reduced

Options = Mapping[str, Any]

SHAPES = ((), (0,), (1,), (7,), (2, 0, 3), (4, 1, 9), (1000,), (100_003,))
MIXED = (("float32", (5, 3)), ("int32", (7,)), ("uint8", (2, 2)))
MIXED_FLOATS = (("float64", (1,)), ("float32", (2, 3)), ("float64", (3,)))
ODDLY_MIXED = (*MIXED, ("bfloat16", ()), ("int64", (0,)), ("float64", (259,)))


@dataclass(frozen=True)
class Value:
    """Numbers for an array of a framework: wide enough to be exact, with the type that they are to have there."""

    numbers: np.ndarray
    dtype: str


@dataclass(frozen=True)
class Refusal:
    """Error that a call raises: the class of hvd_kernel or Python, and a part of its message."""

    kind: str
    text: str


Operands = Callable[[int, int], list[Value]]  # of the rank at a place in a team of a size
Chosen = Callable[[int, int], Options]  # the same for options


@dataclass(frozen=True)
class Row:
    name: str
    operation: str
    operands: Operands
    options: Chosen = lambda place, size: {}
    refusal: Callable[[int], Refusal] | None = None  # by the size of the team
    sweep: bool = False  # one of many sizes and shapes, which differ in the core alone
    own_shapes: bool = False  # the ranks' operands or results have shapes of their own, unknown to a compiled program
    strided: bool = False  # the operands are not contiguous
    at_least: int = 1  # ranks
    results: Callable[[list[list[Value]], int], list[Value]] | None = field(default=None)  # instead of NumPy's

    def expected(self, place: int, size: int) -> list[Value]:
        """Return the results of the rank at a place; the count of rows received from each rank follows those of alltoall."""
        everyone = [self.operands(other, size) for other in range(size)]
        if self.results is not None:
            return self.results(everyone, place)
        reference = REFERENCES[self.operation.removeprefix("grouped_").rstrip("_")]
        options = [self.options(other, size) for other in range(size)]
        parts = zip(*everyone, strict=True)
        return [value for part in parts for value in reference(list(part), place, options)]


# NumPy's results


def _reduced(parts: list[Value], options: Options) -> Value:
    """Whole numbers are scaled in float64 and cut off, at the ends of their type too."""
    dtype, op = parts[0].dtype, options.get("op", "Average")
    before, after = options.get("prescale_factor", 1.0), options.get("postscale_factor", 1.0)
    if before == after == 1.0:
        return Value(reduced([part.numbers for part in parts], dtype, op), dtype)
    total = reduced([part.numbers * before for part in parts], "float64", op) * after
    if dtype in WHOLE:
        ends = np.iinfo(dtype)
        return Value(np.clip(np.trunc(total), ends.min, ends.max).astype(np.int64), dtype)
    return Value(total, dtype)


def _allreduce(parts: list[Value], place: int, options: list[Options]) -> list[Value]:
    return [_reduced(parts, options[place])]


def _allgather(parts: list[Value], place: int, options: list[Options]) -> list[Value]:
    return [Value(np.concatenate([part.numbers for part in parts]), parts[0].dtype)]


def _broadcast(parts: list[Value], place: int, options: list[Options]) -> list[Value]:
    return [parts[options[place]["root_rank"]]]


def _alltoall(parts: list[Value], place: int, options: list[Options]) -> list[Value]:
    size, received = len(parts), []
    for part, how in zip(parts, options, strict=True):
        splits = [int(rows) for rows in how.get("splits") or [len(part.numbers) // size] * size]
        received.append(np.split(part.numbers, np.cumsum(splits))[place])
    counts = np.array([len(rows) for rows in received])
    return [Value(np.concatenate(received), parts[0].dtype), Value(counts, "int32")]


def _reducescatter(parts: list[Value], place: int, options: list[Options]) -> list[Value]:
    whole = _reduced(parts, options[place])
    return [Value(np.array_split(whole.numbers, len(parts))[place], whole.dtype)]


REFERENCES = {
    "allreduce": _allreduce,
    "allgather": _allgather,
    "broadcast": _broadcast,
    "alltoall": _alltoall,
    "reducescatter": _reducescatter,
}


# Operands and options


def each(dtype: str, shape: tuple[int, ...], op: str = "Sum") -> Operands:
    """Numbers that differ by rank and place, of one shape."""
    return lambda place, size: [Value(numbers(shape, place, dtype, op), dtype)]


def rows_of(dtype: str, count: Callable[[int, int], int], rest: tuple[int, ...] = (3,), op: str = "Sum") -> Operands:
    """Return the values of all rows that a rank at a position in a set has."""
    return lambda place, size: [Value(numbers((count(place, size), *rest), place, dtype, op), dtype)]


def plain(*pairs: tuple[Any, str]) -> Operands:
    """Numbers that are the same on every rank."""
    return lambda place, size: [Value(np.array(value), dtype) for value, dtype in pairs]


def how(**options: Any) -> Chosen:
    return lambda place, size: options


NO_OPTIONS = how()


def to_last(place: int, size: int) -> Options:
    return {"root_rank": size - 1}


# Rows with results


def reductions() -> Iterator[Row]:
    for dtype in REDUCED:
        for op in OPS if dtype != "bool" else ("Sum", "Product", "Min", "Max"):
            if not reducible(dtype, op):
                continue
            operands = each(dtype, (3, 5), op)
            for operation in ("allreduce", "allreduce_"):
                yield Row(f"{operation} {dtype} {op}", operation, operands, how(op=op))
            for shape in SHAPES if op in {"Sum", "Average"} else ((100_003,),):
                name = f"allreduce {dtype} {op} {list(shape)}"
                yield Row(name, "allreduce", each(dtype, shape, op), how(op=op), sweep=True)
    yield Row("allreduce, average by default", "allreduce", each("float32", (2,)))
    yield Row("allreduce of a scalar", "allreduce", each("float32", ()), how(op="Sum"))
    yield Row("allreduce of nothing", "allreduce", each("float32", (0, 3)), how(op="Sum"))
    for name, average in (("average", True), ("sum", False)):
        wanted = how(op="Average" if average else "Sum")
        yield Row(
            f"allreduce, Horovod's older word for {name}",
            "allreduce",
            each("float32", (2,)),
            how(average=average),
            results=lambda parts, place, wanted=wanted: [_reduced([part[0] for part in parts], wanted(0, 1))],
        )
    for dtype in (*FLOATS, "int32"):
        for before, after in ((0.5, 1.0), (1.0, 0.25), (2.0, 0.125), (0.5, 4.0)):
            yield Row(
                f"allreduce {dtype} times {before} and {after}",
                "allreduce",
                lambda place, size, dtype=dtype: [Value(numbers((40,), place, dtype) * 4, dtype)],
                how(op="Sum", prescale_factor=before, postscale_factor=after),
            )
    scales = {"prescale_factor": 0.5, "postscale_factor": 4.0}
    yield Row("allreduce average times 0.5 and 4", "allreduce", each("float64", (10,)), how(op="Average", **scales))
    yield Row(
        "allreduce float64 of thirds",
        "allreduce",
        plain(([1.0], "float64")),
        how(op="Sum", prescale_factor=1 / 3, postscale_factor=0.5),
    )
    yield Row(
        "allreduce uint8 of a sum that does not fit, halved",
        "allreduce",
        lambda place, size: [Value(np.array([[200, 250], [100, 250]][place % 2]), "uint8")],
        how(op="Sum", postscale_factor=0.5),
    )
    for name in ("fp16", "bf16"):
        yield Row(
            f"allreduce compressed to {name}",
            "allreduce",
            lambda place, size: [Value(np.full(3, 1.0 + 2.0**-12) * (place + 1), "float32")],
            how(op="Sum", compression=name),
            results=lambda parts, place: [Value(sum(np.round(part[0].numbers) for part in parts), "float32")],
        )
    for dtype in ("float32", "int64"):
        yield Row(f"allreduce {dtype}, strided", "allreduce", each(dtype, (5, 7)), how(op="Sum"), strided=True)
        yield Row(f"allreduce_ {dtype}, strided", "allreduce_", each(dtype, (5, 7)), how(op="Sum"), strided=True)


def movements() -> Iterator[Row]:
    for dtype in (*REDUCED, *MOVED):
        yield Row(f"allgather {dtype}", "allgather", each(dtype, (2, 3)))
        for operation in ("broadcast", "broadcast_"):
            yield Row(f"{operation} {dtype}", operation, each(dtype, (5, 7)), to_last)
        yield Row(f"alltoall {dtype}", "alltoall", rows_of(dtype, lambda place, size: 2 * size))
        unequal = rows_of(dtype, lambda place, size: (3 * place + 1) % 4)
        yield Row(f"allgather {dtype} of unequal parts", "allgather", unequal, own_shapes=True)
        splits = lambda place, size: [(place + 2 * other) % 4 for other in range(size)]  # noqa: E731
        sent = rows_of(dtype, lambda place, size, splits=splits: sum(splits(place, size)))
        yield Row(
            f"alltoall {dtype} of unequal parts",
            "alltoall",
            sent,
            lambda place, size, splits=splits: {"splits": splits(place, size)},
            own_shapes=True,
        )
        for shape in SHAPES if dtype in REDUCED else ():
            for root in ("first", "last"):
                root_rank = to_last if root == "last" else how(root_rank=0)
                name = f"broadcast {dtype} of the {root} {list(shape)}"
                yield Row(name, "broadcast", each(dtype, shape), root_rank, sweep=True)
    counts: dict[str, Callable[[int, int], int]] = {
        "rising": lambda place, size: place,
        "no": lambda place, size: 0,
        "three": lambda place, size: 3,
    }
    for text, count in counts.items():
        for rest in ((), (3,), (2, 5)):
            for dtype in ("float32", "uint8"):
                name = f"allgather {dtype} of {text} rows of {list(rest)}"
                yield Row(name, "allgather", rows_of(dtype, count, rest), own_shapes=True, sweep=rest == (2, 5))
    exchanges: dict[str, tuple[Callable[[int, int], int], Callable[[int, int], Any]]] = {
        "to one rank": (lambda place, size: 3, lambda place, size: [3] + [0] * (size - 1)),
        "to the last rank": (lambda place, size: 3, lambda place, size: [0] * (size - 1) + [3]),
        "of fewer rows than there are": (lambda place, size: size + 2, lambda place, size: [1] * size),
    }
    for text, (count, split) in exchanges.items():
        options = lambda place, size, split=split: {"splits": split(place, size)}  # noqa: E731
        yield Row(f"alltoall {text}", "alltoall", rows_of("int32", count, ()), options, own_shapes=True)
    yield Row(
        "alltoall, splits in an array of int32",
        "alltoall",
        rows_of("float32", lambda place, size: size * (place + 1)),
        lambda place, size: {"splits": [place + 1] * size, "splits_dtype": "int32"},
        own_shapes=True,
    )


def shares() -> Iterator[Row]:
    for dtype in REDUCED:
        for op in ("Sum", "Average") if dtype != "bool" else ("Sum",):
            for rest in ((), (3,)):
                name = f"reducescatter {dtype} {op} of rows of {list(rest)}"
                operands = rows_of(dtype, lambda place, size: 2 * size, rest, op)
                yield Row(name, "reducescatter", operands, how(op=op), sweep=not rest)
            uneven = rows_of(dtype, lambda place, size: 2 * size + 1, (3,), op)
            yield Row(f"reducescatter {dtype} {op}, uneven", "reducescatter", uneven, how(op=op), own_shapes=True)
    counts: dict[str, Callable[[int, int], int]] = {
        "1 row": lambda place, size: 1,
        "no rows": lambda place, size: 0,
        "3 rows each but 1": lambda place, size: 3 * size - 1,
        "40,000 rows each": lambda place, size: 40_000 * size,
    }
    for text, count in counts.items():
        for dtype in ("float32", "int32"):
            operands = rows_of(dtype, count, (2,), "Average")
            yield Row(f"reducescatter {dtype} of {text}", "reducescatter", operands, how(op="Average"), own_shapes=True)
    yield Row("reducescatter, average by default", "reducescatter", rows_of("float32", lambda place, size: size))
    for op in ("Sum", "Average"):
        yield Row(
            f"reducescatter {op} times 0.5 and 3",
            "reducescatter",
            rows_of("float32", lambda place, size: 2 * size),
            how(op=op, prescale_factor=0.5, postscale_factor=3.0),
        )


def several(kinds: tuple[tuple[str, tuple[int, ...]], ...], op: str = "Sum") -> Operands:
    return lambda place, size: [Value(numbers(shape, place, dtype, op), dtype) for dtype, shape in kinds]


def groups() -> Iterator[Row]:
    for text, kinds in {"": MIXED, ", odd shapes": ODDLY_MIXED}.items():
        for op in OPS:
            for operation in ("grouped_allreduce", "grouped_allreduce_"):
                yield Row(f"{operation} {op}{text}", operation, several(kinds, op), how(op=op))
    kinds = (("float32", (3,)), ("int32", (2, 2)), ("float32", (1,)))
    for name, operands in {
        "": lambda place, size: [Value(numbers((2, *shape), place, dtype), dtype) for dtype, shape in kinds],
        " of unequal parts": lambda place, size: [
            Value(numbers((place + extra, *shape), place, dtype), dtype)
            for extra, (dtype, shape) in enumerate(kinds, 1)
        ],
        " with an empty part": lambda place, size: [
            Value(numbers((place, 2), place, "float32"), "float32"),
            Value(numbers((1,), place, "bool"), "bool"),
        ],
    }.items():
        yield Row(f"grouped_allgather{name}", "grouped_allgather", operands, own_shapes=bool(name))
    yield Row("grouped_broadcast", "grouped_broadcast", several(MIXED), to_last)
    for op in ("Sum", "Average"):
        for name, extra in (("", 0), (", uneven", 1)):
            yield Row(
                f"grouped_reducescatter {op}{name}",
                "grouped_reducescatter",
                lambda place, size, op=op, extra=extra: [
                    Value(numbers((2 * size + extra, *shape), place, dtype, op), dtype) for dtype, shape in kinds
                ],
                how(op=op),
                own_shapes=bool(extra),
            )


# Rows with errors


def refused(kind: str, text: str) -> Callable[[int], Refusal]:
    return lambda size: Refusal(kind, text.format(size=size))


def _odd(place: int) -> bool:
    return place == 1


def disagreements() -> Iterator[Row]:
    """Let rank 1 make another call than the others: every rank raises Mismatch, with the same text."""

    def row(name: str, text: str, operands: Operands, options: Chosen = NO_OPTIONS) -> Row:
        operation = name.split(",", maxsplit=1)[0]
        return Row(name, operation, operands, options, refused("Mismatch", f"Mismatched {text}"), at_least=2)

    def shaped(shape: tuple[int, ...], odd: tuple[int, ...]) -> Operands:
        return lambda place, size: [Value(np.ones(odd if _odd(place) else shape), "float32")]

    def typed(*dtypes: str) -> Operands:
        return lambda place, size: [
            Value(np.ones(2 * size), "int32" if _odd(place) and dtype == "?" else dtype.replace("?", "float32"))
            for dtype in dtypes
        ]

    types = "data types: One rank had type "
    yield row("allreduce, types", types, typed("?"))
    yield row("allgather, types", types, typed("?"))
    yield row("broadcast, types", types, typed("?"), how(root_rank=0))
    yield row("alltoall, types", types, typed("?"))
    yield row("reducescatter, types", types, typed("?"))
    yield row("grouped_allreduce, types", types, typed("float32", "?"))
    yield row(
        "grouped_allreduce, numbers of tensors",
        "ALLREDUCE group sizes: One rank sent ",
        lambda place, size: [Value(np.ones(2), "float32")] * (2 + _odd(place)),
    )
    shapes = "{} tensor shapes: One rank sent a tensor of shape ["
    yield row("allreduce, shapes", shapes.format("ALLREDUCE"), shaped((4,), (3,)))
    yield row("allreduce, dimensions", shapes.format("ALLREDUCE"), shaped((4,), (2, 2)))
    yield row("allgather, shapes", "ALLGATHER tensor shapes", shaped((2, 3), (2, 4)))
    yield row("allgather, dimensions", "ALLGATHER tensor shapes", shaped((2,), (2, 3)))
    yield row("broadcast, shapes", "BROADCAST tensor shapes", shaped((4,), (3,)), how(root_rank=0))
    yield row("reducescatter, shapes", "REDUCESCATTER tensor shapes", shaped((4, 2), (4, 3)))
    yield row(
        "alltoall, shapes",
        "ALLTOALL tensor shapes",
        lambda place, size: [Value(np.ones((size, 2 + _odd(place))), "float32")],
    )
    op = lambda place, size: {"op": "Sum" if _odd(place) else "Average"}  # noqa: E731
    ones = plain((np.ones(4), "float32"))
    yield row("allreduce, operators", "reduction operation: ", ones, op)
    yield row("reducescatter, operators", "reduction operation: ", plain((np.ones((4, 2)), "float32")), op)
    yield row(
        "allreduce, factors",
        "prescale and/or postscale factors: ",
        ones,
        lambda place, size: {"op": "Sum", "prescale_factor": 2.0 if _odd(place) else 1.0},
    )
    yield row(
        "broadcast, roots",
        "BROADCAST root ranks: One rank specified root rank ",
        ones,
        lambda place, size: {"root_rank": int(_odd(place))},
    )


def arguments() -> Iterator[Row]:
    """The call is wrong on its own: each rank refuses it before anything is sent."""

    def row(name: str, kind: str, text: str, operands: Operands, options: Chosen = NO_OPTIONS) -> Row:
        operation = name.split(",", maxsplit=1)[0]
        return Row(name, operation, operands, options, refused(kind, text))

    wrong = "ValueError"
    ones = plain((np.ones(3), "float32"))
    rows = rows_of("float32", lambda place, size: 2 * size, (2,))
    for dtype, op in (
        ("bool", "Average"),
        ("complex64", "Min"),
        ("complex128", "Max"),
        ("int32", "Adasum"),
        ("float8_e5m2", "Sum"),
        *((dtype, op) for dtype in ("uint32", "uint64") for op in ("Sum", "Average")),
    ):
        text = not_reduced(dtype, OPS_BY_NAME[op])
        yield row(f"allreduce, {dtype} {op}", wrong, text, plain((np.ones(2), dtype)), how(op=op))
    nowhere = "op=77 does not exist: use Average, Sum, Adasum, Min, Max, Product."
    yield row("allreduce, op", wrong, nowhere, ones, how(op=77))
    both = "The op parameter supersedes average. Please provide only one of them."
    yield row("allreduce, op and average", wrong, both, ones, how(op="Sum", average=True))
    root = "broadcast received invalid root rank {size} for provided process set"
    yield row("broadcast, root", wrong, root, ones, lambda place, size: {"root_rank": size})
    yield row("broadcast, root -1", wrong, "invalid root rank -1", ones, how(root_rank=-1))
    yield row("broadcast_, root -1", wrong, "invalid root rank -1", ones, how(root_rank=-1))
    splits: dict[str, tuple[str, Callable[[int], Any], str | None]] = {
        "too large": (
            "Sum of splits entries is greater than the first dimension of tensor.",
            lambda size: [3] * size,
            None,
        ),
        "too many": (
            "Number of entries in splits does not equal number of workers.",
            lambda size: [1] * (size + 1),
            None,
        ),
        "negative": ("plit", lambda size: [-1] * size, None),
        "a matrix": (SPLITS_ARE_A_VECTOR, lambda size: [[1] * size], None),
        "fractions": (SPLITS_ARE_INTEGERS.format(dtype="float64"), lambda size: [0.5] * size, None),
        "of float32": (SPLITS_ARE_INTEGERS.format(dtype="float32"), lambda size: [1.0] * size, "float32"),
        "of int64": (SPLITS_ARE_INT32.format(dtype="int64"), lambda size: [1] * size, "int64"),
    }
    for name, (text, split, dtype) in splits.items():
        options = lambda place, size, split=split, dtype=dtype: {  # noqa: E731
            "splits": split(size),
            "splits_dtype": dtype,
        }
        yield row(f"alltoall, splits {name}", wrong, text, rows, options)
    uneven = "splits not provided, but first dimension of tensor is not an even multiple of the number of workers."
    odd = rows_of("float32", lambda place, size: 2 * size + 1, (2,))
    yield Row("alltoall, uneven", "alltoall", odd, NO_OPTIONS, refused(wrong, uneven), at_least=2)
    one = "needs a tensor of at least one dimension; reshape it to [1]"
    yield row("allgather, a scalar", wrong, one, each("float32", ()))
    yield row("reducescatter, a scalar", wrong, "Reducescatter does not support scalar inputs", each("float32", ()))
    some = "Reducescatter currently only supports AVERAGE and SUM."
    for op in ("Min", "Max", "Product", "Adasum"):
        for dtype in ("float32", "int32", "bool", "float8_e5m2"):
            operands = rows_of(dtype, lambda place, size: size)
            yield row(f"reducescatter, {dtype} {op}", "HorovodInternalError", some, operands, how(op=op))
    unknown = "Process set provided does not exist, or has not been registered."
    for operation in ("allreduce", "allgather", "broadcast", "alltoall", "reducescatter"):
        options = how(process_set="unknown", **({"root_rank": 0} if operation == "broadcast" else {}))
        text = f"{operation.capitalize()}: {unknown}"
        yield row(f"{operation}, an unknown set", wrong, text, rows, options)
    for operation in ("grouped_allreduce", "grouped_allgather", "grouped_reducescatter"):
        text = f"{operation} needs at least one tensor."
        options = NO_OPTIONS if operation == "grouped_allgather" else how(op="Sum")
        yield row(f"{operation}, nothing", wrong, text, lambda place, size: [], options)


def in_a_set() -> Iterator[Row]:
    """Calls of each kind, which a process set makes for itself."""
    rows = rows_of("float32", lambda place, size: 2 * size)
    yield Row("allreduce", "allreduce", each("float32", (3,)), how(op="Sum"))
    yield Row("allreduce, average", "allreduce", each("int32", (3,), "Average"), how(op="Average"))
    yield Row("grouped_allreduce", "grouped_allreduce", several(MIXED), how(op="Sum"))
    yield Row("allgather", "allgather", rows)
    unequal = rows_of("int32", lambda place, size: place + 1)
    yield Row("allgather of unequal parts", "allgather", unequal, own_shapes=True)
    yield Row("broadcast", "broadcast", each("float32", (3,)), to_last)
    yield Row("alltoall", "alltoall", rows)
    yield Row("reducescatter", "reducescatter", rows, how(op="Sum"))


OPS_BY_NAME = {"Average": 0, "Sum": 1, "Adasum": 2, "Min": 3, "Max": 4, "Product": 5}
SUBJECTS: dict[str, Callable[[], Iterator[Row]]] = {
    "reductions": reductions,
    "movements": movements,
    "shares": shares,
    "groups": groups,
    "disagreements": disagreements,
    "arguments": arguments,
}
