"""Panel of a job whose ranks are not the notebook's: as a cell's, from the first sample to the job's end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from hvd_kernel.errors import RankDied, RankFailed
from hvd_kernel.magics.display.render import Renderer
from hvd_kernel.magics.display.writer import Writer
from hvd_kernel.protocol.messages import Failure, MetricsSample, RankDone, RankJoined, RankLeft

if TYPE_CHECKING:
    from hvd_kernel.widgets import Dashboard


class JobHistory(Protocol):
    """Where the figures of a job that has trained are kept."""

    def origin(self) -> dict[str, Any]:
        """Say which cell it is of."""

    def keep(self, renderer: Renderer, state: str) -> None:
        """Keep the figures, with the job's end: done, failed or interrupted."""


@contextmanager
def job_panel(
    writer: Writer, ranks: int, title: str, history: JobHistory
) -> Iterator[Callable[[MetricsSample | RankLeft], None]]:
    """Give what takes the samples of so many ranks; an error of the ``with`` says which rank has failed.

    Of an elastic job it is the number at the beginning: ranks of which nothing was heard before join then.
    """
    every = tuple(range(ranks))
    begun: list[tuple[Renderer, Dashboard]] = []
    there = set(every)

    def take(event: MetricsSample | RankLeft) -> None:
        if not begun:
            board = _board(every, title)
            begun.append((Renderer(writer, board, every), board))
        renderer, _ = begun[0]
        if isinstance(event, RankLeft):
            there.discard(event.rank)
        elif event.rank not in there:
            there.add(event.rank)
            renderer.take(RankJoined(event.rank))
        renderer.take(event)
        renderer.tick()

    word = "done"
    try:
        yield take
    except (RankFailed, RankDied) as error:
        word = "ended"  # the others have been
        if begun:
            kind = type(error).__name__
            begun[0][0].take(RankDone(error.rank, Failure(error.rank, kind, str(error), (), 0.0)))
        raise
    except BaseException as error:
        word = "interrupted" if isinstance(error, KeyboardInterrupt) else "ended"
        raise
    finally:
        if begun:
            _finish(*begun[0], word, history)


def _board(ranks: tuple[int, ...], title: str) -> Dashboard:
    from hvd_kernel.widgets import Dashboard  # noqa: PLC0415 - as in cell_driver.py: ipywidgets only where it is wanted

    return Dashboard(ranks, title)


def _finish(renderer: Renderer, board: Dashboard, word: str, history: JobHistory) -> None:
    if renderer.trained:
        board.origin = history.origin()
    renderer.finish(word)
    if renderer.trained:
        history.keep(renderer, "failed" if word == "ended" else word)
