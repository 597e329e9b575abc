"""Scatter and gather: a value's parts along its first axis, one for each rank, and the value that parts make up. Pure.

Example: five rows for two ranks are rows 0 to 2 and rows 3 to 4; the first ranks have the longer parts.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import pairwise
from typing import Any

from hvd_kernel.errors import UsageError

_CONCATENATE = {  # the package that a type is of -> what puts values of it one after the other; imported when wanted.
    # No adapters: they are the ranks', and their values are in the notebook's process here.
    "numpy": "numpy:concatenate",
    "torch": "torch:cat",
    "jax": "jax.numpy:concatenate",
    "jaxlib": "jax.numpy:concatenate",
    "tensorflow": "tensorflow:concat",
    "pandas": "pandas:concat",
    "polars": "polars:concat",
}
_WITH_AXIS = ("tensorflow",)


def split(name: str, value: Any, count: int) -> list[Any]:
    """Return ``count`` parts of a value, in order; their lengths differ by one at most.

    Parameters
    ----------
    name
        The variable, for the error.
    value
        A sequence, an array or a tensor, which is cut along its first axis, or a table with ``iloc``, by its rows.

    Raises
    ------
    UsageError
        It has no length, or cannot be sliced.
    """
    rows = getattr(value, "iloc", value)
    if isinstance(value, Mapping | AbstractSet):
        raise _not_scattered(name, value, "has no order")
    if not hasattr(rows, "__getitem__"):
        raise _not_scattered(name, value, "has no parts")
    try:
        length = len(value)
    except TypeError:  # a tensor without an axis says so in this way too
        raise _not_scattered(name, value, "has no length") from None
    each, longer = divmod(length, count)
    ends = [each * rank + min(rank, longer) for rank in range(count + 1)]
    return [rows[begin:end] for begin, end in pairwise(ends)]


def joined(name: str, parts: Mapping[int, Any]) -> Any:
    """Return what ranks' parts make up, in the order of the ranks.

    Parameters
    ----------
    name
        The variable, for the error.
    parts
        The value of each rank: all arrays, tensors or tables of one kind, or all lists, tuples or texts.

    Raises
    ------
    UsageError
        The parts are of several kinds, cannot be put one after the other, or have shapes that do not fit.
    """
    values = [parts[rank] for rank in sorted(parts)]
    kinds = {type(value): rank for rank, value in sorted(parts.items(), reverse=True)}
    if len(kinds) > 1:
        found = ", ".join(f"{kind.__name__} on rank {rank}" for kind, rank in reversed(kinds.items()))
        raise UsageError(f"`{name}` cannot be gathered: it is {found}; --pull {name} brings each rank's")
    together = _way(type(values[0]))
    if together is None:
        what = type(values[0]).__name__
        raise UsageError(
            f"`{name}` ({what}) cannot be gathered: there is no way to put two of them one after the other; "
            f"--pull {name} brings each rank's"
        )
    try:
        return together(values)
    except Exception as error:
        raise UsageError(
            f"`{name}` cannot be gathered: {error}; --pull {name} brings each rank's"  # the library names the shapes
        ) from error


def _way(kind: type) -> Callable[[Sequence[Any]], Any] | None:
    if issubclass(kind, list | tuple | str | bytes):
        return _added
    package = kind.__module__.partition(".")[0]
    if package not in _CONCATENATE:
        return None
    module, _, function = _CONCATENATE[package].partition(":")
    concatenate: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return (lambda values: concatenate(values, 0)) if package in _WITH_AXIS else concatenate


def _added(values: Sequence[Any]) -> Any:
    if isinstance(values[0], str | bytes):
        return type(values[0])().join(values)
    return type(values[0])(item for value in values for item in value)


def _not_scattered(name: str, value: Any, why: str) -> UsageError:
    return UsageError(
        f"`{name}` ({type(value).__name__}) cannot be scattered: it {why}; --push {name} sends all of it to every rank"
    )
