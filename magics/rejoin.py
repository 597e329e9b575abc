"""Rejoin within a cell: ranks that die while the others are in ``elastic.run`` are replaced, and the cell goes on."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from threading import Thread
from typing import TYPE_CHECKING, Any

from hvd_kernel import tracking
from hvd_kernel.errors import ClusterError
from hvd_kernel.formatting.rank_labels import named
from hvd_kernel.magics.cluster_size import fresh

if TYPE_CHECKING:
    from hvd_kernel.cluster import Run, Session
    from hvd_kernel.cluster.ranks.rejoin import Respawned
    from hvd_kernel.magics.display.render import Renderer


class Rejoin:
    """Looks after one run. ``tick`` is called often, by the thread that reads the run's events."""

    def __init__(self, session: Session, run: Run, renderer: Renderer) -> None:
        self._session, self._run, self._renderer = session, run, renderer
        self._work: Future[Respawned] | None = None
        self._lost = 0  # steps

    def tick(self) -> None:
        """Begin when all ranks of the cell that live wait; end when all have met, or cannot."""
        run = self._run
        if self._work is not None:
            if self._work.done():
                work, self._work = self._work, None
                self._tell(work)
            return
        dead = set(self._session.dead)
        if run.replaces and run.busy - dead and run.busy - dead <= run.waiting.keys():
            self._lost = max(waits.lost for waits in run.waiting.values())
            self._work = Future()
            Thread(target=self._do, args=(self._work,), name="hvd-rejoin", daemon=True).start()
        elif run.lost and not run.busy:
            self._session.executor.wire.soon(run.give_up)

    def _do(self, work: Future[Respawned]) -> None:
        try:
            work.set_result(self._session.rejoin(self._run, self._track))
        except BaseException as error:  # noqa: BLE001 - whoever looks hears it
            work.set_exception(error)

    def _track(self, done: Respawned) -> None:
        """Have fresh ranks track what the others do."""
        tracking.tell_fresh(self._ask, self._session.n, done.ranks)

    def _ask(self, verb: str, ranks: Sequence[int] | None, content: dict[str, Any]) -> Any:
        """Ask ranks at once, also those that wait in the cell."""
        return self._session.ask(verb, ranks, content, urgent=bool(self._run.busy & set(ranks or ())))

    def _tell(self, work: Future[Respawned]) -> None:
        error = work.exception()
        if error is not None:
            if not isinstance(error, ClusterError):
                raise error
            self._renderer.tell(f"{error}\n")
            return
        done = work.result()
        generation = f"generation {self._session.ranks.generation}"
        if done.ranks:
            self._renderer.mark("joined", f"{named(done.ranks)} joined, {generation}")
            self._renderer.tell(fresh(done))
        if self._lost:
            self._renderer.mark("lost", f"{self._lost} step{'s' * (self._lost != 1)} lost")
