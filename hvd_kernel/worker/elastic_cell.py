"""Elastic training in a cell: ``elastic.run`` waits for the notebook, which replaces dead ranks and resets all ranks.

    rank in elastic.run                             notebook
    Waiting                                  --->   when all living ranks of the cell wait: starts new processes
    <--- rendezvous, restore                        on the control channel; the waiting main thread handles them
    <--- go_on (root, fresh) | give_up (why)        to waiting ranks
    <--- quit                                       to leaving ranks: SystemExit in elastic.run
    <--- the cell (root, fresh)                     to new ranks

This applies if the notebook has announced with the cell that it replaces dead ranks (``%hvd start --respawn auto``), or
has announced a resize: ``prepare_resize`` to all ranks, so that every rank that leaves its communicator waits for the
notebook, then ``resize``, after which the next commit interrupts. Otherwise the ranks of a cell reset on their own, as
those of a script.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from typing import Any

from hvd_kernel.core import metrics, session
from hvd_kernel.elastic.membership import ENDED, PeerProcesses, RankMembership, SameRanks
from hvd_kernel.elastic.state import State
from hvd_kernel.elastic.updates import notification_manager
from hvd_kernel.errors import HvdTimeout, RankDied
from hvd_kernel.protocol.messages import ELASTIC_TYPE, UNDONE_TYPE, WAITING_TYPE, Waiting, to_content

Answer = tuple[dict[str, Any], list[Any]]
Publish = Callable[[str, dict[str, Any]], None]
OnChange = Callable[[float, int], None]
"""Receives the time and the kind of a change of ranks (``HostUpdateResult``)."""

SILENT = "the notebook has sent nothing for {seconds:g} s"
_REASON_CHARS = 300
_POLL_S = 0.5


class ElasticCell:
    """State of this rank in the running cell.

    The control thread calls ``run_in_main_thread``, ``end_wait``, ``quit``, ``expect_change`` and ``announce``.
    """

    def __init__(self, rank: Callable[[], int], publish: Publish) -> None:
        self._rank = rank
        self.replaces = False  # the notebook replaces ranks that die
        self.joins = False  # this rank is new: it has joined the cell later than others
        self._run = 0  # number of the cell in this cluster
        self._changing = 0  # the run for which the notebook has announced a resize; it may not have started
        self._announced: tuple[float, int] | None = None  # that change
        self._on_change: OnChange | None = None  # of ``elastic.run``, while it is active
        self._forget_changes: Callable[[], None] = lambda: None  # of ``elastic.run``
        self.root: int | None = None
        self.fresh: tuple[int, ...] = ()
        self._publish = publish
        self._waits = False
        self._tasks: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()  # for the waiting main thread
        self._over: str | None = None  # reason for the end of a wait; "": all ranks have joined
        self._leaves = False

    @contextmanager
    def during(self, options: Mapping[str, Any]) -> Iterator[None]:
        """Mark the block as a cell; ``options`` is the ``elastic`` part of its request."""
        self._run = options.get("run", 0)
        self.replaces, self.joins = bool(options.get("replaces")), bool(options.get("joins"))
        self.root, self.fresh = options.get("root"), tuple(options.get("fresh", ()))
        if self.joins:
            session.refuse_collectives()  # until elastic.run, in which the other ranks are
        try:
            yield
        finally:
            self.replaces = self.joins = False
            self._run = 0
            session.allow_collectives()

    @property
    def waits_for_notebook(self) -> bool:
        """Whether the notebook controls the reset of the ranks."""
        return self.replaces or self._changes

    @property
    def _changes(self) -> bool:
        """Whether the notebook has announced a resize of the running cell."""
        return self._run != 0 and self._changing == self._run

    @contextmanager
    def entered(self, on_change: OnChange, forget_changes: Callable[[], None]) -> Iterator[None]:
        """Mark the block as ``elastic.run``, which is notified of changes, and discards them after one. Main thread."""
        self._on_change, self._forget_changes = on_change, forget_changes
        self._publish(ELASTIC_TYPE, {"rank": self._rank()})
        if self._changes and self._announced is not None:
            on_change(*self._announced)
        try:
            yield
        finally:
            self._on_change = None

    def expect_change(self, run: int) -> bool:
        """Wait for the notebook after any failure in this run; return whether the cell is in ``elastic.run``.

        Run 0 cancels this.
        """
        self._changing, self._announced = run, None
        return self._on_change is not None

    def announce(self, when: float, change: int) -> None:
        """Make the next commit interrupt ``elastic.run``, even if it has not been entered yet."""
        self._announced = when, change
        if self._on_change is not None and self._changes:
            self._on_change(when, change)

    def report_undone(self, steps: int) -> None:
        """Report the number of steps that a failure has undone, if any, to the panel; rank 0 reports for all."""
        if steps and self._rank() == 0:
            self._publish(UNDONE_TYPE, {"steps": steps})

    def wait(self, reason: str, commits: int, lost: int) -> None:
        """Report to the notebook that this rank waits, and run its tasks until all ranks have joined. Main thread.

        Raises
        ------
        RankDied
            The notebook has given up.
        HvdTimeout
            It has not sent anything for HVD_ELASTIC_TIMEOUT seconds.
        SystemExit
            This rank leaves.
        """
        patience = float(session.setting("HVD_ELASTIC_TIMEOUT"))
        self._tasks = queue.SimpleQueue()  # drops tasks that were too late for an earlier wait
        self._over, self._leaves, self._waits = None, False, True
        self._publish(WAITING_TYPE, to_content(Waiting(self._rank(), reason[:_REASON_CHARS], commits, lost)))
        try:
            deadline = time.monotonic() + patience
            while self._over is None:
                try:
                    self._tasks.get(timeout=_POLL_S)()
                except queue.Empty:
                    if time.monotonic() > deadline:
                        raise HvdTimeout(SILENT.format(seconds=patience)) from None
        finally:
            self._waits = False
        if self._leaves:
            raise SystemExit(0)
        if self._over:
            raise RankDied(self._over)

    def run_in_main_thread(self, act: Callable[[], Answer]) -> Future[Answer]:
        """Run a task in the main thread, if it waits for the notebook."""
        done: Future[Answer] = Future()

        def run() -> None:
            try:
                done.set_result(act())
            except Exception as error:  # noqa: BLE001 - any error must be reported to the notebook
                done.set_exception(error)

        if self._waits:
            self._tasks.put(run)
        else:
            done.set_exception(RuntimeError("this rank does not wait in elastic.run"))
        return done

    def end_wait(self, reason: str, root: int | None, fresh: tuple[int, ...]) -> None:
        """Let the main thread continue, or give up if there is a reason."""

        def end() -> None:
            self._over, self.root, self.fresh = reason, root, fresh

        self._end_with(end)

    def quit(self) -> None:
        """Make the main thread leave the cell; the clean-up of the user's code runs."""

        def leave() -> None:
            self._over, self._leaves = "", True

        self._end_with(leave)

    def _end_with(self, act: Callable[[], None]) -> None:
        """End the wait of the main thread; later announcements, even before it ends, belong to another change."""
        if self._waits:
            self._changing, self._announced = 0, None
            self._forget_changes()
            self._tasks.put(act)


class CellRanks(RankMembership):
    """Membership in a notebook's cell."""

    def __init__(self, cell: ElasticCell) -> None:
        self._cell = cell
        self._commits = Commits()
        self._left: tuple[str, int] = "", 0  # reason for leaving the last communicator, and the commits at that time

    @property
    def root(self) -> int | None:  # type: ignore[override]
        """The notebook's choice: the first rank with the newest values."""
        return self._cell.root

    @property
    def fresh(self) -> tuple[int, ...]:  # type: ignore[override]
        """The ranks that the notebook has marked as new."""
        return self._cell.fresh

    def can_recover_from(self, error: Exception) -> bool:
        """Return True also for a death if the notebook replaces dead ranks."""
        if self._cell.waits_for_notebook and isinstance(error, RankDied):
            return ENDED not in str(error)
        return SameRanks().can_recover_from(error)

    def leave(self, reason: str | None, step: int) -> None:
        """Record it for the notebook."""
        self._left = reason or "", step

    def reset_communicator(self, peers: PeerProcesses) -> None:
        """Wait for the notebook if it controls the reset."""
        reason, commits = self._left
        lost = self._commits.lost(commits) if reason else 0
        if self._cell.waits_for_notebook:
            self._cell.wait(reason, commits, lost)
        else:
            self._cell.report_undone(lost)
            super().reset_communicator(peers)

    @contextmanager
    def entered(self, *, resumes: bool) -> Iterator[None]:  # noqa: ARG002 - a cell is not restarted from files
        """Count the commits, and subscribe to changes of ranks."""
        for state in notification_manager.listeners:
            if isinstance(state, State):
                state.register_commit_callbacks([partial(self._record, state)])
        manager = notification_manager
        with self._cell.entered(manager.handle_hosts_updated, manager.forget_host_updates):
            yield

    def _record(self, state: State, *_numbers: object) -> None:
        self._commits.record(state.commit_number)


class Commits:
    """Counter of optimizer steps that a failure undoes: those since the last commit or voted step."""

    def __init__(self) -> None:
        self._at = metrics.snapshot().step
        self._number = 0

    def record(self, number: int) -> None:
        """Record a commit."""
        self._at, self._number = metrics.snapshot().step, number

    def lost(self, number: int) -> int:
        """Return the number of steps that are undone by returning to this commit or voted step."""
        return max(0, metrics.snapshot().step - self._at - max(0, number - self._number))
