"""Transfer of values between notebook and ranks: how much may move, and by which way.

Between processes of one host large parts go by a shared buffer, to other hosts by wire. Nothing moves before it is
clear that it may.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from hvd_kernel.errors import ClusterError, UsageError
from hvd_kernel.formatting.binary_size import binary_size
from hvd_kernel.protocol import serialization
from hvd_kernel.settings import lookup

Answers = dict[int, tuple[Mapping[str, Any], list[Any]]]
Ask = Callable[[Sequence[int], dict[str, Any], Sequence[Any]], Answers]
"""Asks ranks, with content and buffers."""


def limit(*, force: bool) -> int | None:
    """Return how many bytes may move at once, over all ranks together; None: any."""
    return None if force else int(lookup.value("HVD_MAX_MOVE", os.environ))


def give(values: dict[str, Any], ranks: Sequence[int], here: Collection[int], at_most: int | None, ask: Ask) -> None:
    """Send values to ranks, those of this host by a shared buffer.

    Raises
    ------
    ClusterError
        Naming the first value that cannot be pickled.
    UsageError
        If all ranks' copies together are larger than allowed.
    """
    parts = _packed(values)
    if at_most is not None and serialization.size(parts) * len(ranks) > at_most:
        sizes = {name: serialization.size(serialization.pack(value)) * len(ranks) for name, value in values.items()}
        raise _too_much("pushing", sizes, at_most)
    _send(parts, ranks, here, ask)


def deal(parts: Mapping[int, dict[str, Any]], here: Collection[int], at_most: int | None, ask: Ask) -> None:
    """Send each rank its own values.

    Raises
    ------
    ClusterError, UsageError
        As ``give``, of all ranks' values together, before anything moves.
    """
    packed = {rank: _packed(values) for rank, values in parts.items()}
    if at_most is not None and sum(map(serialization.size, packed.values())) > at_most:
        sizes = Counter[str]()
        for values in parts.values():
            sizes.update({name: serialization.size(serialization.pack(value)) for name, value in values.items()})
        raise _too_much("scattering", sizes, at_most)
    for rank, each in packed.items():
        _send(each, [rank], here, ask)


def _send(parts: list[Any], ranks: Sequence[int], here: Collection[int], ask: Ask) -> None:
    far = [rank for rank in ranks if rank not in here]
    if near := [rank for rank in ranks if rank in here]:
        with serialization.shared_buffer() as (descriptor, address):
            wire, placed = serialization.put(parts, descriptor)
            answers = ask(near, {"buffer": address, "placed": placed}, wire)
        far += [rank for rank, (content, _) in answers.items() if content.get("unreached")]
    if far:
        ask(far, {"buffer": None, "placed": []}, parts)


def fetch(ranks: Sequence[int], here: Collection[int], at_most: int | None, ask: Ask) -> dict[int, Any]:
    """Ask ranks for values. A rank answers with sizes instead when its values are more than its share.

    Raises
    ------
    UsageError
        If the values of all ranks together are larger than allowed.
    """
    found, told = _fetch(ranks, here, None if at_most is None else at_most // max(1, len(ranks)), ask)
    if not told:
        return {rank: serialization.unpack(parts) for rank, parts in found.items()}
    # One rank may have more than its share, and all together still no more than is allowed.
    sizes = {name: sum(each[name] for each in told) for name in told[0]}
    if at_most is not None and sum(sizes.values()) + sum(map(serialization.size, found.values())) > at_most:
        raise _too_much("pulling", sizes, at_most)
    found, _ = _fetch(ranks, here, None, ask)
    return {rank: serialization.unpack(parts) for rank, parts in found.items()}


def _fetch(
    ranks: Sequence[int], here: Collection[int], share: int | None, ask: Ask
) -> tuple[dict[int, list[Any]], list[Mapping[str, int]]]:
    """Return the parts of the ranks that sent them, and the sizes of those that did not."""
    with ExitStack() as stack:
        shared = {rank: stack.enter_context(serialization.shared_buffer()) for rank in ranks if rank in here}
        addresses = {str(rank): address for rank, (_, address) in shared.items()}
        answers = ask(ranks, {"at_most": share, "buffers": addresses}, [])
        found = {
            rank: serialization.collect(buffers, content["placed"], shared[rank][0] if rank in shared else None)
            for rank, (content, buffers) in answers.items()
            if "sizes" not in content
        }
    return found, [content["sizes"] for content, _ in answers.values() if "sizes" in content]


def _packed(values: dict[str, Any]) -> list[Any]:
    try:
        return serialization.pack(values)
    except Exception:
        for name, value in values.items():
            try:
                serialization.pack(value)
            except Exception as error:
                raise ClusterError(f"`{name}` ({type(value).__name__}) cannot be sent to the ranks: {error}") from error
        raise


def _too_much(doing: str, sizes: Mapping[str, int], at_most: int) -> UsageError:
    each = ", ".join(f"`{name}` {binary_size(count)}" for name, count in sizes.items())
    remedy = {"pushing": "push to one rank (--ranks 0), ", "pulling": "pull from one rank (--ranks 0), "}.get(doing, "")
    return UsageError(
        f"{doing} {each} would move more than {binary_size(at_most)}: {remedy}take a slice, or lift the limit by "
        "--force or HVD_MAX_MOVE"
    )
