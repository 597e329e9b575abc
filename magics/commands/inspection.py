"""Inspection of the ranks: stacks, memory, bandwidth, the machine's doctor, and the debugger's prompts."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from hvd_kernel.diagnosis import machine
from hvd_kernel.diagnosis.inquiry import locate
from hvd_kernel.diagnosis.stall import report
from hvd_kernel.errors import UsageError
from hvd_kernel.formatting.rank_labels import rank_list, spans
from hvd_kernel.formatting.units import size_of
from hvd_kernel.magics.cell_driver import drive
from hvd_kernel.magics.cluster_request import default_ranks
from hvd_kernel.magics.commands.lifecycle import replace_stuck
from hvd_kernel.magics.context import Context
from hvd_kernel.magics.display.rank_failures import RankError, local_hint
from hvd_kernel.magics.display.user_errors import user_errors
from hvd_kernel.magics.display.writer import aligned
from hvd_kernel.magics.engines import HERE, examine_on
from hvd_kernel.magics.options import Options, resolve
from hvd_kernel.processes.bandwidth import measure


def stacks(context: Context, options: Options) -> None:
    """Show the stacks of ranks, also while they run a cell.

    Example: ``%hvd stacks --ranks 2``.

    Raises
    ------
    ClusterError
        No ranks are running.
    """
    session = context.manager.current()
    context.writer().write(report(locate(session, resolve(options.ranks, session.n))))


BARRIER = "hvd.barrier()"


def barrier(context: Context, _options: Options) -> None:
    """Run ``hvd.barrier()`` as a cell, which can be interrupted as any other, and shows which ranks it waits for.

    Example: ``%hvd barrier``.

    Raises
    ------
    ClusterError
        No ranks are running.
    """
    session, writer = context.manager.current(), context.writer()
    ranks = tuple(range(session.n))
    watch, _, _ = drive(session, context.manager, writer, BARRIER, ranks)
    replace_stuck(context, watch)
    watch.check(local_hint(context.shell.user_ns))
    writer.write(f"{rank_list(ranks)} met\n")


LISTED = 15
"""Variables in the table, the largest ones."""

_ANSWER_S = 600.0


def memory(context: Context, options: Options) -> None:
    """Show the memory use of the ranks, in bytes with a unit: kinds first, then the largest variables.

    Example: ``%hvd memory --ranks 2``.

    Raises
    ------
    ClusterError
        No ranks are running.
    """
    session = context.manager.current()
    answers = session.ask("memory", resolve(options.ranks, session.n), timeout=_ANSWER_S)
    context.writer().write(memory_table({rank: content for rank, (content, _) in answers.items()}))


def memory_table(ranks: Mapping[int, Mapping[str, Any]]) -> str:
    """Return the table: first kinds of memory, then variables, the largest first. Pure."""
    names = {name for content in ranks.values() for name in content["names"]}
    variables = {name: {rank: content["names"].get(name) for rank, content in ranks.items()} for name in names}
    rows = [_row(name, copies) for name, copies in variables.items() if any(map(_size, filter(None, copies.values())))]
    rows.sort(key=lambda row: (-row[0], row[1]))
    lines: list[tuple[str, ...]] = [("name", "type", "size", "gradients", "ranks", "made in")]
    for kind in dict.fromkeys(kind for content in ranks.values() for kind in content["kinds"]):
        sizes = {rank: content["kinds"][kind] for rank, content in ranks.items() if kind in content["kinds"]}
        lines.append((f"({kind})", "", size_of(max(sizes.values())), "", _where(sizes), ""))
    lines += [row[1:] for row in rows[:LISTED]]
    notes = [f"{len(rows) - LISTED} smaller ones"] if len(rows) > LISTED else []
    notes += dict.fromkeys(note for content in ranks.values() for note in content["unseen"])
    return aligned(lines) + "".join(f"{note}\n" for note in notes)


def _row(name: str, copies: Mapping[int, Mapping[str, Any] | None]) -> tuple[Any, ...]:
    sizes = {rank: _size(copy) for rank, copy in copies.items() if copy}
    most = next(copy for copy in copies.values() if copy and _size(copy) == max(sizes.values()))
    gradients = size_of(most["gradients"]) if most["gradients"] else ""
    return max(sizes.values()), name, most["type"], size_of(most["size"]), gradients, _where(sizes), most["made"]


def _size(copy: Mapping[str, Any]) -> int:
    return int(copy["size"] + copy["gradients"])


def _where(sizes: Mapping[int, int]) -> str:
    """Return the ranks with the largest size and, if other ranks have less, the smallest size."""
    most = max(sizes.values())
    largest = spans(rank for rank, size in sizes.items() if size_of(size) == size_of(most))
    least = min(sizes.values())
    return largest if size_of(least) == size_of(most) else f"{largest}; least {size_of(least)}"


def collect_garbage(context: Context, options: Options) -> None:
    """Free unused memory on the ranks, and show the memory of each before and after.

    Example: ``%hvd gc``.

    Raises
    ------
    ClusterError
        No ranks are running.
    """
    session = context.manager.current()
    answers = session.ask("gc", resolve(options.ranks, session.n), timeout=_ANSWER_S)
    rows: list[tuple[str, ...]] = [("rank", "before", "after")]
    rows += [
        (str(rank), size_of(content["before"]), size_of(content["after"])) for rank, (content, _) in answers.items()
    ]
    context.writer().write(aligned(rows))


_FEWEST = 2


def bench(context: Context, options: Options) -> None:
    """Measure allreduce in separate processes, one per rank, while the ranks are idle; show a table and a picture.

    Example: ``%hvd bench -np 4``.

    Raises
    ------
    ClusterError
        A process failed, or received wrong values.
    """
    session, writer = context.manager.session, context.writer()
    ranks = max(_FEWEST, options.n or (session.n if session is not None else default_ranks()))
    writer.status()(f"measuring with {ranks} processes, about half a minute")
    result = measure(ranks)
    writer.show({"image/svg+xml": result.svg, "text/plain": f"hvd bench: {ranks} ranks"})
    writer.write(str(result))


POST_MORTEM = "%debug"
"""The cell that %hvddebug runs; a rank keeps its last exception for it (worker/shell/debugger.py)."""


@user_errors()
def debug(context: Context, options: Options) -> None:
    """Open pdb at the exception of a rank's last cell: on the rank of the line, else on the first rank that failed.

    Example: ``%hvddebug --rank 1``.

    Raises
    ------
    UsageError
        The line names no rank, and the last error is not a rank's; or the ranks are busy with a cell.
    ClusterError
        No ranks are running.
    """
    with context.manager.use():
        session = context.manager.current()
        ranks = (failed_rank(),) if options.ranks == "all" else resolve(options.ranks, session.n)
        watch, _, _ = drive(session, context.manager, context.writer(), POST_MORTEM, ranks)
        watch.check()


def failed_rank() -> int:
    """Return the rank of the last error in this notebook.

    Raises
    ------
    UsageError
        The last error is not a rank's.
    """
    error = getattr(sys, "last_value", None)
    if not isinstance(error, RankError):
        raise UsageError("%hvddebug: the last error here is not of a rank: name the rank, as in %hvddebug --rank 1")
    return error.rank


ANSWER_S = 3.0
"""Time that %hvdpdb waits for the next prompts of ranks."""

PDB_HELP = """\
Without a line it shows which ranks wait, and their prompts. It is for prompts of jobs (%%hvdrun --bg), and from a
subshell. Under a running cell, answer at its prompt; there ``@0,2 n`` and ``@all n`` are for several ranks."""

_NO_PROMPT = "%hvdpdb: no rank waits at a prompt: breakpoint() or input() in a cell opens one"


@user_errors()
def pdb(context: Context, options: Options) -> None:
    """Send the text of the line, if any, to ranks at a prompt, and show their answers of the next three seconds.

    Example: ``%hvdpdb --ranks 0,2 p loss``.

    Raises
    ------
    UsageError
        No rank waits at a prompt, or one that the line names does not.
    """
    prompts = context.manager.prompts
    waiting = prompts.waiting() if prompts is not None else {}
    if prompts is None or not waiting:
        raise UsageError(_NO_PROMPT)
    ranks = resolve(options.ranks, context.manager.current().n) if options.ranks != "all" else tuple(waiting)
    if absent := sorted(set(ranks) - set(waiting)):
        raise UsageError(f"%hvdpdb: no prompt on {rank_list(absent)}: choose from {rank_list(waiting)}")
    if options.text:
        prompts.cast(ranks, options.text)
    context.writer().write(prompts.collect(ranks, ANSWER_S))


def doctor(context: Context, options: Options) -> None:
    """Show what is missing on this machine, or with ``--on`` on an engine, and how to install it.

    Example: ``%hvd doctor --on ray``.
    """
    context.writer().write(
        machine.report(examine_on(options.on) if options.on not in {"", HERE} else machine.examine())
    )
