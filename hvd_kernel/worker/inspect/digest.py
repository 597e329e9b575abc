"""Digests of the parts of a value, by which ranks are compared without sending the value. No pickling.

Terms.
  leaf      an array, a tensor or a plain value somewhere inside, or the frame of a container (its kind and length)
  digest    blake2b over a leaf's kind, shape, dtype and bytes: equal digests mean equal bits. "" if the kind of a value
            is unknown: it is not compared
  sampled   only blocks of a leaf larger than WHOLE_BYTES are read, the same ones on every rank
"""

from __future__ import annotations

import hashlib
import random
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import PurePath
from typing import Any

import numpy as np

from hvd_kernel.frameworks import registry
from hvd_kernel.frameworks.adapter import Elements, TensorShard
from hvd_kernel.protocol.distributed_tensors import LOCAL

WHOLE_BYTES = 256 << 20
BLOCK_BYTES = 64 << 10
BLOCKS = 1024
MAX_LEAVES = 20_000
MAX_DEPTH = 40
MAX_TEXT = 40

_MAPPINGS = (dict, OrderedDict, defaultdict)
_SEQUENCES = (list, tuple)


@dataclass(frozen=True)
class Leaf:
    """One part of a value."""

    path: tuple[str, ...]
    digest: str
    text: str  # short description
    sampled: bool = False
    shard: str = ""  # part of a distributed tensor; only ranks with the same part can be compared
    is_frame: bool = False


def leaves(value: Any, *, whole: bool = False) -> list[Leaf]:
    """Return the leaves of a value, in its order; after MAX_LEAVES a last one that marks the limit.

    Parameters
    ----------
    whole
        Read every byte, however large a leaf is.
    """
    limited: list[Leaf] = []
    for leaf in _leaves(value, (), whole):
        if len(limited) == MAX_LEAVES:
            return [*limited, Leaf(("…",), "", f"more than {MAX_LEAVES:,} parts")]
        limited.append(leaf)
    return limited


def together(parts: Iterable[Leaf], shard: str = "") -> str:
    """Return one digest of all leaves of a shard, or of those that every rank has; "" if no leaf has a digest."""
    compared = sorted((leaf.path, leaf.digest) for leaf in parts if leaf.digest and leaf.shard == shard)
    return _hash(repr(compared).encode()) if compared else ""


def at(value: Any, path: Iterable[str]) -> Any:
    """Return the part of a value at a leaf's path.

    Raises
    ------
    LookupError
        There is no such part.
    """
    for part in path:
        inner = dict(_children(_opened(value)) or ())
        if part not in inner:
            raise LookupError(part)
        value = inner[part]
    return _opened(value)


def numbers(value: Any, start: int, stop: int) -> np.ndarray[Any, np.dtype[np.float64]] | None:
    """Return elements of a numeric leaf, in the order of its digest; None if it is not numeric."""
    if type(value) in {bool, int, float}:
        value = np.array([value])
    elements = registry.first("elements", value)
    if elements is None:
        return None
    chosen = elements.numbers(slice(start, stop))
    if chosen.dtype.kind == "c":
        chosen = chosen.view(chosen.real.dtype)
    return chosen.astype(np.float64) if chosen.dtype.kind in "biufc" else None


def weigh(value: Any) -> int:
    """Return the bytes of the arrays and texts in the first MAX_LEAVES parts of a value."""
    return sum(_size(part) for part in islice(_inside(value), MAX_LEAVES))


def _inside(value: Any, above: frozenset[int] = frozenset()) -> Iterator[Any]:
    children = None if id(value) in above or len(above) > MAX_DEPTH else _children(_opened(value))
    if children is None:
        yield value
    else:
        for _, child in children:
            yield from _inside(child, above | {id(value)})


def _size(value: Any) -> int:
    nbytes = registry.first("nbytes", value)
    if nbytes is not None:
        return int(nbytes)
    return len(value) if type(value) in {bytes, bytearray, str} else 0


# Parts of a value.


def _leaves(value: Any, path: tuple[str, ...], whole: bool, above: frozenset[int] = frozenset()) -> Iterator[Leaf]:
    if len(above) > MAX_DEPTH or id(value) in above:
        yield Leaf(path, "", "too deep, or a part of itself")
        return
    opened = _opened(value)
    children = _children(opened)
    if children is None:
        yield replace(_leaf(opened, whole), path=path)
        return
    shard: TensorShard | None = registry.first("shard", opened)
    frame = f"{type(value).__name__} of {len(children)}" if shard is None else shard.text
    yield Leaf(path, _hash(frame.encode()), frame, is_frame=True)
    for part, child in children:
        inner = _leaves(child, (*path, part), whole, above | {id(value)})
        yield from inner if shard is None else (replace(leaf, shard=shard.key) for leaf in inner)


def _opened(value: Any) -> Any:
    """Return the state of an object that has one, else the object."""
    if isinstance(value, random.Random):
        return value.getstate()
    for adapter in registry.in_use():
        state = adapter.state(value)
        if state is not value:
            return state
    return value


def _children(value: Any) -> list[tuple[str, Any]] | None:
    if type(value) in _MAPPINGS:
        return [(_word(key), child) for key, child in value.items()]
    if type(value) in _SEQUENCES or (isinstance(value, tuple) and hasattr(type(value), "_fields")):
        return [(str(i), child) for i, child in enumerate(value)]
    shard = registry.first("shard", value)
    return None if shard is None else [(LOCAL, shard.local)]


def _word(key: Any) -> str:
    return key if type(key) is str and not key.isdecimal() else repr(key)


# Leaves.


def _leaf(value: Any, whole: bool) -> Leaf:
    elements = registry.first("elements", value)
    if elements is not None:
        return _array_leaf(elements, whole)
    write = _PLAIN.get(type(value)) or next((write for kinds, write in _by_class() if isinstance(value, kinds)), None)
    if write is None:
        return _LEAF_OF.get(type(value), _unknown)(value)
    return Leaf((), _hash(type(value).__name__.encode(), write(value)), short(value))


def short(value: Any) -> str:
    """Return a plain value as text of at most MAX_TEXT characters."""
    if type(value) is int and value.bit_length() > MAX_TEXT * 3:
        return f"int of {value.bit_length()} bits"
    if type(value) in {str, bytes, bytearray}:
        value = value[:MAX_TEXT]
    text = repr(value)
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 1]}…"


def _unknown(value: Any) -> Leaf:
    return Leaf((), "", type(value).__name__)


def _set(value: Any) -> Leaf:
    inner = [_leaf(member, whole=True) for member in value]
    if not all(leaf.digest for leaf in inner):
        return _unknown(value)
    parts = sorted(leaf.digest.encode() for leaf in inner)
    return Leaf((), _hash(type(value).__name__.encode(), *parts), f"{type(value).__name__} of {len(inner)}")


_LEAF_OF: dict[type, Callable[[Any], Leaf]] = {set: _set, frozenset: _set}

_PLAIN: dict[type, Callable[[Any], bytes]] = {
    type(None): lambda _: b"",
    type(...): lambda _: b"",
    bool: lambda it: bytes([it]),
    int: lambda it: it.to_bytes(it.bit_length() // 8 + 1, "little", signed=True),
    float: lambda it: repr(it).encode(),
    complex: lambda it: repr(it).encode(),
    str: lambda it: it.encode(errors="surrogatepass"),
    bytes: bytes,
    bytearray: bytes,
    range: lambda it: repr(it).encode(),
}


def _by_class() -> list[tuple[Any, Callable[[Any], bytes]]]:
    written = (kind for adapter in registry.in_use() for kind in adapter.written())
    return [((PurePath, *written), lambda it: str(it).encode())]


def _array_leaf(elements: Elements, whole: bool) -> Leaf:
    head = f"{elements.kind} {elements.text}".encode()
    if whole or elements.count * elements.itemsize <= WHOLE_BYTES:
        return Leaf((), _hash(head, *_pieces(elements)), elements.text)
    return Leaf((), _hash(head, *_samples(elements)), elements.text, sampled=True)


def _pieces(elements: Elements, piece_bytes: int = 16 << 20) -> Iterator[Any]:
    """Return all bytes in pieces, so that a device's tensor is never copied as a whole."""
    step = max(1, piece_bytes // elements.itemsize)
    return (elements.raw(slice(start, start + step)) for start in range(0, elements.count, step))


def _samples(elements: Elements) -> Iterator[Any]:
    step = max(1, BLOCK_BYTES // elements.itemsize)
    last = elements.count - step
    starts = (i * last // (BLOCKS - 1) for i in range(BLOCKS))
    return (elements.raw(slice(start, start + step)) for start in starts)


def _hash(*parts: Any) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()
