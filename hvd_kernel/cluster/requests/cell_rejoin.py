"""Rejoin of a running cell's ranks, which wait in ``elastic.run``: replace dead ranks, add or remove ranks, continue.

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
    from hvd_kernel.cluster.requests.cell_execution import CellExecution


_ANSWER_S = 30.0
_QUIT_S = 10.0  # for leaving ranks to reach the end of the cell; then their processes are killed
_NOT_ELASTIC = "the cell is not in elastic.run: there will be {n} ranks when it comes to it, or when it ends"

Say = Callable[[str], None]
Prepare = Callable[["Respawned"], None]
"""Called after the rendezvous, before the fresh ranks run the cell."""


class CellRejoin:
    """One rejoin of a cell's ranks. Not on the I/O thread."""

    def __init__(self, executor: Executor, execution: CellExecution, number: int) -> None:
        """Prepare the rejoin; ``number`` is that of the cell in this cluster."""
        self._executor, self._execution, self._number = executor, execution, number

    def replace_dead(self, prepare: Prepare, say: Say) -> Respawned:
        """Replace the dead while all other ranks wait, and continue the cell on all ranks.

        Raises
        ------
        ClusterError
            If that fails; the waiting ranks are released, and the cell ends.
        """
        with self._releasing_on_failure():
            self._execution.check_all_in()
            done: Respawned = self._executor.call(events.ReplaceRequested, None, say=say, in_cell=True)
        prepare(done)
        self._call_on_io_thread(partial(self._continue, set(done.ranks) & self._execution.lost.keys(), done.ranks))
        return done

    def resize(self, n: int, restore: tuple[str, ...], prepare: Prepare, say: Say) -> ResizeOutcome | None:
        """Resize to n ranks at the cell's next commit, and continue it; None if it ended before.

        Raises
        ------
        ClusterError
            If that fails. If the ranks could not meet again, the cell ends.
        """
        execution = self._execution
        with self._resizing():
            if not self._announce(n):
                say(_NOT_ELASTIC.format(n=n))
            execution.wait_until(lambda: execution.all_wait or not execution.busy)
            if not execution.all_wait:
                return None
            done, problem = self._change(n, restore, say)
            prepare(done.respawned)
        self._call_on_io_thread(partial(self._continue, set(done.respawned.ranks), done.respawned.ranks))
        if problem:
            raise ClusterError(f"{problem}\nThe cell goes on with {done.n} ranks.")
        return done

    def _change(self, n: int, restore: tuple[str, ...], say: Say) -> tuple[ResizeOutcome, str]:
        """Resize to n ranks; if fresh ranks do not start, back to the previous number, with the error's text."""
        execution, before = self._execution, len(self._execution.ranks)
        with self._releasing_on_failure():
            execution.check_all_in()
            self._dismiss({rank for rank in execution.ranks if rank >= n})
            options: dict[str, Any] = {"restore": restore, "in_cell": True, "say": say}
            try:
                return self._executor.call(events.ResizeRequested, n, **options), ""
            except ClusterError as error:
                if n <= before:
                    raise
                return self._executor.call(events.ResizeRequested, before, **options), str(error)

    @contextmanager
    def _resizing(self) -> Iterator[None]:
        """Mark the cell as being resized: ranks that die in the meantime are replaced here, not by its reader."""
        execution, replaced = self._execution, self._execution.replaces

        def begin() -> None:
            execution.resizing = execution.replaces = True

        def end() -> None:
            execution.resizing, execution.replaces = False, replaced
            if execution.lost and not execution.busy:
                execution.give_up()

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
            self._post(self._execution.waiting, "give_up", {"why": f"the ranks could not meet again: {error}"})
            self._call_on_io_thread(self._execution.give_up)
            raise

    def _announce(self, n: int) -> bool:
        """Notify every rank of the resize; return whether the cell is in ``elastic.run``."""
        try:
            answers = self._query("prepare_resize", {"run": self._number})
        except ClusterError:
            self._post(self._execution.busy, "prepare_resize", {"run": 0})
            raise
        change = ADDED if n > len(self._execution.ranks) else REMOVED
        self._query("resize", {"time": time.monotonic(), "change": change})
        return any(answer["elastic"] for answer in answers)

    def _query(self, handler: str, content: dict[str, Any]) -> list[Any]:
        """Query all ranks that run the cell; return the answers of those that live."""
        ranks = self._execution.busy
        answers = self._post(ranks, handler, content).wait_all(_ANSWER_S)
        if silent := ranks - answers.keys():
            verb, it = ("does", "it is") if len(silent) == 1 else ("do", "they are")
            remedy = f"`%hvd stacks` shows where {it}. Nothing was changed."
            raise ClusterError(f"{rank_list(silent)} {verb} not answer: {remedy}")
        return [answer for answer in answers.values() if "error" not in answer]

    def _dismiss(self, leaving: set[int]) -> None:
        """Make ranks end the cell, running the user's code at its end."""
        if leaving:
            self._call_on_io_thread(partial(self._execution.dismiss, leaving))
            self._post(leaving & self._execution.waiting.keys(), "quit", {})
            self._execution.wait_until(lambda: not leaving & {*self._execution.ranks}, _QUIT_S)

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
        execution = self._execution
        newest = max((waiting.commits for waiting in execution.waiting.values()), default=0)
        root = min((rank for rank, waiting in execution.waiting.items() if waiting.commits == newest), default=0)
        execution.admit(joining)
        wire = self._executor.wire
        wire.request(sorted(joining), "execute_request", execution.request_again(self._number, root, fresh), execution)
        self._post(execution.waiting, "go_on", {"root": root, "fresh": fresh})
        execution.waiting.clear()
