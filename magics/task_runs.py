"""Tasks on the notebook's ranks, for ``run()``: cells without a cell, shown as a cell's output is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from hvd_kernel.magics.cell_driver import drive, origin_of, remember
from hvd_kernel.magics.context import Context
from hvd_kernel.magics.display.job_panel import job_panel
from hvd_kernel.magics.display.rank_failures import RankError
from hvd_kernel.processes.cluster_spec import ClusterSpec
from hvd_kernel.protocol.messages import MetricsSample, RankLeft
from hvd_kernel.protocol.notebook import Performed

if TYPE_CHECKING:
    from hvd_kernel.cluster import Session
    from hvd_kernel.magics.cluster_manager import ClusterManager
    from hvd_kernel.magics.display.render import Renderer

_NAME = "__hvd_task__"


class NotebookTasks:
    """The cluster that a notebook registers (``hvd_kernel.protocol.notebook``)."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def perform(
        self, task: Any, wanted: Callable[[ClusterSpec | None], ClusterSpec], *, instead: bool
    ) -> Performed | None:
        """Have every rank perform a task; None: these ranks are others than those that are wanted."""
        manager = self._context.manager
        with manager.use():
            spec = wanted(manager.spec)
            if not instead and manager.spec not in {None, spec}:
                return None  # the user's variables are on ranks of another kind
            writer = self._context.writer()
            session = manager.ensure(spec, lambda text: writer.say(f"{text}\n"), writer.status())
            return self._perform(session, task)

    def panel(self, ranks: int, title: str) -> AbstractContextManager[Callable[[MetricsSample | RankLeft], None]]:
        """Show what ranks of a job do that are not the notebook's, as long as the ``with`` lasts."""
        return job_panel(self._context.writer(), ranks, title, _CellOfJob(self._context.manager))

    def _perform(self, session: Session, task: Any) -> Performed:
        ranks = tuple(range(session.n))
        session.push({_NAME: task})
        manager, writer = self._context.manager, self._context.writer()
        watch, _, _ = drive(session, manager, writer, f"{_NAME}.perform()", ranks, source=manager.cells.code)
        try:
            watch.check()
        except RankError as error:
            died = error.rank in session.dead
            return Performed({} if died else _tasks(session, (error.rank,)), error, error.rank, died)
        tasks = _tasks(session, ranks)
        session.push({_NAME: None})  # values may be large
        if not all(each.connected for each in tasks.values()):
            session.reset_communicator()  # the function ended with hvd.shutdown(), as scripts do
        return Performed(tasks)


class _CellOfJob:
    """The cell that has begun a job of other ranks: its figures are kept as those of a cell on the notebook's ranks."""

    def __init__(self, manager: ClusterManager) -> None:
        self._manager = manager
        self.origin = cache(partial(origin_of, manager.place, manager.cells.code, manager.cells.number))

    def keep(self, renderer: Renderer, state: str) -> None:
        """Keep the figures of a job that is over."""
        remember(self._manager, renderer, self.origin(), state)


def _tasks(session: Session, ranks: Sequence[int]) -> dict[int, Any]:
    pulled = session.pull([_NAME], ranks)
    return {rank: pulled[rank][_NAME] for rank in ranks}
