"""Tasks of ``run()`` on the notebook's ranks, and the panel of a job whose ranks are not the notebook's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Protocol

from hvd_kernel.errors import RankDied, RankFailed
from hvd_kernel.magics.cell_view import drive, origin_of, remember
from hvd_kernel.magics.context import Context
from hvd_kernel.magics.display.cell_output import CellOutput
from hvd_kernel.magics.display.user_errors import RankError
from hvd_kernel.magics.display.writer import Writer
from hvd_kernel.processes.cluster_spec import ClusterSpec
from hvd_kernel.protocol.messages import Failure, MetricsSample, RankDone, RankJoined, RankLeft
from hvd_kernel.protocol.notebook import Performed

if TYPE_CHECKING:
    from hvd_kernel.cluster import Session
    from hvd_kernel.magics.cluster_manager import ClusterManager
    from hvd_kernel.widgets import Dashboard


_NAME = "__hvd_task__"


class NotebookTasks:
    """The cluster that a notebook registers (``hvd_kernel.protocol.notebook``); a task runs and is shown as a cell."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def perform(
        self, task: Any, spec_of: Callable[[ClusterSpec | None], ClusterSpec], *, instead: bool
    ) -> Performed | None:
        """Perform a task on every rank; return None if the running cluster is not the requested one."""
        manager = self._context.manager
        with manager.use():
            spec = spec_of(manager.spec)
            if not instead and manager.spec not in {None, spec}:
                return None  # the running ranks hold the user's variables
            writer = self._context.writer()
            session = manager.ensure(spec, lambda text: writer.write(f"{text}\n"), writer.status())
            return self._perform(session, task)

    def panel(self, ranks: int, title: str) -> AbstractContextManager[Callable[[MetricsSample | RankLeft], None]]:
        """Show the panel of a job whose ranks are not the notebook's, within the ``with`` block."""
        return job_panel(self._context.writer(), ranks, title, _CellOfJob(self._context.manager))

    def _perform(self, session: Session, task: Any) -> Performed:
        ranks = tuple(range(session.n))
        session.push({_NAME: task})
        manager, writer = self._context.manager, self._context.writer()
        view = drive(session, manager, writer, f"{_NAME}.perform()", ranks, source=manager.cells.code)
        try:
            view.check()
        except RankError as error:
            died = error.rank in session.dead
            return Performed({} if died else _tasks(session, (error.rank,)), error, error.rank, died)
        tasks = _tasks(session, ranks)
        session.push({_NAME: None})  # free the values, which may be large
        if not all(copy.connected for copy in tasks.values()):
            session.reset_communicator()  # the function ended with hvd.shutdown(), as scripts do
        return Performed(tasks)


class _CellOfJob:
    """The cell that started a job on other ranks; the job's figures are kept as those of a cell."""

    def __init__(self, manager: ClusterManager) -> None:
        self._manager = manager
        self.origin = cache(partial(origin_of, manager.place, manager.cells.code, manager.cells.number))

    def keep(self, output: CellOutput, state: str) -> None:
        """Store the figures of an ended job."""
        remember(self._manager, output, self.origin(), state)


def _tasks(session: Session, ranks: Sequence[int]) -> dict[int, Any]:
    pulled = session.pull([_NAME], ranks)
    return {rank: pulled[rank][_NAME] for rank in ranks}


class JobHistory(Protocol):
    """Store of the figures of a job that trained."""

    def origin(self) -> dict[str, Any]:
        """Return the cell that started the job."""

    def keep(self, output: CellOutput, state: str) -> None:
        """Store the figures with the final state: done, failed or interrupted."""


@contextmanager
def job_panel(
    writer: Writer, ranks: int, title: str, history: JobHistory
) -> Iterator[Callable[[MetricsSample | RankLeft], None]]:
    """Yield the function that accepts the samples of this many ranks; an error in the block names the failed rank.

    An elastic job starts with this many ranks; a later rank joins with its first sample.
    """
    at_start = tuple(range(ranks))
    shown: list[tuple[CellOutput, Dashboard]] = []  # from the first sample on
    present = set(at_start)

    def handle(event: MetricsSample | RankLeft) -> None:
        if not shown:
            board = _new_board(at_start, title)
            shown.append((CellOutput(writer, board, at_start), board))
        output, _ = shown[0]
        if isinstance(event, RankLeft):
            present.discard(event.rank)
        elif event.rank not in present:
            present.add(event.rank)
            output.handle(RankJoined(event.rank))
        output.handle(event)
        output.tick()

    state = "done"
    try:
        yield handle
    except (RankFailed, RankDied) as error:
        state = "ended"  # of the other ranks
        if shown:
            kind = type(error).__name__
            shown[0][0].handle(RankDone(error.rank, Failure(error.rank, kind, str(error), (), 0.0)))
        raise
    except BaseException as error:
        state = "interrupted" if isinstance(error, KeyboardInterrupt) else "ended"
        raise
    finally:
        if shown:
            _finish(*shown[0], state, history)


def _new_board(ranks: tuple[int, ...], title: str) -> Dashboard:
    from hvd_kernel.widgets import Dashboard  # noqa: PLC0415 - as in cell_view.py: ipywidgets only if a panel is shown

    return Dashboard(ranks, title)


def _finish(output: CellOutput, board: Dashboard, state: str, history: JobHistory) -> None:
    if output.trained:
        board.origin = history.origin()
    output.finish(state)
    if output.trained:
        history.keep(output, "failed" if state == "ended" else state)
