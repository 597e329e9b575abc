"""%hvd timeline: the latest operations of the ranks, from each core's memory; a Chrome trace that rank 0 records."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hvd_kernel.errors import ClusterError, UsageError
from hvd_kernel.magics.context import Context
from hvd_kernel.magics.options import Options, nearest
from hvd_kernel.protocol.operations import Recent

if TYPE_CHECKING:
    from hvd_kernel.widgets.swimlanes.window import Lane


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
    context.writer().write(f"{path}: the last operations of ranks {', '.join(map(str, lanes))}\n")


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
