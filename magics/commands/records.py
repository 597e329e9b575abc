"""Records of past cells: runs and their curves, export as a script, tracking services, the plan of a job's file."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from hvd_kernel import tracking
from hvd_kernel.errors import ClusterError, UsageError
from hvd_kernel.formatting import units
from hvd_kernel.magics.cell_record import CellRecord
from hvd_kernel.magics.context import Context
from hvd_kernel.magics.display.writer import aligned
from hvd_kernel.magics.export import script
from hvd_kernel.magics.options import Options
from hvd_kernel.widgets.definitions import BUS, EXPOSED

LISTED = 20
"""Runs in the table, the latest ones."""

_BARS = "▁▂▃▄▅▆▇█"
_WIDTH = 10  # the table has room in a small window of JupyterLab
_TWO = 2
_HEAD = ("run", "ended", "cell", "state", "ranks", "seconds", "steps", "samples/s", "loss", "", "source")


def runs(context: Context, options: Options) -> None:
    """Show the latest runs, one run, or several side by side, in seconds, samples per second and GB/s.

    Example: ``%hvd runs 3 7``.

    Raises
    ------
    UsageError
        An argument is not the number of a run.
    """
    history, writer = context.manager.history, context.writer()
    records = history.records()
    note = f"not kept beyond this kernel: {history.problem}\n" if history.problem else ""
    if not records:
        writer.write(f"{note}no cell has trained yet: a run is a cell with optimizer steps, or values of hvd.log\n")
        return
    if len(options.arguments) == 1:
        writer.write(note + runs_table(records[-LISTED:]))
        return
    chosen = [_chosen(word, records) for word in options.arguments[1:]]
    from hvd_kernel.widgets.picture import overlay  # noqa: PLC0415 - a kernel that shows none starts without it

    text = beside(chosen)
    curves = {f"run {record.number}": record.curves for record in chosen}
    writer.show({"image/svg+xml": overlay(curves, loss_of(chosen[0])), "text/plain": text})
    writer.write(text)


def runs_table(records: Sequence[CellRecord]) -> str:
    """Return the table. Pure but for the time zone."""
    return aligned([_HEAD, *(_run_row(record) for record in records)])


def beside(records: Sequence[CellRecord]) -> str:
    """Return the figures of runs in columns; of two runs also the ratio of the second to the first."""
    names = dict.fromkeys(name for record in records for name in record.logged)
    figures: list[tuple[str, list[float | str | None]]] = [
        ("ranks", [len(record.ranks) for record in records]),
        ("seconds", [record.seconds for record in records]),
        ("steps", [record.steps for record in records]),
        ("samples/s", [record.samples_per_s for record in records]),
        (BUS, [record.bus for record in records]),
        (f"{EXPOSED} %", [None if record.exposed is None else 100 * record.exposed for record in records]),
        *((name, [record.logged.get(name) for record in records]) for name in names),
    ]
    same = "the same source" if len({record.source for record in records}) == 1 else "different sources"
    head = ["", *(f"run {record.number}" for record in records), *(["ratio"] * (len(records) == _TWO))]
    rows = [tuple(head)]
    for name, values in figures:
        if any(value is not None for value in values):
            rows.append((name, *map(units.metric, values), *([_ratio(values)] * (len(records) == _TWO))))
    return aligned(rows) + (f"{same}\n" if len(records) > 1 else "")


def loss_of(record: CellRecord) -> str:
    """Return the name of a run's main logged value: a loss if there is one, else the first; "" if none."""
    return next((name for name in record.logged if "loss" in name.lower()), next(iter(record.logged), ""))


def sparkline(values: Sequence[float | None]) -> str:
    """Return a curve as bars; the lowest value is the lowest bar.

    Example: ``sparkline([1.0, 2.0, 3.0])`` is ``▁▄█``.
    """
    present = [value for value in values if value is not None]
    if not present:
        return ""
    step = max(1, -(-len(present) // _WIDTH))
    means = [sum(part) / len(part) for part in (present[at : at + step] for at in range(0, len(present), step))]
    low, span = min(means), (max(means) - min(means)) or 1.0
    return "".join(_BARS[int((value - low) / span * (len(_BARS) - 1))] for value in means)


def _run_row(record: CellRecord) -> tuple[str, ...]:
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


def _chosen(word: str, records: Sequence[CellRecord]) -> CellRecord:
    record = next((record for record in records if str(record.number) == word), None)
    if record is None:
        raise UsageError(f"%hvd runs: there is no run {word}; the latest is {records[-1].number}, %hvd runs lists them")
    return record


def _ratio(values: Sequence[float | str | None]) -> str:
    first, last = values[0], values[-1]
    if not isinstance(first, int | float) or not isinstance(last, int | float) or not first:
        return units.NONE
    return f"{last / first:.2f}"


def export(context: Context, options: Options) -> None:
    """Write the script, and report what was left out.

    Example: ``%hvd export train.py``.

    Raises
    ------
    UsageError
        No file is named, the file exists, or a cell cannot be part of a script.
    ClusterError
        All ranks are dead, or none are running.
    """
    path = Path(_script_file(options)).absolute()
    session, manager = context.manager.current(), context.manager
    if not manager.script_cells:
        raise UsageError("%hvd export: no cell has run on these ranks yet")
    if path.exists() and not options.force:
        raise UsageError(f"%hvd export: {path} exists: name another file, or add --force")
    living = [rank for rank in range(session.n) if rank not in session.dead][:1]
    if not living:
        raise ClusterError("%hvd export: all ranks are dead; %hvd restart starts new ones")
    frontend = session.ask("frontend", living)[living[0]][0]
    result = script(manager.script_cells, session.n, path.name, frontend["api"], frontend["package"])
    path.write_text(result.text)
    notes = "".join(f"{sentence}\n" for sentence in result.notes)
    context.writer().write(f"{notes}{path.name} is written: hvdrun -np {session.n} python {path.name}\n")


def _script_file(options: Options) -> str:
    if len(options.arguments) != 2:  # noqa: PLR2004 - export and the file
        raise UsageError("%hvd export: name the file, as in %hvd export train.py")
    return options.arguments[1]


def track(context: Context, options: Options) -> None:
    """Choose the tracking services, or list the runs.

    Example: ``%hvd track jsonl tensorboard:runs``.

    Raises
    ------
    ConfigError
        A service is unknown, or cannot be used.
    UsageError
        The ranks are busy with a cell.
    """
    words = options.arguments[1:]
    if not words or words[0] == "show":
        chosen = tracking.commanded(words[1:] or [os.environ.get(tracking.TRACK, "")], Path.cwd())
        context.writer().write(tracking.page(chosen))
        return
    chosen = tracking.commanded(words, Path.cwd(), per_rank=options.per_rank)
    with context.manager.use():
        session = context.manager.session
        dropped = tracking.start_run(session.ask, chosen) if session is not None else ""
        os.environ[tracking.TRACK] = str(chosen)  # for ranks that start later
    context.writer().write(tracking.sentence(chosen))
    context.writer().write(dropped, "stderr")


def job(context: Context, options: Options) -> None:
    """Show the tasks of a platform's file as a table, without starting them.

    Example: ``%hvd job plan polyaxonfile.yml``.

    Raises
    ------
    UsageError
        The line is not ``plan`` and a file.
    JobError
        The file cannot be read; the position and the field are named.
    """
    words = options.arguments[1:]
    if len(words) != 2 or words[0] != "plan":  # noqa: PLR2004 - a verb and a file
        raise UsageError("%hvd job: write %hvd job plan FILE; %%hvdrun --job FILE runs a cell as the file says")
    from hvd_kernel.jobs.here import of_file  # noqa: PLC0415 - a kernel that reads no such file starts without them
    from hvd_kernel.jobs.plan import as_text, plan  # noqa: PLC0415 - as above

    context.writer().write(as_text(plan(of_file(Path(words[1])))) + "\n")
