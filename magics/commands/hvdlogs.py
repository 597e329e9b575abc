"""%hvdlogs: what ranks have printed, from their log files: all of it, also when the cell or the tab kept less."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from hvd_kernel.errors import ClusterError
from hvd_kernel.formatting.rank_labels import label
from hvd_kernel.magics.context import Context
from hvd_kernel.magics.display.merge import merge_lines
from hvd_kernel.magics.display.terminal_lines import Lines, TextLimits
from hvd_kernel.magics.display.user_error import user_errors
from hvd_kernel.magics.options import Options, resolve
from hvd_kernel.protocol import rank_log

if TYPE_CHECKING:
    from pathlib import Path

    from hvd_kernel.cluster import Session
    from hvd_kernel.magics.display.writer import Writer

ANSWER_S = 10.0

Read = Callable[["Session", Options, int, str], str]


MORE = """\
    %hvdlogs                         the last 100 lines of every rank
    %hvdlogs --ranks 2 --tail 50     the last 50 of rank 2
    %hvdlogs --cell 7                of one cell
    %hvdlogs --stream stderr         of one stream

The files have every byte that was printed, by Python, by C code and by the ranks' subprocesses; they are there
as long as the cluster. HVD_LOG_MAX_MB bounds each of them."""


@user_errors()
def logs(context: Context, options: Options) -> None:
    """Show the last ``--tail`` lines of each rank (100), also while a cell runs and after a rank has died.

    Example: ``%hvdlogs --ranks 2 --tail 50``.

    Raises
    ------
    ClusterError
        No ranks are running, there is no log of that cell, or a rank of another host is dead, where its log is.
    """
    show(context.writer(), context.manager.current(), options, _path if options.path else _text)


def show(writer: Writer, session: Session, options: Options, read: Read) -> None:
    """Write what there is of each rank and stream."""
    ranks = resolve(options.ranks, session.n)
    for stream in [options.stream] if options.stream else rank_log.STREAMS:
        limits = TextLimits.for_ranks(len(ranks))
        found = {rank: _lines(read(session, options, rank, stream), limits) for rank in ranks}
        writer.say(merge_lines(found), "stdout" if options.path else stream)


def begun(session: Session, options: Options, rank: int, stream: str) -> str:
    """Return a rank's text, also of a cell that it has not begun yet."""
    try:
        return _text(session, options, rank, stream)
    except ClusterError:
        return ""


def _text(session: Session, options: Options, rank: int, stream: str) -> str:
    logs = _logs(session)
    if not rank_log.path(logs, rank, stream).exists():
        return _asked(session, options, rank, stream, "text")
    try:
        return rank_log.excerpt(logs, rank, stream, options.cell, options.tail)
    except LookupError as error:
        raise ClusterError(f"rank {rank}: {error.args[0]}, so there is no log of it") from None


def _path(session: Session, options: Options, rank: int, stream: str) -> str:
    file = rank_log.path(_logs(session), rank, stream)
    return str(file) if file.exists() else _asked(session, options, rank, stream, "path")


def _asked(session: Session, options: Options, rank: int, stream: str, what: str) -> str:
    """Ask a rank that keeps its log on another host."""
    asked = {"stream": stream, "cell": options.cell, "lines": options.tail}
    answers = session.ask("log", [rank], asked, timeout=ANSWER_S, urgent=True)
    if rank not in answers:
        raise ClusterError(f"{label([rank])} is dead, and its log was on its own host")
    return str(answers[rank][0][what])


def _logs(session: Session) -> Path:
    return rank_log.folder(str(session.folder / "ipython"))  # as launcher.environment names it


def _lines(text: str, limits: TextLimits) -> list[str]:
    lines = Lines(limits)
    lines.feed(text)
    return lines.lines()
