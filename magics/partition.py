"""Scatter and gather: split a value along its first axis, one part per rank, and join parts to one value. Pure.

Example: of five rows for two ranks, rank 0 gets rows 0 to 2, rank 1 rows 3 to 4; the first ranks get the longer parts.

A part has the type of the value, and a joined value the type of its parts. A value whose parts would have another type,
such as a ``Dataset`` that returns tuples, is refused by name.
"""

from __future__ import annotations

import importlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import chain, islice, pairwise
from textwrap import shorten
from typing import Any

from hvd_kernel.errors import UsageError

Join = Callable[[Sequence[Any]], Any]

_COLUMNS_CHARS = 120
_OWN_TYPES = ("pandas",)
"""Packages that choose the type of a result: parts of a ``RangeIndex`` may be joined to another ``Index``."""


def split(name: str, value: Any, count: int) -> list[Any]:
    """Return ``count`` parts of a value, in order; their lengths differ by one at most.

    Parameters
    ----------
    name
        The variable, for the error.
    value
        A sequence, an array or a tensor, which is split along its first axis, or a table with ``iloc``, by its rows.

    Raises
    ------
    UsageError
        The value has no length, cannot be sliced, or its slices are of another type.
    """
    if isinstance(value, Mapping | AbstractSet):
        raise _not_scattered(name, value, "it has no order")
    if not any(hasattr(value, attribute) for attribute in ("__getitem__", "iloc")):
        raise _not_scattered(name, value, "it has no parts")
    try:
        length = _length(value)
    except TypeError:  # also raised by a tensor without axes
        raise _not_scattered(name, value, "it has no length") from None
    short, longer = divmod(length, count)
    ends = [short * rank + min(rank, longer) for rank in range(count + 1)]
    try:
        parts = [_cut(value, begin, end) for begin, end in pairwise(ends)]
    except Exception as error:
        raise _not_scattered(name, value, f"slicing it raises {type(error).__name__} ({error})") from error
    if others := [part for part in parts if type(part) is not type(value)]:
        raise _not_scattered(name, value, f"a slice of it is of another type ({type(others[0]).__name__})")
    return parts


def joined(name: str, parts: Mapping[int, Any]) -> Any:
    """Join the parts of the ranks to one value, in rank order.

    Parameters
    ----------
    name
        The variable, for the error.
    parts
        The value of each rank: all arrays, tensors or tables of one kind, or all lists, tuples or texts.

    Raises
    ------
    UsageError
        The parts are of several kinds, cannot be joined without a change of type, or have shapes that do not fit.
    """
    ranks = sorted(parts)
    for describe in (_type, _columns, _dtype):
        kinds: dict[Any, tuple[str, int]] = {}
        for rank in ranks:
            key, text = describe(parts[rank])
            kinds.setdefault(key, (text, rank))
        if len(kinds) > 1:
            listed = ", ".join(f"{text} on rank {rank}" for text, rank in kinds.values())
            raise _not_gathered(name, f"it is {listed}")
    try:
        return _together([parts[rank] for rank in ranks])
    except Exception as error:
        raise _not_gathered(name, str(error) or type(error).__name__) from error  # the library names the shapes


def _not_scattered(name: str, value: Any, reason: str) -> UsageError:
    return UsageError(
        f"`{name}` ({type(value).__name__}) cannot be scattered: {reason}; --push {name} sends all of it to every rank"
    )


def _not_gathered(name: str, reason: str) -> UsageError:
    return UsageError(
        f"`{name}` cannot be gathered: {reason}; the ranks still have their values: `%hvdpull {name}` copies them here"
    )


def _name(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


# Cutting.


def _length(value: Any) -> int:
    return int(value.shape[0]) if _package(value) == "scipy" and hasattr(value, "shape") else len(value)


def _cut(value: Any, begin: int, end: int) -> Any:
    """Return one slice, of the value's type if there is a function for it."""
    cut = _CUT.get(_name(value))
    if cut is not None:
        return cut(value, begin, end)
    if str(getattr(value, "layout", "")) == "torch.sparse_coo":  # it does not implement slicing with brackets
        return value.narrow_copy(0, begin, end - begin)
    return getattr(value, "iloc", value)[begin:end]


_CUT: dict[str, Callable[[Any, int, int], Any]] = {
    "collections.deque": lambda value, begin, end: deque(islice(value, begin, end), value.maxlen),
    "torch.nn.parameter.Parameter": lambda value, begin, end: type(value)(
        value.detach()[begin:end], requires_grad=value.requires_grad
    ),
    "torch.utils.data.dataset.TensorDataset": lambda value, begin, end: type(value)(
        *(tensor[begin:end] for tensor in value.tensors)
    ),
}
"""Full name of a type -> function that slices it; brackets raise for such a value, or return another type."""


# Joining.


def _type(value: Any) -> tuple[Any, str]:
    return type(value), type(value).__name__


def _columns(value: Any) -> tuple[Any, str]:
    """Return a table's columns, as a key to compare and as text."""
    if not hasattr(value, "columns") or not hasattr(value, "dtypes"):
        return None, ""
    columns = [(str(name), str(dtype)) for name, dtype in zip(value.columns, value.dtypes, strict=True)]
    text = shorten(", ".join(f"{name} {dtype}" for name, dtype in columns), _COLUMNS_CHARS, placeholder=" ...")
    return tuple((name, _family(dtype)) for name, dtype in columns), f"a table of {text or 'no columns'}"


def _dtype(value: Any) -> tuple[Any, str]:
    text = "" if hasattr(value, "columns") else str(getattr(value, "dtype", ""))
    return _family(text), text


def _family(dtype: str) -> str:
    """Return a dtype without its width: ``int32`` and ``int64`` join without loss, ``int64`` and ``float64`` do not."""
    return dtype.rstrip("0123456789")


def _package(value: Any) -> str:
    return type(value).__module__.partition(".")[0]


def _together(values: Sequence[Any]) -> Any:
    """Join values to one value of their type.

    Raises
    ------
    TypeError
        No function joins values of this type without changing the type.
    """
    if join := _JOIN.get(_name(values[0])):
        return join(values)
    if join := _JOIN_OF_PACKAGE.get(_package(values[0])):
        whole = join(values)
        if type(whole) is type(values[0]) or _package(whole) in _OWN_TYPES:
            return whole
    raise TypeError(f"two values of the type {type(values[0]).__name__} cannot be joined without changing the type")


def _imported(path: str) -> Callable[..., Any]:
    module, _, name = path.partition(":")
    function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return function


def _by(path: str, *arguments: Any) -> Join:
    """Return a function that imports at its call: a notebook with such a value has the library."""
    return lambda values: _imported(path)(values, *arguments)


def _items(values: Sequence[Any]) -> Any:
    return type(values[0])(chain.from_iterable(values))


def _texts(values: Sequence[Any]) -> Any:
    return type(values[0])().join(values)


def _ranges(values: Sequence[range]) -> range:
    """Join consecutive ranges to one."""
    parts = [part for part in values if part]
    if not parts:
        return values[0]
    whole = range(parts[0].start, parts[-1][-1] + parts[0].step, parts[0].step)
    if [*whole] != [*chain.from_iterable(parts)]:
        raise ValueError("the ranges do not continue each other")
    return whole


def _deques(values: Sequence[deque[Any]]) -> deque[Any]:
    """Join deques, with the limit of the first if all items fit."""
    items, limit = [*chain.from_iterable(values)], values[0].maxlen
    return deque(items, None if limit is not None and len(items) > limit else limit)


def _masked(values: Sequence[Any]) -> Any:
    """Join masked arrays with ``numpy.ma.concatenate``: ``numpy.concatenate`` drops the masks."""
    whole = _imported("numpy.ma:concatenate")(values)
    whole.fill_value = values[0].fill_value
    return whole


def _parameters(values: Sequence[Any]) -> Any:
    tensor = _imported("torch:cat")([value.detach() for value in values])
    return type(values[0])(tensor, requires_grad=values[0].requires_grad)


def _datasets(values: Sequence[Any]) -> Any:
    columns = zip(*(value.tensors for value in values), strict=True)
    return type(values[0])(*(joined("tensors", dict(enumerate(column))) for column in columns))


def _sparse(values: Sequence[Any]) -> Any:
    return _imported("scipy.sparse:vstack")(values, format=values[0].format)


def _tables(values: Sequence[Any]) -> Any:
    if hasattr(values[0], "iloc"):
        return _imported("pandas:concat")(values)
    if hasattr(values[0], "append"):
        return values[0].append(list(values[1:]))
    series = _imported("pandas:Series")
    return _imported("pandas:concat")([series(value) for value in values]).array


_JOIN: dict[str, Join] = {
    **dict.fromkeys(("builtins.list", "builtins.tuple", "torch.Size"), _items),
    **dict.fromkeys(("builtins.str", "builtins.bytes", "builtins.bytearray"), _texts),
    "builtins.range": _ranges,
    "collections.deque": _deques,
    "array.array": lambda values: sum(values[1:], values[0]),
    **dict.fromkeys(("numpy.ma.MaskedArray", "numpy.ma.core.MaskedArray"), _masked),  # NumPy 2, NumPy 1
    "torch.nn.parameter.Parameter": _parameters,
    "torch.utils.data.dataset.TensorDataset": _datasets,
}
"""Full name of a type -> function that joins its values."""

_JOIN_OF_PACKAGE: dict[str, Join] = {
    # Not the adapters of frameworks: those are imported on ranks, and these values are in the notebook's process.
    "numpy": _by("numpy:concatenate"),
    "torch": _by("torch:cat"),
    "jax": _by("jax.numpy:concatenate"),
    "jaxlib": _by("jax.numpy:concatenate"),
    "tensorflow": _by("tensorflow:concat", 0),
    "polars": _by("polars:concat"),
    "scipy": _sparse,
    "pandas": _tables,
}
"""Package of a type -> function that joins other values of its types, if the result is of the same type."""
