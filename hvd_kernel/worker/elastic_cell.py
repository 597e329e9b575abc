"""Elastic training in a cell: ``elastic.run`` waits for the notebook, which replaces the dead and has all meet again.

    rank in elastic.run                             notebook
    Waiting                                  --->   when all ranks of the cell that live wait: fresh processes
    <--- rendezvous, restore                        on the control channel; the main thread does it, since it waits
    <--- go_on (root, fresh) | give_up (why)        to those that wait
    <--- quit                                       to those that leave: SystemExit in elastic.run
    <--- the cell (root, fresh)                     to the fresh ones

It is so where the notebook has said with the cell that it replaces the dead (``%hvd start --respawn auto``), and where
it has said that ranks come or leave: to all ``prepare_resize``, so that whoever leaves the others comes back to the
notebook, then ``resize``, at which the next commit interrupts. Else the ranks of a cell meet again by themselves, as
those of a script.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from hvd_kernel.core import session
from hvd_kernel.errors import HvdTimeout, RankDied
from hvd_kernel.protocol.messages import ELASTIC_TYPE, UNDONE_TYPE, WAITING_TYPE, Waiting, to_wire

Answer = tuple[dict[str, Any], list[Any]]
Publish = Callable[[str, dict[str, Any]], None]
Hear = Callable[[float, int], None]
"""Takes the time of a change of ranks, and what it is (``HostUpdateResult``)."""

_REASON_CHARS = 300
_LOOK_S = 0.5


class ElasticCell:
    """What this rank knows of the cell that runs.

    ``hand_over``, ``end_wait``, ``quit``, ``expect_change`` and ``announce`` are for the control thread.
    """

    def __init__(self, rank: Callable[[], int], publish: Publish) -> None:
        self._rank = rank
        self.replaces = False  # the notebook replaces ranks that die
        self.joins = False  # this rank is fresh: it has come to the cell later than others
        self._run = 0  # the cell's number among this cluster's
        self._changing = 0  # the run in which ranks come or leave, as the notebook has said; it may not have begun
        self._told: tuple[float, int] | None = None  # of that change
        self._hear: Hear | None = None  # of ``elastic.run``, while it is busy
        self._forget: Callable[[], None] = lambda: None  # the same
        self.root: int | None = None
        self.fresh: tuple[int, ...] = ()
        self._publish = publish
        self._waits = False
        self._given: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._over: str | None = None  # why a wait has ended; "": all have met
        self._leaves = False

    @contextmanager
    def during(self, asked: Mapping[str, Any]) -> Iterator[None]:
        """Be in a cell; ``asked``: the part of its request that is about this."""
        self._run = asked.get("run", 0)
        self.replaces, self.joins = bool(asked.get("replaces")), bool(asked.get("joins"))
        self.root, self.fresh = asked.get("root"), tuple(asked.get("fresh", ()))
        if self.joins:
            session.refuse_collectives()  # before elastic.run: the others are in it
        try:
            yield
        finally:
            self.replaces = self.joins = False
            self._run = 0
            session.allow_collectives()

    @property
    def is_the_notebooks(self) -> bool:
        """Whether the ranks meet again when the notebook says so."""
        return self.replaces or self._changes

    @property
    def _changes(self) -> bool:
        """Whether ranks come or leave."""
        return self._run != 0 and self._changing == self._run

    @contextmanager
    def entered(self, hear: Hear, forget: Callable[[], None]) -> Iterator[None]:
        """Be in ``elastic.run``, which hears that ranks come or leave, and forgets it when they have. Main thread."""
        self._hear, self._forget = hear, forget
        self._publish(ELASTIC_TYPE, {"rank": self._rank()})
        if self._changes and self._told is not None:
            hear(*self._told)
        try:
            yield
        finally:
            self._hear = None

    def expect_change(self, run: int) -> bool:
        """Return to the notebook, in this run, for whatever reason the ranks separate; tell whether it is elastic.

        Of run 0: there will be no change.
        """
        self._changing, self._told = run, None
        return self._hear is not None

    def announce(self, when: float, change: int) -> None:
        """Have the next commit interrupt ``elastic.run``, also where that has not been entered yet."""
        self._told = when, change
        if self._hear is not None and self._changes:
            self._hear(when, change)

    def tell_undone(self, steps: int) -> None:
        """Have the panel mark that a failure has undone so many steps, where there are any; rank 0 says it for all."""
        if steps and self._rank() == 0:
            self._publish(UNDONE_TYPE, {"steps": steps})

    def wait(self, reason: str, commits: int, lost: int) -> None:
        """Tell the notebook that this rank waits, and do what it wants done, until all have met. Main thread.

        Raises
        ------
        RankDied
            The notebook has given up.
        HvdTimeout
            It has not spoken for HVD_ELASTIC_TIMEOUT seconds.
        SystemExit
            This rank leaves.
        """
        patience = float(session.setting("HVD_ELASTIC_TIMEOUT"))
        self._given = queue.SimpleQueue()  # what came too late for an earlier wait is nobody's business
        self._over, self._leaves, self._waits = None, False, True
        self._publish(WAITING_TYPE, to_wire(Waiting(self._rank(), reason[:_REASON_CHARS], commits, lost)))
        try:
            deadline = time.monotonic() + patience
            while self._over is None:
                try:
                    self._given.get(timeout=_LOOK_S)()
                except queue.Empty:
                    if time.monotonic() > deadline:
                        raise HvdTimeout(f"the notebook has not spoken for {patience:g} s") from None
        finally:
            self._waits = False
        if self._leaves:
            raise SystemExit(0)
        if self._over:
            raise RankDied(self._over)

    def hand_over(self, act: Callable[[], Answer]) -> Future[Answer]:
        """Have the main thread do something, if it waits for that."""
        done: Future[Answer] = Future()

        def do() -> None:
            try:
                done.set_result(act())
            except Exception as error:  # noqa: BLE001 - whatever it is, the notebook must hear of it
                done.set_exception(error)

        if self._waits:
            self._given.put(do)
        else:
            done.set_exception(RuntimeError("this rank does not wait in elastic.run"))
        return done

    def end_wait(self, why: str, root: int | None, fresh: tuple[int, ...]) -> None:
        """Have the main thread go on, or give up: where there is a reason why."""

        def end() -> None:
            self._over, self.root, self.fresh = why, root, fresh

        self._give(end)

    def quit(self) -> None:
        """Have the main thread leave the cell, with what the user's code has to do at its end."""

        def leave() -> None:
            self._over, self._leaves = "", True

        self._give(leave)

    def _give(self, act: Callable[[], None]) -> None:
        """Have the main thread end its wait; what is said from here on, also before it does, is of another change."""
        if self._waits:
            self._changing, self._told = 0, None
            self._forget()
            self._given.put(act)
