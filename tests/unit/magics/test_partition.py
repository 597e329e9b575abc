"""``--scatter`` and ``--gather``: the parts of a value for the ranks, and the value joined from parts."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import scipy.sparse
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import TensorDataset

from hvd_kernel.errors import UsageError
from hvd_kernel.magics.partition import joined, split
from hvd_kernel.protocol import serialization


@given(st.lists(st.integers()), st.integers(min_value=1, max_value=9))
def test_joined_parts_equal_the_value_longer_parts_first(value: list[int], count: int) -> None:
    parts = split("x", value, count)
    assert len(parts) == count
    assert joined("x", dict(enumerate(parts))) == value
    lengths = [len(part) for part in parts]
    assert lengths == sorted(lengths, reverse=True)
    assert max(lengths) - min(lengths) <= 1


class Table:
    """A fake table whose brackets select columns, like those of pandas."""

    def __init__(self, rows: list[int]) -> None:
        self.rows = rows

    @property
    def iloc(self) -> Rows:
        return Rows(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[int]:
        return iter(self.rows)


class Rows(list[int]):
    def __getitem__(self, rows: Any) -> Any:
        return Table(super().__getitem__(rows))


@pytest.mark.parametrize(
    ("value", "parts"),
    [
        (np.arange(10).reshape(5, 2), [[[0, 1], [2, 3], [4, 5]], [[6, 7], [8, 9]]]),
        (torch.arange(3), [[0, 1], [2]]),
        ((7,), [[7], []]),
        ("abc", [["a", "b"], ["c"]]),
        (Table([1, 2, 3]), [[1, 2], [3]]),
    ],
    ids=["array", "tensor", "tuple", "text", "table"],
)
def test_array_is_split_along_the_first_axis(value: Any, parts: list[Any]) -> None:
    assert [np.asarray(list(part)).tolist() for part in split("x", value, 2)] == parts


class Point(NamedTuple):
    x: int
    y: int


class Pairs(TensorDataset):
    pass


KEPT: dict[str, Any] = {
    "list": [1, 2, 3],
    "bytes": b"abc",
    "bytearray": bytearray(b"abcde"),
    "range": range(5, 26, 5),
    "empty range": range(0),
    "deque": deque([1, 2, 3], maxlen=4),
    "array.array": array("d", [0.5, 1.5, 2.5]),
    "torch.Size": torch.Size([4, 5, 6]),
    "ndarray": np.arange(10.0).reshape(5, 2),
    "masked array": np.ma.masked_array([1, 2, 3, 4, 5], [0, 1, 0, 0, 1], fill_value=-7),
    "structured array": np.array([(1, 2.0), (3, 4.0)], [("a", int), ("b", float)]),
    "texts of several widths": np.array(["a", "bb", "ccc"]),
    "matrix": np.matrix([[1, 2], [3, 4]]),
    "sparse array": scipy.sparse.csr_array(np.diag([1.0, 2.0, 3.0])),
    "sparse matrix": scipy.sparse.lil_matrix(np.diag([1.0, 2.0, 3.0])),
    "tensor": torch.arange(6.0, dtype=torch.bfloat16).reshape(3, 2),
    "sparse tensor": torch.diag(torch.tensor([1.0, 2.0, 3.0])).to_sparse(),
    "parameter": torch.nn.Parameter(torch.arange(3.0), requires_grad=False),
    "TensorDataset": TensorDataset(torch.arange(6.0).reshape(3, 2), torch.tensor([1, 0, 1])),
}


def content(value: Any) -> Any:
    """Return the contents of a value as plain lists, with its data type."""
    if isinstance(value, TensorDataset):
        return [content(tensor) for tensor in value.tensors]
    if isinstance(value, np.ma.MaskedArray):
        return value.data.tolist(), np.ma.getmaskarray(value).tolist(), value.fill_value, value.dtype
    if isinstance(value, torch.Tensor):
        return value.to_dense().tolist(), value.dtype, value.layout, value.requires_grad
    if scipy.sparse.issparse(value):
        return value.toarray().tolist(), value.format, value.dtype
    return (
        (value.tolist(), value.dtype) if isinstance(value, np.ndarray) else (list(value), getattr(value, "maxlen", 0))
    )


@pytest.mark.parametrize("value", KEPT.values(), ids=KEPT)
@pytest.mark.parametrize("count", [2, 4])
def test_scatter_and_gather_keep_type_and_content(value: Any, count: int) -> None:
    parts = [serialization.unpack(serialization.pack(part)) for part in split("x", value, count)]
    assert {type(part) for part in parts} == {type(value)}
    whole = joined("x", dict(enumerate(parts)))
    assert type(whole) is type(value)
    assert content(whole) == content(value)


@pytest.mark.parametrize(("parts", "whole"), [(["ab", "c"], "abc"), ([(1, 2), (3,)], (1, 2, 3)), ([b"a", b""], b"a")])
def test_sequences_keep_their_type(parts: list[Any], whole: Any) -> None:
    assert joined("y", dict(enumerate(parts))) == whole


def test_parts_are_joined_in_the_order_of_the_ranks() -> None:
    whole = joined("y", {1: np.ones((2, 2)), 0: np.zeros((1, 2))})
    assert whole.tolist() == [[0.0, 0.0], [1.0, 1.0], [1.0, 1.0]]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (3.5, "it has no parts"),
        ({"a": 1}, "it has no order"),
        ({1, 2}, "it has no order"),
        (iter([1, 2]), "it has no parts"),
        (torch.tensor(1.0), "it has no length"),
        (Point(1, 2), "a slice of it is of another type (tuple)"),
        (Pairs(torch.arange(3)), "a slice of it is of another type (tuple)"),
        (scipy.sparse.dia_array(np.eye(2)), "it has no parts"),
        (torch.eye(2).to_sparse_csr(), "slicing it raises RuntimeError (Sparse CSR tensors do not have strides)"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_scatter_names_values_that_it_cannot_split(value: Any, reason: str) -> None:
    with pytest.raises(UsageError) as raised:
        split("x", value, 2)
    remedy = "--push x sends all of it to every rank"
    assert str(raised.value) == f"`x` ({type(value).__name__}) cannot be scattered: {reason}; {remedy}"


class Subclass(np.ndarray[Any, Any]):
    pass


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ([[1], (2,)], "it is list on rank 0, tuple on rank 1"),
        ([1.0, 2.0], "two values of the type float cannot be joined without changing the type"),
        ([{"a": 1}, {"b": 1}], "two values of the type dict cannot be joined without changing the type"),
        ([range(2), range(3, 5)], "the ranges do not continue each other"),
        ([np.array([2**53 + 1]), np.array([0.5])], "it is int64 on rank 0, float64 on rank 1"),
        ([torch.tensor([1]), torch.tensor([0.5])], "it is torch.int64 on rank 0, torch.float32 on rank 1"),
        (
            [np.rec.array([(1,)], [("a", int)]), np.rec.array([(2,)], [("a", int)])],
            "two values of the type recarray cannot be joined without changing the type",
        ),
        (
            [np.ones(1).view(Subclass), np.ones(1).view(Subclass)],
            "two values of the type Subclass cannot be joined without changing the type",
        ),
    ],
    ids=["two kinds", "numbers", "dicts", "ranges", "types of arrays", "types of tensors", "recarray", "subclass"],
)
def test_gather_names_values_that_it_cannot_join(parts: list[Any], reason: str) -> None:
    with pytest.raises(UsageError) as raised:
        joined("y", dict(enumerate(parts)))
    remedy = "the ranks still have their values: `%hvdpull y` copies them here"
    assert str(raised.value) == f"`y` cannot be gathered: {reason}; {remedy}"


def test_mismatched_shapes_raise_the_error_of_the_library() -> None:
    with pytest.raises(UsageError, match=r"`y` cannot be gathered: .*dimension.*`%hvdpull y` copies them here"):
        joined("y", {0: np.zeros((2, 2)), 1: np.zeros((2, 3))})
