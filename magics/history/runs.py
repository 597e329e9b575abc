"""%hvd runs: a table of runs, or two of them side by side with their curves in one picture."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from hvd_kernel.errors import UsageError
from hvd_kernel.formatting import units
from hvd_kernel.magics.commands.subcommands.life import table
from hvd_kernel.magics.context import Context
from hvd_kernel.magics.history.run_record import RunRecord
from hvd_kernel.magics.options import Options

LISTED = 20
"""Runs in the table, the latest ones."""

_BARS = "▁▂▃▄▅▆▇█"
_WIDTH = 10  # the table has room in a small window of JupyterLab
_TWO = 2
_HEAD = ("run", "ended", "cell", "state", "ranks", "seconds", "steps", "samples/s", "loss", "", "source")


def runs(context: Context, options: Options) -> None:
    """Show the latest runs, one run, or two beside each other; seconds, samples per second and GB/s.

    Example: ``%hvd runs 3 7``.

    Raises
    ------
    UsageError
        An argument is no run's number.
    """
    history, writer = context.manager.history, context.writer()
    records = history.records()
    note = f"not kept beyond this kernel: {history.problem}\n" if history.problem else ""
    if not records:
        writer.say(f"{note}no cell has trained yet: a run is a cell with optimizer steps, or values of hvd.log\n")
        return
    if len(options.arguments) == 1:
        writer.say(note + page(records[-LISTED:]))
        return
    chosen = [_chosen(word, records) for word in options.arguments[1:]]
    from hvd_kernel.widgets.overlay import overlay  # noqa: PLC0415 - a kernel that shows none starts without it

    text = beside(chosen)
    curves = {f"run {record.number}": record.curves for record in chosen}
    writer.show({"image/svg+xml": overlay(curves, loss_of(chosen[0])), "text/plain": text})
    writer.say(text)


def page(records: Sequence[RunRecord]) -> str:
    """Return the table. Pure but for the time zone."""
    return table([_HEAD, *(_row(record) for record in records)])


def beside(records: Sequence[RunRecord]) -> str:
    """Return the figures of runs in columns, and how many times those of the last are those of the first."""
    names = dict.fromkeys(name for record in records for name in record.logged)
    figures: list[tuple[str, list[float | str | None]]] = [
        ("ranks", [len(record.ranks) for record in records]),
        ("seconds", [record.seconds for record in records]),
        ("steps", [record.steps for record in records]),
        ("samples/s", [record.samples_per_s for record in records]),
        ("allreduce GB/s", [record.gbps for record in records]),
        ("communication %", [None if record.comm is None else 100 * record.comm for record in records]),
        *((name, [record.logged.get(name) for record in records]) for name in names),
    ]
    same = "the same source" if len({record.source for record in records}) == 1 else "different sources"
    head = ["", *(f"run {record.number}" for record in records), *(["ratio"] * (len(records) == _TWO))]
    rows = [tuple(head)]
    for name, values in figures:
        if any(value is not None for value in values):
            rows.append((name, *map(units.metric, values), *([_ratio(values)] * (len(records) == _TWO))))
    return table(rows) + (f"{same}\n" if len(records) > 1 else "")


def loss_of(record: RunRecord) -> str:
    """Return the name of the logged value that stands for a run: a loss if there is one, else the first; "" if none."""
    return next((name for name in record.logged if "loss" in name.lower()), next(iter(record.logged), ""))


def sparkline(values: Sequence[float | None]) -> str:
    """Return a curve as bars: the lowest value is the lowest bar.

    Example: ``sparkline([1.0, 2.0, 3.0])`` is ``▁▄█``.
    """
    there = [value for value in values if value is not None]
    if not there:
        return ""
    step = max(1, -(-len(there) // _WIDTH))
    means = [sum(part) / len(part) for part in (there[at : at + step] for at in range(0, len(there), step))]
    low, span = min(means), (max(means) - min(means)) or 1.0
    return "".join(_BARS[int((value - low) / span * (len(_BARS) - 1))] for value in means)


def _row(record: RunRecord) -> tuple[str, ...]:
    loss = loss_of(record)
    curve: Mapping[str, object] = record.curves
    values = record.curves[f"log:{loss}"][1] if f"log:{loss}" in curve else ()
    return (
        str(record.number),
        time.strftime("%m-%d %H:%M", time.localtime(record.time)),
        f"[{record.cell}]",
        record.state,
        str(len(record.ranks)),
        f"{record.seconds:.1f}",
        f"{record.steps:,}",
        units.number(record.samples_per_s),
        units.metric(record.logged.get(loss)),
        sparkline(values),
        record.source[:6],
    )


def _chosen(word: str, records: Sequence[RunRecord]) -> RunRecord:
    found = next((record for record in records if str(record.number) == word), None)
    if found is None:
        raise UsageError(f"%hvd runs: there is no run {word}; the latest is {records[-1].number}, %hvd runs lists them")
    return found


def _ratio(values: Sequence[float | str | None]) -> str:
    first, last = values[0], values[-1]
    if not isinstance(first, int | float) or not isinstance(last, int | float) or not first:
        return units.NONE
    return f"{last / first:.2f}"
