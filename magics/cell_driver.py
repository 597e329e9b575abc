"""The driver of runs on the ranks: from a cell's code to its end, shown as it goes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from hvd_kernel.errors import UsageError
from hvd_kernel.magics.cell_rejoin import CellRejoin
from hvd_kernel.magics.cluster_manager import ClusterManager
from hvd_kernel.magics.display.other_ranks import OtherRanks
from hvd_kernel.magics.display.render import Renderer
from hvd_kernel.magics.display.timeline_poll import TimelinePoll
from hvd_kernel.magics.display.writer import Writer
from hvd_kernel.magics.history.repository import commit
from hvd_kernel.magics.history.run_record import digest
from hvd_kernel.magics.interrupts import InterruptCount, counted
from hvd_kernel.magics.jobs import BackgroundJob
from hvd_kernel.magics.runner import CellRunner
from hvd_kernel.magics.shell.prompt_front_end import front_end_at
from hvd_kernel.magics.shell.prompts import RunPrompts

if TYPE_CHECKING:
    from hvd_kernel.cluster import CellRun, Session
    from hvd_kernel.protocol.messages import MetricsSample

Origin = dict[str, Any]


def drive(
    session: Session,
    manager: ClusterManager,
    writer: Writer,
    code: str,
    ranks: tuple[int, ...],
    *,
    timeout: float | None = None,
    job: BackgroundJob | None = None,
    counts: bool = True,
    source: str | None = None,
) -> tuple[CellRunner, CellRun, Renderer]:
    """Run code on the ranks as a cell, to its end, and show what it gives; ``CellRunner.check`` says whether it failed.

    ``counts``: it is a run, whose figures are kept where it trains; ``source``: the code that it is known by there.
    """
    number = manager.cells.number if job is None else job.number
    if job is not None:
        job.cell = number
    session.make_ready()  # a press ends this; from the start of the ranks on it is theirs
    begin = partial(session.run, code, ranks, number, replaces=manager.replaces_dead())
    origin = cache(partial(origin_of, manager.place, code if source is None else source, number))
    watch, run, renderer = watched(session, manager, writer, begin, origin, timeout=timeout, job=job)
    if renderer.trained and counts:
        state = "failed" if watch.failed and watch.word() == "done" else watch.word()
        remember(manager, renderer, origin(), state)
    return watch, run, renderer


def watched(
    session: Session,
    manager: ClusterManager,
    writer: Writer,
    begin: Callable[[], CellRun],
    origin: Callable[[], Origin] = dict,
    *,
    timeout: float | None = None,
    job: BackgroundJob | None = None,
) -> tuple[CellRunner, CellRun, Renderer]:
    """Begin a run, or take one that goes on already, and show what it gives until its end.

    ``origin`` tells what is kept beside the figures of one that has trained.
    """
    from hvd_kernel.widgets import Dashboard  # noqa: PLC0415 - ipywidgets is loaded with the first cell, not with the kernel

    before, interrupts = manager.samples, job.interrupts if job else InterruptCount()
    manager.in_cell = running = Future[CellRejoin]()  # from before their start, too: they may be fast
    try:
        with counted(interrupts):  # as well: a cell that ended before its ranks would refuse the next one
            run = begin()
            ranks, cell = run.ranks, run.cell
            one_host = {*range(session.n)} <= session.ranks.here
            cores = len(os.sched_getaffinity(0)) if one_host else 0
            board = Dashboard(ranks, f"cell {cell}" if job is None else f"job {job.name}", before, cores)
            renderer = Renderer(writer, board, ranks, before, cell)
            manager.prompts = prompts = RunPrompts(session, renderer, ranks, front_end_at(writer))
            poll, others = TimelinePoll(session, board, lambda: watch.ranks), OtherRanks(session, board)

            def tick() -> None:
                poll.tick()
                others.tick()

            watch = CellRunner(session, run, renderer, ranks, timeout, prompts=prompts, tick=tick)
            board.on_resize = partial(_resize, watch.rejoin)
            watch.rejoin.mark_earlier()
            running.set_result(watch.rejoin)
            if job is not None:
                job.follow(lambda: watch.left, partial(steps_taken, renderer.latest, dict(before)))
                prompts.park(looked_at=job.writer.looked_at)
            watch.drive(interrupts)
            poll.finish()
    except BaseException:
        if running.done():
            running.result().close()
        raise
    finally:
        manager.in_cell = None
        if not running.done():
            running.set_exception(UsageError("the cell has not begun"))
    manager.samples.update(renderer.latest)
    if renderer.trained:
        board.origin = origin()
    renderer.finish(watch.word())
    watch.rejoin.settle(manager.samples, lambda text: writer.say(f"{text}\n"))
    return watch, run, renderer


def origin_of(place: str, code: str, cell: int) -> Origin:
    """Say which cell a run is of: its number, a digest of its code, and the commit of the notebook's folder."""
    return {"cell": cell, "source": digest(code), "commit": commit(place)}


def remember(manager: ClusterManager, renderer: Renderer, origin: Origin, state: str) -> None:
    """Keep the figures of a run that is over."""
    found = replace(renderer.record(), time=time.time(), place=manager.place, **origin)
    manager.history.add(replace(found, state=state))


def _resize(rejoin: CellRejoin, n: int) -> None:
    """Have n ranks, as the panel asks; one that asks too late or twice is shown what is."""
    with suppress(UsageError):
        rejoin.resize(n)


def steps_taken(latest: Mapping[int, MetricsSample], before: Mapping[int, MetricsSample]) -> int:
    """Return the optimizer steps since ``before`` of the rank that has taken most; a fresh rank counts from zero."""
    earlier = {rank: sample.step for rank, sample in before.items()}
    now = {rank: sample.step for rank, sample in dict(latest).items()}
    return max((step - min(step, earlier.get(rank, 0)) for rank, step in now.items()), default=0)
