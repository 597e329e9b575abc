"""Rendezvous of a running cell's ranks, which wait in ``elastic.run``: replace dead ranks, add or remove ranks.

For a resize the ranks are notified of the change, and wait at their next commit. Within a cell no rank is renumbered:
the ranks with the highest numbers leave, and dead ones among the others are replaced.
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
    from hvd_kernel.cluster.ranks.changes import ResizeOutcome, Respawned
    from hvd_kernel.cluster.requests.cell_run import CellRun

_ANSWER_S = 30.0
_QUIT_S = 10.0  # for leaving ranks to reach the end of the cell; then their processes are killed
_NOT_ELASTIC = "the cell is not in elastic.run: there will be {n} ranks when it comes to it, or when it ends"

Say = Callable[[str], None]
Prepare = Callable[["Respawned"], None]
"""Called after the rendezvous, before the fresh ranks run the cell."""


class CellRendezvous:
    """One rendezvous of a cell's ranks. Not on the I/O thread."""

    def __init__(self, executor: Executor, run: CellRun, number: int) -> None:
        """Prepare the rendezvous; ``number`` is that of the run in this cluster."""
        self._executor, self._run, self._number = executor, run, number

    def replace_dead(self, prepare: Prepare, say: Say) -> Respawned:
        """Replace the dead while all other ranks wait, and continue the cell on all ranks.

        Raises
        ------
        ClusterError
            If that fails; the waiting ranks are released, and the cell ends.
        """
        with self._releasing_on_failure():
            self._run.check_all_in()
            done: Respawned = self._executor.call(events.ReplaceRequested, None, say=say, in_cell=True)
        prepare(done)
        self._call_on_io_thread(partial(self._continue, set(done.ranks) & self._run.lost.keys(), done.ranks))
        return done

    def resize(self, n: int, restore: tuple[str, ...], prepare: Prepare, say: Say) -> ResizeOutcome | None:
        """Resize to n ranks at the cell's next commit, and continue it; None if it ended before.

        Raises
        ------
        ClusterError
            If that fails. If the rendezvous failed, the cell ends.
        """
        run = self._run
        with self._resizing():
            if not self._announce(n):
                say(_NOT_ELASTIC.format(n=n))
            run.wait_until(lambda: run.all_wait or not run.busy)
            if not run.all_wait:
                return None
            done, problem = self._rendezvous(n, restore, say)
            prepare(done.respawned)
        self._call_on_io_thread(partial(self._continue, set(done.respawned.ranks), done.respawned.ranks))
        if problem:
            raise ClusterError(f"{problem}\nThe cell goes on with {done.n} ranks.")
        return done

    def _rendezvous(self, n: int, restore: tuple[str, ...], say: Say) -> tuple[ResizeOutcome, str]:
        """Resize to n ranks; if fresh ranks do not start, back to the previous number, with the error's text."""
        run, before = self._run, len(self._run.ranks)
        with self._releasing_on_failure():
            run.check_all_in()
            self._dismiss({rank for rank in run.ranks if rank >= n})
            options: dict[str, Any] = {"restore": restore, "in_cell": True, "say": say}
            try:
                return self._executor.call(events.ResizeRequested, n, **options), ""
            except ClusterError as error:
                if n <= before:
                    raise
                return self._executor.call(events.ResizeRequested, before, **options), str(error)

    @contextmanager
    def _resizing(self) -> Iterator[None]:
        """Mark the run as being resized: ranks that die in the meantime are replaced here, not by the run's reader."""
        run, replaced = self._run, self._run.replaces

        def begin() -> None:
            run.resizing = run.replaces = True

        def end() -> None:
            run.resizing, run.replaces = False, replaced
            if run.lost and not run.busy:
                run.give_up()

        self._call_on_io_thread(begin)
        try:
            yield
        finally:
            self._call_on_io_thread(end)

    @contextmanager
    def _releasing_on_failure(self) -> Iterator[None]:
        """Release the waiting ranks if the block raises ClusterError."""
        try:
            yield
        except ClusterError as error:
            self._post(self._run.waiting, "give_up", {"why": f"the ranks could not meet again: {error}"})
            self._call_on_io_thread(self._run.give_up)
            raise

    def _announce(self, n: int) -> bool:
        """Notify every rank of the resize; return whether the cell is in ``elastic.run``."""
        try:
            answers = self._query("prepare_resize", {"run": self._number})
        except ClusterError:
            self._post(self._run.busy, "prepare_resize", {"run": 0})
            raise
        change = ADDED if n > len(self._run.ranks) else REMOVED
        self._query("resize", {"time": time.monotonic(), "change": change})
        return any(answer["elastic"] for answer in answers)

    def _query(self, handler: str, content: dict[str, Any]) -> list[Any]:
        """Query all ranks that run the cell; return the answers of those that live."""
        ranks = self._run.busy
        answers = self._post(ranks, handler, content).wait_all(_ANSWER_S)
        if silent := ranks - answers.keys():
            verb, it = ("does", "it is") if len(silent) == 1 else ("do", "they are")
            remedy = f"`%hvd stacks` shows where {it}. Nothing was changed."
            raise ClusterError(f"{rank_list(silent)} {verb} not answer: {remedy}")
        return [answer for answer in answers.values() if "error" not in answer]

    def _dismiss(self, leaving: set[int]) -> None:
        """Make ranks end the cell, running the user's code at its end."""
        if leaving:
            self._call_on_io_thread(partial(self._run.dismiss, leaving))
            self._post(leaving & self._run.waiting.keys(), "quit", {})
            self._run.wait_until(lambda: not leaving & {*self._run.ranks}, _QUIT_S)

    def _call_on_io_thread(self, function: Callable[[], None]) -> None:
        """Call a function on the I/O thread, and wait until it has returned."""
        done = threading.Event()
        self._executor.wire.soon(function)
        self._executor.wire.soon(done.set)
        done.wait(_ANSWER_S)

    def _post(self, ranks: Iterable[int], handler: str, content: dict[str, Any]) -> Gather:
        targets = sorted(ranks)
        gather = Gather(targets, handler)
        self._executor.wire.request(targets, "hvd_request", {"handler": handler, **content}, gather, urgent=True)
        return gather

    def _continue(self, joining: set[int], fresh: tuple[int, ...]) -> None:
        """Continue the cell on all ranks, from the rank with the newest values. I/O thread."""
        run = self._run
        newest = max((waiting.commits for waiting in run.waiting.values()), default=0)
        root = min((rank for rank, waiting in run.waiting.items() if waiting.commits == newest), default=0)
        run.admit(joining)
        wire = self._executor.wire
        wire.request(sorted(joining), "execute_request", run.request_again(self._number, root, fresh), run)
        self._post(run.waiting, "go_on", {"root": root, "fresh": fresh})
        run.waiting.clear()
