"""Transfer of values between notebook and ranks, with a limit on their size.

Between processes of one host large parts use a shared buffer; other hosts receive them over the network. The limit is
checked before any data is sent.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from hvd_kernel.cluster.requests import joined_tensors
from hvd_kernel.errors import ClusterError, UsageError
from hvd_kernel.formatting.units import binary_size
from hvd_kernel.protocol import serialization
from hvd_kernel.settings import lookup

Answers = dict[int, tuple[Mapping[str, Any], list[Any]]]
Query = Callable[[Sequence[int], dict[str, Any], Sequence[Any]], Answers]
"""Sends a query with content and buffers to ranks, and returns their answers."""


def limit(*, force: bool) -> int | None:
    """Return the limit of a transfer in bytes, over all ranks together; None: no limit."""
    return None if force else int(lookup.value("HVD_MAX_MOVE", os.environ))


def push(
    values: dict[str, Any], ranks: Sequence[int], here: Collection[int], at_most: int | None, query: Query
) -> None:
    """Send values to ranks; ranks of this host receive them through a shared buffer.

    Raises
    ------
    ClusterError
        If a value cannot be pickled.
    UsageError
        If all ranks' copies together are larger than allowed.
    """
    parts = _packed(values)
    if at_most is not None and serialization.size(parts) * len(ranks) > at_most:
        sizes = {name: serialization.size(serialization.pack(value)) * len(ranks) for name, value in values.items()}
        raise _too_much("pushing", sizes, at_most)
    _send(parts, ranks, here, query)


def scatter(parts: Mapping[int, dict[str, Any]], here: Collection[int], at_most: int | None, query: Query) -> None:
    """Send each rank its own values.

    Raises
    ------
    ClusterError, UsageError
        Like ``push``, for all ranks' values together, before any data is sent.
    """
    packed = {rank: _packed(values) for rank, values in parts.items()}
    if at_most is not None and sum(map(serialization.size, packed.values())) > at_most:
        sizes = Counter[str]()
        for values in parts.values():
            sizes.update({name: serialization.size(serialization.pack(value)) for name, value in values.items()})
        raise _too_much("scattering", sizes, at_most)
    for rank, values_of_rank in packed.items():
        _send(values_of_rank, [rank], here, query)


def _send(parts: list[Any], ranks: Sequence[int], here: Collection[int], query: Query) -> None:
    far = [rank for rank in ranks if rank not in here]
    if near := [rank for rank in ranks if rank in here]:
        with serialization.shared_buffer() as (descriptor, address):
            wire, placed = serialization.put(parts, descriptor)
            answers = query(near, {"buffer": address, "placed": placed}, wire)
        far += [rank for rank, (content, _) in answers.items() if content.get("unreached")]
    if far:
        query(far, {"buffer": None, "placed": []}, parts)


def fetch(
    ranks: Sequence[int], here: Collection[int], at_most: int | None, query: Query, *, whole: bool = True
) -> dict[int, dict[str, Any]]:
    """Fetch variables of ranks. A rank answers with sizes instead if its values are larger than its share of the limit.

    Parameters
    ----------
    whole
        Join the parts of DTensors; otherwise each rank's value contains its ``TensorPart``.

    Raises
    ------
    UsageError
        If the values of all ranks together are larger than allowed, or parts of a DTensor are on other ranks.
    """
    values, is_divided = _fetch_all(ranks, here, at_most, query)
    return joined_tensors.joined(values) if is_divided and whole else values


def _fetch_all(
    ranks: Sequence[int], here: Collection[int], at_most: int | None, query: Query
) -> tuple[dict[int, dict[str, Any]], bool]:
    """Return the variables of the ranks, and whether they contain parts of DTensors."""
    parts_of, refused, is_divided = _fetch(
        ranks, here, None if at_most is None else at_most // max(1, len(ranks)), query
    )
    if not refused:
        return {rank: serialization.unpack(parts) for rank, parts in parts_of.items()}, is_divided
    # A rank may exceed its share although all ranks together are within the limit.
    sizes = {name: sum(size_of[name] for size_of in refused) for name in refused[0]}
    if at_most is not None and sum(sizes.values()) + sum(map(serialization.size, parts_of.values())) > at_most:
        raise _too_much("pulling", sizes, at_most)
    parts_of, _, is_divided = _fetch(ranks, here, None, query)
    return {rank: serialization.unpack(parts) for rank, parts in parts_of.items()}, is_divided


def _fetch(
    ranks: Sequence[int], here: Collection[int], share: int | None, query: Query
) -> tuple[dict[int, list[Any]], list[Mapping[str, int]], bool]:
    """Return the parts of the ranks that sent them, the sizes of those that refused, and whether DTensors arrived."""
    with ExitStack() as stack:
        shared = {rank: stack.enter_context(serialization.shared_buffer()) for rank in ranks if rank in here}
        addresses = {str(rank): address for rank, (_, address) in shared.items()}
        answers = query(ranks, {"at_most": share, "buffers": addresses}, [])
        parts_of = {
            rank: serialization.collect(buffers, content["placed"], shared[rank][0] if rank in shared else None)
            for rank, (content, buffers) in answers.items()
            if "sizes" not in content
        }
    contents = [content for content, _ in answers.values()]
    is_divided = any(content.get("divided") for content in contents)
    return parts_of, [content["sizes"] for content in contents if "sizes" in content], is_divided


def _packed(values: dict[str, Any]) -> list[Any]:
    try:
        return serialization.pack_variables(values)
    except TypeError as error:
        raise ClusterError(str(error)) from error


def _too_much(doing: str, sizes: Mapping[str, int], at_most: int) -> UsageError:
    values = ", ".join(f"`{name}` {binary_size(count)}" for name, count in sizes.items())
    remedy = {"pushing": "push to one rank (--ranks 0), ", "pulling": "pull from one rank (--ranks 0), "}.get(doing, "")
    return UsageError(
        f"{doing} {values} would move more than {binary_size(at_most)}: {remedy}take a slice, or lift the limit by "
        "--force or HVD_MAX_MOVE"
    )
