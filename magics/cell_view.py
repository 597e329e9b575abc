"""View of a cell: what the user sees and does while the ranks run it, from its start to its error.

``drive`` runs code as a cell: it starts a ``CellExecution`` and passes its events to a ``CellView``, whose parts are
the output with the board (``CellOutput``), the prompts (``CellPrompts``) and changes of the ranks (``CellChanges``).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from hvd_kernel.diagnosis.inquiry import locate
from hvd_kernel.diagnosis.stall import StallMonitor, report, whereabouts
from hvd_kernel.diagnosis.training_apart import TrainingApart
from hvd_kernel.errors import ClusterError, HvdTimeout, UsageError
from hvd_kernel.formatting import units
from hvd_kernel.formatting.rank_labels import rank_list, spans
from hvd_kernel.magics import cluster_size
from hvd_kernel.magics.cell_changes import CellChanges
from hvd_kernel.magics.cell_prompts import CellPrompts, front_end_at
from hvd_kernel.magics.cell_record import commit, digest
from hvd_kernel.magics.cluster_manager import ClusterManager
from hvd_kernel.magics.display.cell_output import CellOutput
from hvd_kernel.magics.display.panel_polls import OtherRanks, TimelinePoll
from hvd_kernel.magics.display.user_errors import (
    Hint,
    is_own,
    merged_error,
    no_hint,
    one_line_each,
    still_running,
    summary,
)
from hvd_kernel.magics.display.writer import Writer
from hvd_kernel.magics.interrupts import InterruptCount, Interrupted, counted, not_responding, restoring_handler
from hvd_kernel.magics.jobs import BackgroundJob
from hvd_kernel.protocol.messages import (
    Event,
    Failure,
    InElastic,
    MetricsSample,
    RankDone,
    RankJoined,
    RankLeft,
    RankRaised,
    Whereabouts,
)

if TYPE_CHECKING:
    from collections.abc import Collection

    from hvd_kernel.cluster import CellExecution, Session


POLL_S = 0.05
GRACE_S = 5.0
"""Time that ranks have to respond after a timeout, before the cell is abandoned."""

SHOW_STUCK_AT, GIVE_UP_AT = 2, 3
"""Counts of key presses: the second and later ones show stacks, the third abandons the ranks."""

PATIENT_S = 2.0
"""Time after the first press, after which stacks of ranks that do not respond are shown without a second press."""

LOG_S = 2.0
"""Time limit for ranks to write a line to their logs."""

RAISED_S = 1.0
"""Time until a rank's error is shown while others still run; normally they are released at once."""

NOT_FINITE = "hvd_kernel: the logged value {name} is {value} on rank {rank}, at step {step}."
REMEDY = "%hvd respawn {ranks} --force replaces {them}, %hvd restart all"


class CellView:
    """Shows one cell until every rank is done or abandoned; passes the interrupt key and the timeout to its ranks."""

    def __init__(
        self,
        session: Session,
        execution: CellExecution,
        output: CellOutput,
        ranks: Sequence[int],
        timeout: float | None,
        *,
        prompts: CellPrompts | None = None,
        tick: Callable[[], None] = lambda: None,
    ) -> None:
        self._session = session
        self.execution = execution
        self.output = output
        self._left = set(ranks)
        self._ranks = tuple(ranks)
        self._timeout = timeout
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._handled = 0  # interrupts
        self._pressed_at = 0.0
        self._late = False
        self._stalls = StallMonitor(session, ranks)
        self._apart = TrainingApart(ranks)
        self._alarms: dict[str, str] = {}  # logged name -> warning that its value is not finite
        self.changes = CellChanges(session, execution, output)
        self._explained = ""
        self._stall = ""  # why ranks waited when the cell was interrupted
        self._where: dict[int, Whereabouts] = {}  # of ranks that did not respond
        self._reported = 0  # interrupts of which the report of ranks that do not respond has been shown
        self._released: set[int] = set()  # ranks asked to release the others from a collective
        self._released_torch: set[int] = set()  # failed ranks because of which groups of torch were released
        self.fate = ""  # what became of the abandoned ranks
        self._failures: dict[int, Failure] = {}
        self._raised: dict[int, RankRaised] = {}
        self._first: dict[int, float] = {}  # rank that failed before any interrupt -> when its failure arrived
        self.prompts = prompts or CellPrompts(session, output, ranks)
        self._tick = tick  # further work between events

    def show(self, key: InterruptCount | None = None) -> None:
        """Pass events to the output until the cell is over; raise no error of the ranks."""
        with counted(key) as interrupts:
            while self._left and not self._must_abandon(interrupts):
                self._handle_interrupts(interrupts)
                event = self.execution.next(POLL_S)
                if event is not None:
                    self._handle(event)
                elif self.execution.done:
                    self._left.clear()
                self.changes.tick()
                self._explain()
                self.output.tick()
                self.prompts.tick()
                self._tick()
            self._handled = interrupts.count
        warnings = [*filter(None, [self._apart.warning]), *self._alarms.values()]
        if warnings and self.execution.done:
            self._log(warnings)

    def _log(self, warnings: Sequence[str]) -> None:
        """Write warnings to the ranks' logs, after the cell: within it, the lines would be output of the cell."""
        text = "".join(f"{warning}\n" for warning in warnings)
        with suppress(ClusterError):  # a rank has died: the cell's own error reports it
            self._session.ask("write_log", None, {"text": text}, timeout=LOG_S, urgent=True)

    def _warn_of_values(self, sample: MetricsSample) -> None:
        """Warn once of each logged name whose value is NaN or infinite."""
        for name, alarm in sample.not_finite.items():
            if name not in self._alarms:
                value = units.not_finite(alarm.value)
                self._alarms[name] = NOT_FINITE.format(name=name, value=value, rank=sample.rank, step=alarm.step)
                self.output.warn(self._alarms[name])

    def _handle(self, event: Event) -> None:
        self.output.handle(event)
        self.prompts.handle(event)
        match event:
            case MetricsSample():
                self._stalls.observe(event)
                if warning := self._apart.observe(event):
                    self.output.warn(warning)
                self._warn_of_values(event)
            case RankRaised(rank):
                self._raised[rank] = event
                self._record_failure(rank)
            case RankDone(rank, failure):
                self._left.discard(rank)
                if failure:
                    self._failures[rank] = failure
                    if is_own(failure):
                        self._record_failure(rank)
            case RankJoined(rank):
                self._apart = TrainingApart(())  # a new rank counts its steps from zero
                self._left.add(rank)
                self._forget_error(rank)
                self._follow({*self._ranks, rank})
            case RankLeft(rank):
                self._left.discard(rank)
                self._forget_error(rank)
                self._follow({*self._ranks} - {rank})
            case InElastic() if cluster_size.is_resizable(self._session):
                self.output.show_size(self._session.n)

    def _record_failure(self, rank: int) -> None:
        if not self.stopped:
            self._first.setdefault(rank, time.monotonic())

    def _forget_error(self, rank: int) -> None:
        """Forget the error of a rank that was replaced or removed."""
        self._raised.pop(rank, None)
        self._first.pop(rank, None)

    def _follow(self, ranks: set[int]) -> None:
        """Continue with these ranks."""
        if ranks != {*self._ranks}:
            self._ranks = tuple(sorted(ranks))
            self._stalls = StallMonitor(self._session, self._ranks)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks of the cell."""
        return self._ranks

    @property
    def left(self) -> list[int]:
        """The ranks that still run."""
        return sorted(self._left)

    @property
    def abandoned(self) -> bool:
        """True if the user has abandoned the ranks that still run, by the third interrupt."""
        return bool(self._left) and self._handled >= GIVE_UP_AT

    @property
    def interrupted(self) -> bool:
        """True if the user has interrupted the cell."""
        return self._handled > 0

    @property
    def stopped(self) -> bool:
        """True if an interrupt or the timeout has ended the cell."""
        return self.interrupted or self._late

    @property
    def failed(self) -> bool:
        """True if ``check`` raises."""
        return bool(self.stopped or self._failures)

    def end_state(self) -> str:
        """Return the final state of the ranks that did not fail."""
        return "interrupted" if self.stopped else "done"

    @restoring_handler()
    def check(self, hint: Hint = no_hint) -> None:
        """Raise the error of the cell, if any: a rank's own error first, else the reason why it was stopped."""
        failures = self._known_failures()
        first = [failure for failure in failures if failure.rank in self._first]
        if not self.stopped:
            if failures:
                raise merged_error(failures, hint)
            return
        later = one_line_each([failure for failure in failures if is_own(failure) and failure.rank not in self._first])
        lines = [*self._stopped_by(self._first), *later, *self._aftermath()]
        if first:
            raise merged_error([*first, *(failure for failure in failures if failure.secondary)], hint, lines)
        raise (Interrupted if self.interrupted else HvdTimeout)("\n".join(lines))

    def _known_failures(self) -> list[Failure]:
        """Return the failures of all ranks; an abandoned rank that has not sent its traceback has the error alone."""
        cut_off = [
            Failure(rank, error.ename, error.evalue, (summary(error.ename, error.evalue),), self._first.get(rank, 0.0))
            for rank, error in self._raised.items()
            if rank in self._left
        ]
        return [*self._failures.values(), *cut_off]

    def _stopped_by(self, failed: Collection[int]) -> list[str]:
        """Return the sentence about what stopped the ranks that had not failed."""
        if not self.interrupted:
            return [f"the cell took longer than {self._timeout:g} s and was interrupted"]
        secondary = {rank for rank, failure in self._failures.items() if failed and failure.secondary}
        obedient = set(self._ranks) - self._left - set(failed) - secondary
        return [f"{rank_list(obedient)} interrupted, variables are kept"] if obedient else []

    def _aftermath(self) -> list[str]:
        """Return which ranks did not respond, with their fate or the remedy, and why ranks waited before."""
        lines = [f"at that moment: {self._stall}"] if self._stall else []
        if not self._left:
            return lines
        them = "it" if len(self._left) == 1 else "them"
        remedy = REMEDY.format(ranks=spans(self._left), them=them)
        where = whereabouts({rank: self._where[rank] for rank in self.left if rank in self._where})
        return [f"not responding: {where or rank_list(self._left)}", self.fate or remedy, *lines]

    def _handle_interrupts(self, interrupts: InterruptCount) -> None:
        now = time.monotonic()
        if interrupts.count > self._handled:
            self._pressed_at = self._pressed_at or now
            self._handled = interrupts.count
            self._interrupt()
        if self._deadline is not None and not self._late and now > self._deadline + self.prompts.waited:
            self._late = True
            self._interrupt()
        late = self._pressed_at > 0 and now > self._pressed_at + PATIENT_S
        if self._reported < self._handled and (late or self._handled >= SHOW_STUCK_AT):
            self._reported = self._handled
            self._show_stuck()

    def _interrupt(self) -> None:
        self._stall = self._stall or self._stalls.sentence
        self.prompts.withdraw()
        self._session.interrupt(self.left)

    def _show_stuck(self) -> None:
        """Show the stacks of the ranks that do not respond, and the effect of this and the next interrupt."""
        self._where = locate(self._session, self.left)
        self.output.notify(f"{report(self._where)}{not_responding(self.left, self._handled)}\n")

    def _explain(self) -> None:
        self._stalls.tick()
        if held := (self.execution.holding & self._stalls.awaited) - self._released:
            self._released |= held
            self._session.post("release", sorted(held), urgent=True)
        self._release_torch()
        sentence = "" if self.stopped else "; ".join(filter(None, [self._unnoticed(), self._stalls.sentence]))
        if sentence != self._explained:
            self._explained = sentence
            self.output.explain(sentence)

    def _release_torch(self) -> None:
        """Release all ranks from torch's own groups, which the core cannot abort, also those without a failed rank."""
        failed = self._first.keys() - self._released_torch
        if failed and self._first_unnoticed() is not None:
            self._released_torch |= failed
            self._session.post("release_torch", sorted(failed | self._left), urgent=True)

    def _first_unnoticed(self) -> int | None:
        """Return the rank that failed first, if other ranks still run and have not noticed it."""
        running = self._left - self._first.keys()
        rank = min(self._first, key=lambda rank: self._first[rank], default=None)
        return None if rank is None or not running or time.monotonic() < self._first[rank] + RAISED_S else rank

    def _unnoticed(self) -> str:
        """Return the sentence about the first failure, if other ranks still run and have not noticed it."""
        rank, running = self._first_unnoticed(), self._left - self._first.keys()
        if rank is None:
            return ""
        error = self._failures.get(rank) or self._raised[rank]
        return still_running(rank, error.ename, error.evalue, running)

    def _must_abandon(self, interrupts: InterruptCount) -> bool:
        """Return whether to stop waiting: after the third press, or the grace time after a timeout."""
        too_late = (
            self._late
            and self._deadline is not None
            and time.monotonic() > self._deadline + self.prompts.waited + GRACE_S
        )
        if too_late and not self._where:
            self._where = locate(self._session, self.left)
        return interrupts.count >= GIVE_UP_AT or too_late


Origin = dict[str, Any]


def drive(
    session: Session,
    manager: ClusterManager,
    writer: Writer,
    code: str,
    ranks: tuple[int, ...],
    *,
    timeout: float | None = None,
    job: BackgroundJob | None = None,
    counts: bool = True,
    source: str | None = None,
    independent: bool = False,
) -> CellView:
    """Run code on the ranks as a cell, to its end, and show its output; ``CellView.check`` raises its errors.

    ``counts``: keep the figures of a cell that trains in the history, there with ``source`` instead of the code.
    ``independent``: each rank trains a model of its own.
    """
    number = manager.cells.number if job is None else job.number
    if job is not None:
        job.cell = number
    session.make_ready()  # interruptible here; once the ranks run, an interrupt goes to them
    begin = partial(session.run, code, ranks, number, replaces=manager.replaces_dead(), independent=independent)
    origin = cache(partial(origin_of, manager.place, code if source is None else source, number))
    view = watch(session, manager, writer, begin, origin, timeout=timeout, job=job)
    if view.output.trained and counts:
        state = "failed" if view.failed and view.end_state() == "done" else view.end_state()
        remember(manager, view.output, origin(), state)
    return view


def watch(
    session: Session,
    manager: ClusterManager,
    writer: Writer,
    begin: Callable[[], CellExecution],
    origin: Callable[[], Origin] = dict,
    *,
    timeout: float | None = None,
    job: BackgroundJob | None = None,
) -> CellView:
    """Start a cell, or join a running one, and show its output until its end.

    ``origin`` returns what is stored with the figures of a cell that trained.
    """
    from hvd_kernel.widgets import Dashboard  # noqa: PLC0415 - ipywidgets is loaded with the first cell, not with the kernel

    before, interrupts = manager.samples, job.interrupts if job else InterruptCount()
    manager.in_cell = running = Future[CellChanges]()  # set before they start: ranks may be fast
    try:
        with counted(interrupts):  # from the start: a cell that ends before its ranks blocks the next one
            execution = begin()
            ranks, cell = execution.ranks, execution.cell
            one_host = {*range(session.n)} <= session.ranks.here
            cores = len(os.sched_getaffinity(0)) if one_host else 0
            board = Dashboard(ranks, f"cell {cell}" if job is None else f"job {job.name}", before, cores)
            output = CellOutput(writer, board, ranks, before, cell)
            manager.prompts = prompts = CellPrompts(session, output, ranks, front_end_at(writer))
            poll, others = TimelinePoll(session, board, lambda: view.ranks), OtherRanks(session, board)

            def tick() -> None:
                poll.tick()
                others.tick()

            view = CellView(session, execution, output, ranks, timeout, prompts=prompts, tick=tick)
            board.on_resize = partial(_resize, view.changes)
            view.changes.mark_earlier()
            running.set_result(view.changes)
            if job is not None:
                job.follow(lambda: view.left, partial(steps_taken, output.latest, dict(before)))
                prompts.park(has_user=job.writer.has_user)
            view.show(interrupts)
            poll.finish()
    except BaseException:
        if running.done():
            running.result().close()
        raise
    finally:
        manager.in_cell = None
        if not running.done():
            running.set_exception(UsageError("the cell has not begun"))
    manager.samples.update(output.latest)
    if output.trained:
        board.origin = origin()
    output.finish(view.end_state())
    view.changes.finalize(manager.samples, lambda text: writer.write(f"{text}\n"))
    return view


def origin_of(place: str, code: str, cell: int) -> Origin:
    """Return the origin of figures: the cell's number, its code's digest, and the commit of the notebook's folder."""
    return {"cell": cell, "source": digest(code), "commit": commit(place)}


def remember(manager: ClusterManager, output: CellOutput, origin: Origin, state: str) -> None:
    """Store the figures of a cell that has ended."""
    record = replace(output.record(), time=time.time(), place=manager.place, **origin)
    manager.history.add(replace(record, state=state))


def _resize(changes: CellChanges, n: int) -> None:
    """Resize to n ranks, as a user of the panel requests; a late or second request has no effect."""
    with suppress(UsageError):
        changes.resize(n)


def steps_taken(latest: Mapping[int, MetricsSample], before: Mapping[int, MetricsSample]) -> int:
    """Return the largest number of optimizer steps of a rank since ``before``; a new rank counts from zero."""
    earlier = {rank: sample.step for rank, sample in before.items()}
    now = {rank: sample.step for rank, sample in dict(latest).items()}
    return max((step - min(step, earlier.get(rank, 0)) for rank, step in now.items()), default=0)
