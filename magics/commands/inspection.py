"""Inspection of the ranks: stacks, memory, bandwidth, the machine's doctor, the debugger's prompts, the timeline.

%hvd timeline shows the latest operations of the ranks, from each core's memory, and a Chrome trace that rank 0 records.
"""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hvd_kernel.diagnosis import machine
from hvd_kernel.diagnosis.inquiry import locate
from hvd_kernel.diagnosis.stall import report
from hvd_kernel.errors import ClusterError, UsageError
from hvd_kernel.formatting.rank_labels import rank_list, spans
from hvd_kernel.formatting.units import decimal_size
from hvd_kernel.magics.cell_view import drive
from hvd_kernel.magics.cluster_request import HERE, default_ranks, examine_on
from hvd_kernel.magics.commands.lifecycle import replace_stuck
from hvd_kernel.magics.context import Context
from hvd_kernel.magics.display.user_errors import RankError, local_hint, user_errors
from hvd_kernel.magics.display.writer import aligned
from hvd_kernel.magics.options import Options, nearest, resolve
from hvd_kernel.processes.bandwidth import measure
from hvd_kernel.protocol.operations import Recent

if TYPE_CHECKING:
    from hvd_kernel.widgets.swimlanes.window import Lane


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
    view = drive(session, context.manager, writer, BARRIER, ranks)
    replace_stuck(context, view)
    view.check(local_hint(context.shell.user_ns))
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
        lines.append((f"({kind})", "", decimal_size(max(sizes.values())), "", _where(sizes), ""))
    lines += [row[1:] for row in rows[:LISTED]]
    notes = [f"{len(rows) - LISTED} smaller ones"] if len(rows) > LISTED else []
    notes += dict.fromkeys(note for content in ranks.values() for note in content["unseen"])
    return aligned(lines) + "".join(f"{note}\n" for note in notes)


def _row(name: str, copies: Mapping[int, Mapping[str, Any] | None]) -> tuple[Any, ...]:
    sizes = {rank: _size(copy) for rank, copy in copies.items() if copy}
    most = next(copy for copy in copies.values() if copy and _size(copy) == max(sizes.values()))
    gradients = decimal_size(most["gradients"]) if most["gradients"] else ""
    return max(sizes.values()), name, most["type"], decimal_size(most["size"]), gradients, _where(sizes), most["made"]


def _size(copy: Mapping[str, Any]) -> int:
    return int(copy["size"] + copy["gradients"])


def _where(sizes: Mapping[int, int]) -> str:
    """Return the ranks with the largest size and, if other ranks have less, the smallest size."""
    most = max(sizes.values())
    largest = spans(rank for rank, size in sizes.items() if decimal_size(size) == decimal_size(most))
    least = min(sizes.values())
    return largest if decimal_size(least) == decimal_size(most) else f"{largest}; least {decimal_size(least)}"


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
        (str(rank), decimal_size(content["before"]), decimal_size(content["after"]))
        for rank, (content, _) in answers.items()
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
"""The cell that %hvddebug runs; a rank keeps its last exception for it (worker/shell/prompt.py)."""


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
        view = drive(session, context.manager, context.writer(), POST_MORTEM, ranks)
        view.check()


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


EVER_S = 1e9
"""Seconds that include all operations in a core's memory."""

TIMELINE = "hvd-timeline.json"
"""The default file of a recording, in the notebook's folder."""


def timeline(context: Context, options: Options) -> None:
    """Show or save the latest operations of the ranks, or start, stop and show a recording; times are microseconds.

    Example: ``%hvd timeline save run.json``.

    Raises
    ------
    UsageError
        There is no such action, no recording runs, or the file cannot be written or is no timeline.
    """
    word, path, *_ = (*(options.arguments[1:] or ("",)), "")
    if word not in _ACTIONS:
        usage = "write %hvd timeline, save FILE, start [FILE], stop, or show [FILE]"
        raise UsageError(f"%hvd timeline: {word!r} is not understood{nearest(word, [*_ACTIONS])}; {usage}")
    _ACTIONS[word](context, options, path)


def _start(context: Context, options: Options, name: str) -> None:
    path = Path(name or TIMELINE).absolute()
    if not options.force and path.is_file() and not path.read_bytes()[:40].startswith(b'[\n{"name":"process_name"'):
        raise UsageError(f"%hvd timeline: {path} exists and is not a timeline: name another file, or add --force")
    _request(context, "start", path=str(path), cycles=options.mark_cycles)
    context.writer().write(f"rank 0 records into {path}: run cells, then %hvd timeline stop\n")


def _stop(context: Context, _options: Options, name: str) -> None:
    if name:
        raise UsageError(
            f"%hvd timeline stop takes no file name, and {name} was given: it ends the timeline that was started"
        )
    if not _request(context, "tell")["goes_on"]:
        raise UsageError("%hvd timeline: none is being recorded; %hvd timeline start begins one")
    _show(context, _request(context, "stop"))


def _show_recorded(context: Context, _options: Options, name: str) -> None:
    if name:
        _show(context, {"path": str(Path(name).absolute())})
        return
    recording = _request(context, "tell") if context.manager.session is not None else {"path": ""}
    if not recording["path"]:
        raise UsageError("%hvd timeline: nothing has been recorded; write %hvd timeline start, or show FILE")
    _show(context, recording)


def _show_latest(context: Context, _options: Options, _name: str) -> None:
    """Show the recording, if there is one; else the operations in the cores' memory."""
    if context.manager.session is not None and _request(context, "tell")["path"]:
        _show_recorded(context, _options, "")
        return
    from hvd_kernel.widgets.swimlanes import rank_lanes  # noqa: PLC0415 - a kernel that shows none starts without it

    lanes = _remembered(context)
    text = rank_lanes.table(lanes)
    context.writer().show({"text/plain": text, "text/html": rank_lanes.page(lanes, text)})


def _save(context: Context, options: Options, name: str) -> None:
    """Write the operations in the cores' memory: a trace to a .json file, a picture to a .svg file."""
    path = Path(name)
    if path.suffix not in {".json", ".svg"}:
        raise UsageError("%hvd timeline save: name a file that ends with .json (a Chrome trace) or .svg (a picture)")
    if path.exists() and not options.force:
        raise UsageError(f"%hvd timeline: {path} exists: name another file, or add --force")
    from hvd_kernel.widgets.swimlanes import rank_lanes  # noqa: PLC0415 - a kernel that shows none starts without it

    lanes = _remembered(context)
    try:
        path.write_text(
            rank_lanes.render(lanes, "timeline") if path.suffix == ".svg" else rank_lanes.chrome_trace(lanes)
        )
    except OSError as error:
        raise UsageError(f"%hvd timeline: {path} cannot be written: {error.strerror}") from None
    context.writer().write(f"{path}: the last operations of {rank_list(lanes)}\n")


def _remembered(context: Context) -> Mapping[int, Lane]:
    """Query each rank's core for its latest operations, also while a cell runs."""
    from hvd_kernel.widgets.swimlanes.window import Window, chosen  # noqa: PLC0415 - as above

    if context.manager.session is None:
        raise UsageError("%hvd timeline: no ranks run, so nothing is remembered; run a cell with %%hvdrun first")
    session = context.manager.current()
    living = [rank for rank in range(session.n) if rank not in session.dead]
    ran = session.latest.ranks if session.latest is not None else living  # other ranks remember an earlier cell
    in_cell = [rank for rank in living if rank in ran]
    for ranks, seconds in ((in_cell, None), (living, EVER_S)):  # the last cell, if it has communicated; else all
        queried = chosen(ranks, (), None)
        answers = session.ask("recent", queried, {"cursors": {}, "seconds": seconds, "over": True}, urgent=True)
        window = Window(socket.gethostname(), 0)
        recent = {rank: Recent.of(content) for rank, (content, _) in answers.items()}
        window.update(recent, round(1e6 * time.monotonic()), over=True)
        if any(lane.operations for lane in window.lanes.values()):
            return window.lanes
    raise UsageError("%hvd timeline: the ranks have not communicated yet")


def _request(context: Context, action: str, **arguments: object) -> Mapping[str, Any]:
    """Request an action of rank 0 on its recording, also while a cell runs."""
    answers = context.manager.current().ask("timeline", [0], {"do": action, **arguments}, urgent=True)
    if 0 not in answers:
        raise ClusterError("%hvd timeline: rank 0, which writes timelines, is dead; %hvd respawn 0 replaces it")
    content = answers[0][0]
    if content["refused"]:
        raise UsageError(f"%hvd timeline: {content['refused']}")
    return content


def _show(context: Context, file: Mapping[str, Any]) -> None:
    from hvd_kernel.widgets import lanes, timeline  # noqa: PLC0415 - a kernel that shows none starts without them

    path = Path(file["path"])
    try:
        if path.stat().st_size > timeline.LARGEST:
            raise UsageError(f"%hvd timeline: {path} is too large to be shown here: open it in {timeline.VIEWERS}")
        recording = timeline.parse(path.read_text())
    except OSError as error:
        where = f" (rank 0 runs on {file['host']}: copy it from there)" if "host" in file else ""
        raise UsageError(f"%hvd timeline: {path} cannot be read: {error.strerror}{where}") from None
    except ValueError as error:
        raise UsageError(f"%hvd timeline: {path}: {error}") from None
    text = f"{path}: {timeline.summary(recording)}zoom into it in {timeline.VIEWERS}\n"
    context.writer().show({"text/plain": text, "text/html": lanes.page(recording, str(path), text)})


_ACTIONS = {"": _show_latest, "save": _save, "start": _start, "stop": _stop, "show": _show_recorded}
