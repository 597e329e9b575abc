"""%hvd memory and %hvd gc: what fills the ranks, and garbage collection on them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hvd_kernel.formatting.rank_labels import spans
from hvd_kernel.formatting.units import size_of
from hvd_kernel.magics.commands.subcommands.life import table
from hvd_kernel.magics.context import Context
from hvd_kernel.magics.options import Options, resolve

LISTED = 15
"""Variables in the table, the largest ones."""

_ANSWER_S = 600.0


def show(context: Context, options: Options) -> None:
    """Show what fills the ranks' memory, in bytes with a unit: kinds first, then the largest variables.

    Example: ``%hvd memory --ranks 2``.

    Raises
    ------
    ClusterError
        No ranks are running.
    """
    session = context.manager.current()
    answers = session.ask("memory", resolve(options.ranks, session.n), timeout=_ANSWER_S)
    context.writer().say(page({rank: content for rank, (content, _) in answers.items()}))


def page(ranks: Mapping[int, Mapping[str, Any]]) -> str:
    """Write the table: first kinds of memory, then variables, the largest first. Pure."""
    names = {name for content in ranks.values() for name in content["names"]}
    found = {name: {rank: content["names"].get(name) for rank, content in ranks.items()} for name in names}
    rows = [_row(name, there) for name, there in found.items() if any(each and _size(each) for each in there.values())]
    rows.sort(key=lambda row: (-row[0], row[1]))
    lines: list[tuple[str, ...]] = [("name", "type", "size", "gradients", "ranks", "made in")]
    for kind in dict.fromkeys(kind for content in ranks.values() for kind in content["kinds"]):
        sizes = {rank: content["kinds"][kind] for rank, content in ranks.items() if kind in content["kinds"]}
        lines.append((f"({kind})", "", size_of(max(sizes.values())), "", _where(sizes), ""))
    lines += [row[1:] for row in rows[:LISTED]]
    notes = [f"{len(rows) - LISTED} smaller ones"] if len(rows) > LISTED else []
    notes += dict.fromkeys(note for content in ranks.values() for note in content["unseen"])
    return table(lines) + "".join(f"{note}\n" for note in notes)


def _row(name: str, there: Mapping[int, Mapping[str, Any] | None]) -> tuple[Any, ...]:
    sizes = {rank: _size(each) for rank, each in there.items() if each}
    most = next(each for each in there.values() if each and _size(each) == max(sizes.values()))
    gradients = size_of(most["gradients"]) if most["gradients"] else ""
    return max(sizes.values()), name, most["type"], size_of(most["size"]), gradients, _where(sizes), most["made"]


def _size(each: Mapping[str, Any]) -> int:
    return int(each["size"] + each["gradients"])


def _where(sizes: Mapping[int, int]) -> str:
    """Say on which ranks that is; where others have less, how little the least is."""
    most = max(sizes.values())
    largest = spans(rank for rank, size in sizes.items() if size_of(size) == size_of(most))
    least = min(sizes.values())
    return largest if size_of(least) == size_of(most) else f"{largest}; least {size_of(least)}"


def collect(context: Context, options: Options) -> None:
    """Have the ranks let go of what nothing needs, and show what each has in memory before and after.

    Example: ``%hvd gc``.

    Raises
    ------
    ClusterError
        No ranks are running.
    """
    session = context.manager.current()
    answers = session.ask("gc", resolve(options.ranks, session.n), timeout=_ANSWER_S)
    rows: list[tuple[str, ...]] = [("rank", "before", "after")]
    rows += [(str(rank), size_of(said["before"]), size_of(said["after"])) for rank, (said, _) in answers.items()]
    context.writer().say(table(rows))
