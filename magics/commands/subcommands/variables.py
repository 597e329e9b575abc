"""%hvd vars: the user's variables over all ranks, and which ranks agree."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hvd_kernel.diagnosis import agreement
from hvd_kernel.magics.commands.subcommands.life import table
from hvd_kernel.magics.context import Context
from hvd_kernel.magics.options import Options, resolve

Row = Mapping[str, Any]
MAX_CELL = 40
EVERYTHING = 1 << 62
_ANSWER_S = 10.0
_COMPARE_S = 600.0
_COLUMNS = ("type", "shape", "dtype", "value")
BUSY = "the ranks run a cell: what they hold is compared when it has ended\n"


def show(context: Context, options: Options) -> None:
    """Show one line per variable: its type, shape and dtype, and which ranks agree on it.

    Example: ``%hvd vars model lr``.

    Raises
    ------
    ClusterError
        No ranks are running.
    """
    session = context.manager.current()
    ranks = resolve(options.ranks, session.n)
    asked = {"names": list(options.arguments[1:]), "compare": EVERYTHING}
    # A busy rank's main thread answers nobody, its control thread touches nothing that the cell is using.
    busy = session.running
    answers = session.ask("variables", ranks, asked, timeout=_ANSWER_S if busy else _COMPARE_S, urgent=busy)
    rows = {rank: content["rows"] for rank, (content, _) in answers.items()}
    context.writer().say(page(rows) + (BUSY if any(content["busy"] for content, _ in answers.values()) else ""))


def page(rows: Mapping[int, Mapping[str, Row]]) -> str:
    """Write the table, names in the order of the alphabet. Pure."""
    every = sorted({name for each in rows.values() for name in each})
    if not every:
        return "the ranks have no variables\n"
    lines: list[tuple[str, ...]] = [("name", *_COLUMNS, "ranks")]
    for name in every:
        there = {rank: each[name] for rank, each in rows.items() if name in each}
        lines.append(
            (name, *(_merged(row[column] for row in there.values()) for column in _COLUMNS), _word(there, rows))
        )
    return table(lines)


def word(there: Mapping[int, Row]) -> str:
    """Say whether ranks that have a variable agree on it; "" when nobody looked."""
    if differs := agreement.difference({rank: _looks(row) for rank, row in there.items()}):
        return differs
    digests = {rank: row.get("digest") for rank, row in there.items()}
    if not all(digests.values()):
        return "not compared" if "" in digests.values() else ""
    kept = {rank: digest for rank, digest in digests.items() if digest}
    found = agreement.difference(kept) or agreement.same(len(kept))
    notes = [note for note in ("sampled", "partly") if any(row.get(note) for row in there.values())]
    return f"{found} ({', '.join(notes)})" if notes else found


def _word(there: Mapping[int, Row], rows: Mapping[int, object]) -> str:
    if len(there) == len(rows):
        return word(there)
    place = agreement.where(there)
    differs = agreement.difference({rank: f"{_looks(row)} {row.get('digest')}" for rank, row in there.items()})
    return f"{place}; {differs}" if differs else place


def _looks(row: Row) -> str:
    return repr([row[column] for column in _COLUMNS])


def _merged(texts: Iterable[str]) -> str:
    different = list(dict.fromkeys(texts))
    text = " | ".join(different)
    return text if len(text) <= MAX_CELL or len(different) == 1 else f"{text[: MAX_CELL - 1]}…"
