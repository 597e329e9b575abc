"""Rendezvous of a running cell's ranks, which wait in ``elastic.run``: the dead are replaced, ranks come or leave.

For a resize the ranks are told that they will change, and come to wait at their next commit. Within a cell no rank gets
another number: those with the highest leave, and the dead among the others are replaced.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from hvd_kernel.cluster.ranks import events
from hvd_kernel.cluster.requests.gather import Gather
from hvd_kernel.errors import ClusterError
from hvd_kernel.formatting.rank_labels import rank_list
from hvd_kernel.protocol.elastic import ADDED, REMOVED

if TYPE_CHECKING:
    from hvd_kernel.cluster.executor import Executor
    from hvd_kernel.cluster.ranks.rejoin import Respawned
    from hvd_kernel.cluster.ranks.resize import ResizeOutcome
    from hvd_kernel.cluster.requests.cell_run import CellRun

_ANSWER_S = 30.0
_QUIT_S = 10.0  # for ranks that leave to come to the end of the cell; then their processes are ended
_NOT_ELASTIC = "the cell is not in elastic.run: there will be {n} ranks when it comes to it, or when it ends"

Say = Callable[[str], None]
Prepare = Callable[["Respawned"], None]
"""Called when all have met, before the fresh ranks run the cell."""


class CellRendezvous:
    """One for each time that a cell's ranks meet again. Not on the I/O thread."""

    def __init__(self, executor: Executor, run: CellRun, number: int) -> None:
        """Prepare; ``number``: the run's among this cluster's."""
        self._executor, self._run, self._number = executor, run, number

    def replace_dead(self, prepare: Prepare, say: Say) -> Respawned:
        """Replace the dead while the others wait, and have the cell go on on all ranks.

        Raises
        ------
        ClusterError
            It could not be done; nobody waits any more, and the cell ends.
        """
        with self._or_given_up():
            self._run.check_all_in()
            done: Respawned = self._executor.call(events.ReplaceRequested, None, say=say, in_cell=True)
        prepare(done)
        self._settle(partial(self._go_on, set(done.ranks) & self._run.lost.keys(), done.ranks))
        return done

    def resize(self, n: int, restore: tuple[str, ...], prepare: Prepare, say: Say) -> ResizeOutcome | None:
        """Have n ranks at the cell's next commit, and it goes on; None: it has ended before.

        Raises
        ------
        ClusterError
            It could not be done. If the ranks could not meet again, the cell ends.
        """
        run = self._run
        with self._resizing():
            if not self._announce(n):
                say(_NOT_ELASTIC.format(n=n))
            run.wait_until(lambda: run.all_wait or not run.busy)
            if not run.all_wait:
                return None
            done, problem = self._rendezvous(n, restore, say)
            prepare(done.given)
        self._settle(partial(self._go_on, set(done.given.ranks), done.given.ranks))
        if problem:
            raise ClusterError(f"{problem}\nThe cell goes on with {done.n} ranks.")
        return done

    def _rendezvous(self, n: int, restore: tuple[str, ...], say: Say) -> tuple[ResizeOutcome, str]:
        """Have n ranks; where fresh ones do not come, as many as before, and why."""
        run, before = self._run, len(self._run.ranks)
        with self._or_given_up():
            run.check_all_in()
            self._dismiss({rank for rank in run.ranks if rank >= n})
            asked: dict[str, Any] = {"restore": restore, "in_cell": True, "say": say}
            try:
                return self._executor.call(events.ResizeRequested, n, **asked), ""
            except ClusterError as error:
                if n <= before:
                    raise
                return self._executor.call(events.ResizeRequested, before, **asked), str(error)

    @contextmanager
    def _resizing(self) -> Iterator[None]:
        """Have ranks that die meanwhile be replaced, and nobody else do it."""
        run, replaced = self._run, self._run.replaces

        def begin() -> None:
            run.resizing = run.replaces = True

        def end() -> None:
            run.resizing, run.replaces = False, replaced
            if run.lost and not run.busy:
                run.give_up()

        self._settle(begin)
        try:
            yield
        finally:
            self._settle(end)

    @contextmanager
    def _or_given_up(self) -> Iterator[None]:
        """Let nobody wait any more where it cannot be done."""
        try:
            yield
        except ClusterError as error:
            self._urge(self._run.waiting, "give_up", {"why": f"the ranks could not meet again: {error}"})
            self._settle(self._run.give_up)
            raise

    def _announce(self, n: int) -> bool:
        """Say it to every rank; return whether the cell is in ``elastic.run``."""
        try:
            answers = self._ask("prepare_resize", {"run": self._number})
        except ClusterError:
            self._urge(self._run.busy, "prepare_resize", {"run": 0})
            raise
        change = ADDED if n > len(self._run.ranks) else REMOVED
        self._ask("resize", {"time": time.monotonic(), "change": change})
        return any(answer["elastic"] for answer in answers)

    def _ask(self, handler: str, content: dict[str, Any]) -> list[Any]:
        """Return the answers of the ranks that live."""
        ranks = self._run.busy
        answers = self._urge(ranks, handler, content).wait_all(_ANSWER_S)
        if silent := ranks - answers.keys():
            verb, it = ("does", "it is") if len(silent) == 1 else ("do", "they are")
            remedy = f"`%hvd stacks` shows where {it}. Nothing was changed."
            raise ClusterError(f"{rank_list(silent)} {verb} not answer: {remedy}")
        return [answer for answer in answers.values() if "error" not in answer]

    def _dismiss(self, leaving: set[int]) -> None:
        """Have ranks end the cell, with what the user's code has to do at its end."""
        if leaving:
            self._settle(partial(self._run.part, leaving))
            self._urge(leaving & self._run.waiting.keys(), "quit", {})
            self._run.wait_until(lambda: not leaving & {*self._run.ranks}, _QUIT_S)

    def _settle(self, act: Callable[[], None]) -> None:
        """Have the I/O thread do something, and return when it has."""
        done = threading.Event()
        self._executor.wire.soon(act)
        self._executor.wire.soon(done.set)
        done.wait(_ANSWER_S)

    def _urge(self, ranks: Iterable[int], handler: str, content: dict[str, Any]) -> Gather:
        asked = sorted(ranks)
        gather = Gather(asked, handler)
        self._executor.wire.request(asked, "hvd_request", {"handler": handler, **content}, gather, urgent=True)
        return gather

    def _go_on(self, joining: set[int], fresh: tuple[int, ...]) -> None:
        """Have all ranks go on, from whoever has the newest values. I/O thread."""
        run = self._run
        newest = max((waits.commits for waits in run.waiting.values()), default=0)
        root = min((rank for rank, waits in run.waiting.items() if waits.commits == newest), default=0)
        run.admit(joining)
        wire = self._executor.wire
        wire.request(sorted(joining), "execute_request", run.request_again(self._number, root, fresh), run)
        self._urge(run.waiting, "go_on", {"root": root, "fresh": fresh})
        run.waiting.clear()
