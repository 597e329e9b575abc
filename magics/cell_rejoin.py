"""Rejoin within a cell: while its ranks are in ``elastic.run``, the dead are replaced, and ranks come or leave."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from hvd_kernel import tracking
from hvd_kernel.errors import ClusterError, UsageError
from hvd_kernel.formatting.rank_labels import rank_list
from hvd_kernel.magics import cluster_size
from hvd_kernel.magics.display.render import steps_lost

if TYPE_CHECKING:
    from hvd_kernel.cluster import CellRun, Session
    from hvd_kernel.cluster.ranks.rejoin import Respawned
    from hvd_kernel.cluster.ranks.resize import ResizeOutcome
    from hvd_kernel.magics.display.render import Renderer
    from hvd_kernel.protocol.messages import MetricsSample


@dataclass(frozen=True)
class Wish:
    """Somebody wants another number of ranks; ``told`` is what became of it, for whoever waits."""

    n: int
    restore: tuple[str, ...] = ()
    force: bool = False
    told: Future[str] = field(default_factory=Future)


class CellRejoin:
    """Looks after one run. ``tick`` is called often, by the thread that reads the run's events."""

    def __init__(self, session: Session, run: CellRun, renderer: Renderer) -> None:
        self._session, self._run, self._renderer = session, run, renderer
        self._work: Future[Any] | None = None
        self._lost = 0  # steps
        self._wishes = threading.Lock()
        self._wish: Wish | None = None  # until it is fulfilled
        self._begun = False  # somebody tries to fulfil it
        self._over = False

    def resize(self, n: int, restore: Sequence[str] = (), *, force: bool = False) -> Future[str]:
        """Have n ranks at the cell's next commit, or when it has ended; return who will have what is to be said of it.

        Any thread.

        Raises
        ------
        UsageError
            Another resize waits, or the cell has ended; or as ``cluster_size.check_room``.
        """
        spec, running = self._session.spec, self._session.n - len(self._session.dead)
        cluster_size.check_room(replace(spec, n=n), running, force=force)
        with self._wishes:
            if self._over:
                raise UsageError("the cell has ended: `%hvd resize` has another number of ranks now")
            if self._wish is not None:
                raise UsageError(f"the ranks are being resized to {self._wish.n} already: wait for the next commit")
            self._wish, self._begun = Wish(n, tuple(restore), force), False
            wish = self._wish
        self._renderer.show_size(self._session.n, n, "at the next commit")
        return wish.told

    def tick(self) -> None:
        """Begin when all ranks of the cell that live wait, or ranks are to come or leave; end when that is done."""
        if self._work is not None:
            if self._work.done():
                self._finish(self._work)
            return
        run, dead = self._run, set(self._session.dead)
        if self._wish is not None and not self._begun:
            self._begun = True
            self._begin(self._resize)
        elif run.replaces and not self._begun and run.busy - dead and run.busy - dead <= run.waiting.keys():
            self._begin(self._replace)
        elif run.lost and not run.busy:
            self._session.executor.wire.soon(run.give_up)

    def settle(self, samples: dict[int, MetricsSample], say: Callable[[str], None]) -> None:
        """Do what was wanted and no commit has come for, now that the cell has ended."""
        if self._work is not None and self._run.finished:
            self._work.exception()
            self._finish(self._work)
        with self._wishes:
            self._over, wish, self._wish = True, self._wish, None
        for rank in [rank for rank in samples if rank >= self._session.n]:
            del samples[rank]
        if wish is None:
            return
        said: list[str] = []
        try:
            self._check_ended()
            restore, force = wish.restore, wish.force
            cluster_size.resize(
                self._session, samples, wish.n, said.append, lambda _: None, restore=restore, force=force
            )
            wish.told.set_result("\n".join(said))
        except (ClusterError, UsageError) as error:
            said.append(str(error))
            wish.told.set_exception(error)
        finally:
            self._refuse(wish)
        say("\n".join(said))

    def close(self) -> None:
        """Let nobody wait for what will not be done, whatever has ended the cell."""
        with self._wishes:
            self._over, wish, self._wish = True, self._wish, None
        if wish is not None:
            self._refuse(wish)

    def _refuse(self, wish: Wish) -> None:
        if not wish.told.done():
            wish.told.set_exception(UsageError("the cell has ended before the ranks were resized: `%hvd resize` again"))

    def _check_ended(self) -> None:
        if not self._run.finished:
            raise ClusterError("the ranks were not resized: not all have ended the cell")

    def mark_earlier(self) -> None:
        """Mark who has come or left since the last cell, where this one begins."""
        for change in self._session.take_changes():
            self._mark(change.left, change.joined, change.generation)

    def _mark(self, left: Sequence[int], joined: Sequence[int], generation: int) -> None:
        if left:
            self._renderer.mark("left", f"{rank_list(left)} left, generation {generation}")
        if joined:
            self._renderer.mark("joined", f"{rank_list(joined)} joined, generation {generation}")

    def _begin(self, act: Callable[[], Any]) -> None:
        self._work = work = Future[Any]()

        def do() -> None:
            try:
                work.set_result(act())
            except BaseException as error:  # noqa: BLE001 - whoever looks hears it
                work.set_exception(error)

        threading.Thread(target=do, name="hvd-rejoin", daemon=True).start()

    def _replace(self) -> Respawned:
        self._lost = max(waits.lost for waits in self._run.waiting.values())
        return self._session.rejoin(self._run, self._track)

    def _resize(self) -> ResizeOutcome | None:
        wish = self._wish
        assert wish is not None

        def say(text: str) -> None:
            self._renderer.show_size(self._session.n, wish.n, text)

        return self._session.resize_in_cell(
            self._run, wish.n, restore=wish.restore, prepare=self._prepare, progress=say
        )

    def _prepare(self, given: Respawned) -> None:
        self._lost = max((waits.lost for waits in self._run.waiting.values()), default=0)
        self._track(given)

    def _track(self, done: Respawned) -> None:
        """Have fresh ranks track what the others do."""
        tracking.copy_run(self._ask, self._session.n, done.ranks)

    def _ask(self, handler: str, ranks: Sequence[int] | None, content: dict[str, Any]) -> Any:
        """Ask ranks at once, also those that wait in the cell."""
        return self._session.ask(handler, ranks, content, urgent=bool(self._run.busy & set(ranks or ())))

    def _finish(self, work: Future[Any]) -> None:
        self._work = None
        wish = self._wish if self._begun else None
        error = work.exception()
        if error is not None:
            if not isinstance(error, ClusterError):
                raise error
            self._renderer.tell(f"{error}\n")
            if wish is not None:
                self._end(str(error).splitlines()[0])
                wish.told.set_exception(error)
        elif wish is None:
            self._tell(work.result(), (), cluster_size.fresh(work.result()))
        elif (done := work.result()) is not None:  # else the cell has ended: see settle
            text = cluster_size.outcome_text(done)
            self._tell(done.given, done.left, text)
            self._end()
            wish.told.set_result(text.rstrip())

    def _end(self, note: str = "") -> None:
        with self._wishes:
            self._wish, self._begun = None, False
        self._renderer.show_size(self._session.n, None, note)

    def _tell(self, given: Respawned, left: Sequence[int], text: str) -> None:
        self._mark(left, given.ranks, self._session.ranks.generation)
        if given.ranks or left:
            self._renderer.tell(text)
        if self._lost:
            self._renderer.mark("lost", steps_lost(self._lost))
        self._lost = 0
