"""Panel of a job whose ranks are not the notebook's: as a cell's, from the first sample to the job's end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from hvd_kernel.errors import RankDied, RankFailed
from hvd_kernel.magics.display.render import Renderer
from hvd_kernel.magics.display.writer import Writer
from hvd_kernel.protocol.messages import Failure, MetricsSample, RankDone, RankJoined, RankLeft


@contextmanager
def job_panel(writer: Writer, ranks: int, title: str) -> Iterator[Callable[[MetricsSample | RankLeft], None]]:
    """Give what takes the samples of so many ranks; an error of the ``with`` says which rank has failed.

    Of an elastic job it is the number at the beginning: ranks of which nothing was heard before join then.
    """
    every, begun = tuple(range(ranks)), list[Renderer]()
    there = set(every)

    def take(event: MetricsSample | RankLeft) -> None:
        if not begun:
            begun.append(_renderer(writer, every, title))
        if isinstance(event, RankLeft):
            there.discard(event.rank)
        elif event.rank not in there:
            there.add(event.rank)
            begun[0].take(RankJoined(event.rank))
        begun[0].take(event)
        begun[0].tick()

    word = "done"
    try:
        yield take
    except (RankFailed, RankDied) as error:
        word = "ended"  # the others have been
        if begun:
            kind = type(error).__name__
            begun[0].take(RankDone(error.rank, Failure(error.rank, kind, str(error), (), 0.0)))
        raise
    except BaseException as error:
        word = "interrupted" if isinstance(error, KeyboardInterrupt) else "ended"
        raise
    finally:
        if begun:
            begun[0].finish(word)


def _renderer(writer: Writer, ranks: tuple[int, ...], title: str) -> Renderer:
    from hvd_kernel.widgets import Dashboard  # noqa: PLC0415 - as in driver.py: ipywidgets only where it is wanted

    return Renderer(writer, Dashboard(ranks, title), ranks)
