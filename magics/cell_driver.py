"""The driver of runs on the ranks: starts a cell, shows its output live until its end, and keeps its figures."""

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
from hvd_kernel.magics.cell_prompts import RunPrompts, front_end_at
from hvd_kernel.magics.cell_rejoin import CellRejoin
from hvd_kernel.magics.cluster_manager import ClusterManager
from hvd_kernel.magics.display.panel_polls import OtherRanks, TimelinePoll
from hvd_kernel.magics.display.render import Renderer
from hvd_kernel.magics.display.writer import Writer
from hvd_kernel.magics.interrupts import InterruptCount, counted
from hvd_kernel.magics.jobs import BackgroundJob
from hvd_kernel.magics.run_history import commit, digest
from hvd_kernel.magics.runner import CellRunner

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
    """Run code on the ranks as a cell, to its end, and show its output; ``CellRunner.check`` raises its errors.

    ``counts``: keep the figures of a cell that trains in the history, there with ``source`` instead of the code.
    """
    number = manager.cells.number if job is None else job.number
    if job is not None:
        job.cell = number
    session.make_ready()  # interruptible here; once the ranks run, an interrupt goes to them
    begin = partial(session.run, code, ranks, number, replaces=manager.replaces_dead())
    origin = cache(partial(origin_of, manager.place, code if source is None else source, number))
    watch, run, renderer = watched(session, manager, writer, begin, origin, timeout=timeout, job=job)
    if renderer.trained and counts:
        state = "failed" if watch.failed and watch.end_state() == "done" else watch.end_state()
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
    """Start a run, or join a running one, and show its output until its end.

    ``origin`` returns what is stored with the figures of a run that trained.
    """
    from hvd_kernel.widgets import Dashboard  # noqa: PLC0415 - ipywidgets is loaded with the first cell, not with the kernel

    before, interrupts = manager.samples, job.interrupts if job else InterruptCount()
    manager.in_cell = running = Future[CellRejoin]()  # set before they start: ranks may be fast
    try:
        with counted(interrupts):  # from the start: a cell that ends before its ranks blocks the next one
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
                prompts.park(has_user=job.writer.has_user)
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
    renderer.finish(watch.end_state())
    watch.rejoin.finalize(manager.samples, lambda text: writer.write(f"{text}\n"))
    return watch, run, renderer


def origin_of(place: str, code: str, cell: int) -> Origin:
    """Return the origin of a run: the cell's number, a digest of its code, and the commit of the notebook's folder."""
    return {"cell": cell, "source": digest(code), "commit": commit(place)}


def remember(manager: ClusterManager, renderer: Renderer, origin: Origin, state: str) -> None:
    """Store the figures of a run that has ended."""
    record = replace(renderer.record(), time=time.time(), place=manager.place, **origin)
    manager.history.add(replace(record, state=state))


def _resize(rejoin: CellRejoin, n: int) -> None:
    """Resize to n ranks, as a user of the panel requests; a late or second request has no effect."""
    with suppress(UsageError):
        rejoin.resize(n)


def steps_taken(latest: Mapping[int, MetricsSample], before: Mapping[int, MetricsSample]) -> int:
    """Return the largest number of optimizer steps of a rank since ``before``; a new rank counts from zero."""
    earlier = {rank: sample.step for rank, sample in before.items()}
    now = {rank: sample.step for rank, sample in dict(latest).items()}
    return max((step - min(step, earlier.get(rank, 0)) for rank, step in now.items()), default=0)
