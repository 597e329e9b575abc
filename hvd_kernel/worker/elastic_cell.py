"""Elastic training in a cell: ``elastic.run`` waits for the notebook, which replaces the dead and has all meet again.

    rank in elastic.run                             notebook
    Waiting                                  --->   when all ranks of the cell that live wait: fresh processes
    <--- rendezvous, restore                        on the control channel; the main thread does it, since it waits
    <--- go_on (root, fresh) | give_up (why)        to those that wait
    <--- the cell (root, fresh)                     to the fresh ones

It is so where the notebook has said with the cell that it replaces the dead (``%hvd start --respawn auto``), and where
it has said that ranks come or leave. Else the ranks of a cell meet again by themselves, as those of a script.
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
from hvd_kernel.protocol.messages import WAITING_TYPE, Waiting, to_wire

Answer = tuple[dict[str, Any], list[Any]]
Publish = Callable[[str, dict[str, Any]], None]

_REASON_CHARS = 300
_LOOK_S = 0.5


class ElasticCell:
    """What this rank knows of the cell that runs. ``hand_over`` and ``end_wait`` are for the control thread."""

    def __init__(self, rank: Callable[[], int], publish: Publish) -> None:
        self._rank = rank
        self.replaces = False  # the notebook replaces ranks that die
        self.joins = False  # this rank is fresh: it has come to the cell later than others
        self.changes = False  # the notebook has said that ranks come or leave
        self.root: int | None = None
        self.fresh: tuple[int, ...] = ()
        self._publish = publish
        self._waits = False
        self._given: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._over: str | None = None  # why a wait has ended; "": all have met

    @contextmanager
    def during(self, asked: Mapping[str, Any]) -> Iterator[None]:
        """Be in a cell; ``asked``: the part of its request that is about this."""
        self.replaces, self.joins, self.changes = bool(asked.get("replaces")), bool(asked.get("joins")), False
        self.root, self.fresh = asked.get("root"), tuple(asked.get("fresh", ()))
        if self.joins:
            session.refuse_collectives()  # before elastic.run: the others are in it
        try:
            yield
        finally:
            self.replaces = self.joins = self.changes = False
            session.allow_collectives()

    @property
    def is_the_notebooks(self) -> bool:
        """Whether the ranks meet again when the notebook says so."""
        return self.replaces or self.changes

    def wait(self, reason: str, commits: int, lost: int) -> None:
        """Tell the notebook that this rank waits, and do what it wants done, until all have met. Main thread.

        Raises
        ------
        RankDied
            The notebook has given up.
        HvdTimeout
            It has not spoken for HVD_ELASTIC_TIMEOUT seconds.
        """
        patience = float(session.setting("HVD_ELASTIC_TIMEOUT"))
        self._given = queue.SimpleQueue()  # what came too late for an earlier wait is nobody's business
        self._over, self._waits = None, True
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
            self._waits = self.changes = False
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

        if self._waits:
            self._given.put(end)
