"""Execution of cells on this rank.

A cell that raises aborts this rank's communication *before* its traceback is formatted, so that the peers that wait for
this rank are released within milliseconds. In two cases peers should raise their own error instead. After an interrupt
the abort is delayed for a moment, because the peers are being interrupted too. After an error that all ranks of an
operation get (Mismatch), the peers are released when the notebook sees that they wait for this rank.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from traceback import format_exception
from types import FrameType
from typing import Any

from IPython.core.interactiveshell import ExecutionResult

from hvd_kernel.errors import message_of
from hvd_kernel.frameworks import torch_connections
from hvd_kernel.protocol.messages import Failure, to_content
from hvd_kernel.worker import communication
from hvd_kernel.worker.elastic_cell import ElasticCell
from hvd_kernel.worker.inspect.origins import Origins, RunCell
from hvd_kernel.worker.output import encoded
from hvd_kernel.worker.shell.prompt import RankPrompts
from hvd_kernel.worker.shell.repeated_signal import RepeatedSignal

_REASON_CHARS = 300
_NOTE_CHARS = 100
_COHERENT_S = 1.0  # time for the peers' own KeyboardInterrupt before this rank's abort
_UNWATCHED_S = 10.0  # delay of the abort after an error of all ranks, if no notebook releases the peers
_INTERRUPTED = "KeyboardInterrupt: the cell was interrupted"


@dataclass(frozen=True)
class Latest:
    """The running cell of this rank, or the last one."""

    cell: int = 0
    run: int = 0
    request: str = ""  # id of the request's message, the parent of all published messages
    ended: dict[str, Any] | None = None  # the ``hvd`` part of its reply, once it has ended


class Control:
    """Cells of this rank. Everything except ``interrupt`` runs on the main thread."""

    # Set by the rank's kernel:
    prompts: RankPrompts
    elastic: ElasticCell
    on_rank: Callable[[int], None]  # called when this rank gets another number
    explain: Callable[[BaseException], str]  # returns text to show with an error of a cell
    announce: Callable[[str, str], None]  # publishes name and text of the error that ends a cell

    latest = Latest()
    loop: asyncio.AbstractEventLoop | None = None  # of the cells, from the first one on

    def __init__(self, rank: int, shell: Any) -> None:
        self.rank = rank
        self._shell = shell
        self.value: Any = None  # of the latest cell's last expression
        self.traceback: list[str] = []  # of the error that ended the cell, as shown in the notebook
        self.shows_error = False  # the main thread formats a traceback
        self.first_begun = self.cell_begun = 0.0  # start of the first and of the latest cell, by the monotonic clock
        self.origins = Origins()
        self._cell: RunCell | None = None  # the latest
        self._run_number = 0
        self._kernel = ""  # the kernel that numbers the cells
        self._interrupted_run = 0  # the latest run that was interrupted
        self._tasks = 0  # of ipyparallel's clients; their run numbers are negative
        self._operations = 0  # of this rank before the current task
        self._signal = RepeatedSignal()  # of the latest interrupt
        self._raised_at = 0.0
        self._cancelled = False  # an interrupt has cancelled the cell's task
        self._left = False  # this rank has left the cell, and its peers are not released yet
        self._release: Callable[[], None] | None = None  # after an error of all ranks
        self._running = False
        self._inside = False  # the main thread runs the user's code, or a task that waits in it
        self._task: asyncio.Task[ExecutionResult] | None = None

    def become(self, rank: int) -> None:
        """Change the number of this rank: the cluster was resized."""
        if rank != self.rank:
            self.rank = rank
            self.on_rank(rank)

    async def run_cell(self, code: str, options: Mapping[str, Any], request: str) -> dict[str, Any]:
        """Run the code; ``options`` is the ``hvd`` part of the request; return the ``hvd`` part of the reply."""
        self._begin(options, request)
        if options["kernel"] != self._kernel:
            self._kernel = options["kernel"]
            self._shell.compile.start_numbering()
        if options["cell"]:
            self._shell.execution_count = options["cell"]
            self._shell.history_manager.align(options["cell"])
        with self._interruptible(), self._shell.cell_error.cell():
            error = await self._run(code)
        return self._finish(None if error is None else self._failure(error))

    def give_up(self, error: BaseException, options: Mapping[str, Any], request: str) -> dict[str, Any]:
        """Finish a cell that this rank could not start, or whose reply it could not build; return as ``run_cell``."""
        ran = self.latest.request == request
        if not ran:
            self._begin(options, request)
        self.on_raise(error)
        problem = "has run the cell, but cannot report how it ended" if ran else "could not run the cell"
        lines = [*"".join(format_exception(error)).splitlines(), f"rank {self.rank} {problem}"]
        return self._finish(self._failure_with(error, lines))

    def _begin(self, options: Mapping[str, Any], request: str) -> None:
        self._run_number = options["run"]
        self.latest, self.cell_begun = Latest(options["cell"], options["run"], request), time.monotonic()
        self.first_begun = self.first_begun or self.cell_begun
        self.value, self._raised_at, self._cancelled, self._left = None, 0.0, False, False
        self._release = None
        self.traceback = []

    def _finish(self, failure: Failure | None) -> dict[str, Any]:
        aborted = self._left or communication.aborted()
        outcome = {"failure": failure and to_content(failure), "aborted": aborted, "holds": self._release is not None}
        self.latest = replace(self.latest, ended=outcome)
        return outcome

    async def run_task(self, code: str, *, silent: bool) -> BaseException | None:
        """Run the code of an ipyparallel client, inside ``task``; return the exception that it raised."""
        with self._shell.cell_error.cell():
            error = await self._run(code, silent=silent)
        if error is None:
            return None
        self.on_raise(error)  # a syntax error does not come through the shell's showtraceback
        return KeyboardInterrupt() if self._seen_as(error) == "KeyboardInterrupt" else error

    @contextmanager
    def task(self) -> Iterator[None]:
        """Mark the block as a task: interrupts of cells do not reach it, and its interrupts reach no cell."""
        self._tasks += 1
        self._run_number = -self._tasks
        self._operations = communication.operations()
        self._raised_at, self._cancelled, self._left, self._release = 0.0, False, False, None
        self._shell._last_traceback = None  # noqa: SLF001 - ipykernel passes it on by this attribute
        value = self.value
        with self._interruptible():
            yield
        self.value = value

    @property
    def run_number(self) -> int:
        """Number of the current or last run; negative for a task."""
        return self._run_number

    @property
    def in_task(self) -> bool:
        """True while ``task`` runs."""
        return self._running and self._run_number < 0

    def interrupt_task(self) -> None:
        """Interrupt the running task, if any. Control thread."""
        if self.in_task:
            self.interrupt(self._run_number)

    @contextmanager
    def users_code(self) -> Iterator[None]:
        """Mark the user's code, statement by statement: an interrupt may raise only there.

        Some of IPython's code swallows a KeyboardInterrupt; one that arrives there is raised in the next statement.
        """
        nested, self._inside = self._inside, True  # nested: a statement that runs a cell itself
        try:
            if not nested and self._is_interrupted:
                raise KeyboardInterrupt
            yield
        finally:
            self._inside = nested

    @property
    def compiler(self) -> Any:
        """The shell's compiler, which names the files of cells."""
        return self._shell.compile

    @property
    def names(self) -> dict[str, Any]:
        """The user's namespace."""
        namespace: dict[str, Any] = self._shell.user_ns
        return namespace

    @property
    def coroutine(self) -> Any:
        """The coroutine of a running cell that awaits, else None."""
        task = self._task
        return None if task is None else task.get_coro()

    def cell_of(self, file: str) -> str | None:
        """Return the cell whose code has this file name: ``cell 4``, ``cell 4 (earlier kernel)``."""
        label = self._shell.compile.format_code_name(file)
        return "cell " + label[1].removeprefix("In[").replace("]", "", 1) if label else None

    @property
    def has_clients(self) -> bool:
        """True if an ipyparallel client has sent a task: more may arrive at any time."""
        return self._tasks > 0

    @property
    def busy(self) -> bool:
        """True while a cell runs."""
        return self._running

    def on_raise(self, error: BaseException) -> None:
        """Record the time and release the peers. The shell calls this before it formats the traceback."""
        if self._raised_at:
            return
        self._raised_at = time.monotonic()
        if self.in_task and communication.operations() == self._operations:
            return  # a task without collectives: no rank waits for it
        name = self._seen_as(error)
        interrupted = name == "KeyboardInterrupt" and self._is_interrupted
        self._left = interrupted or communication.is_of_all(error)
        if interrupted:
            communication.abort(_INTERRUPTED, after_s=_COHERENT_S)
        elif self._left:
            self._release = communication.abort(_reason(name, error), after_s=_UNWATCHED_S)
        else:
            communication.abort(_reason(name, error))
        if torch_connections.is_lost(error):
            torch_connections.close()  # releases the ranks that wait for this one
        if not (self.in_task or name == "KeyboardInterrupt" or communication.is_secondary(error)):
            self.announce(name, message_of(error)[:_REASON_CHARS])

    def is_interrupt(self, error: BaseException) -> bool:
        """Return whether an error is the user's interrupt of the cell, which is shown without traceback."""
        obeys = self._is_interrupted or not isinstance(error, KeyboardInterrupt)
        return obeys and not self.in_task and self._seen_as(error) == "KeyboardInterrupt"

    @contextmanager
    def showing_error(self) -> Iterator[None]:
        """Mark the main thread as formatting a traceback until the block ends."""
        self.shows_error = True
        try:
            yield
        finally:
            self.shows_error = False

    def release(self) -> None:
        """Release peers that continue after an error of all ranks: they caught it, or were not in the operation."""
        if self._release is not None:
            self._release()

    def write_log(self, text: str) -> None:
        """Write to this rank's log, not to the cell's output. Any thread."""
        self._shell.kernel.output.log(text)

    def forget(self) -> None:
        """Release the results of earlier cells and the latest exception. Between cells."""
        self.value = None
        self._shell.displayhook.forget()
        self._shell.kernel.debugging.forget()

    def interrupt(self, run: int) -> None:
        """Interrupt the cell of a run, now or as soon as it starts, but no other cell. Control thread."""
        self._interrupted_run = run
        if self._runs(run):
            self._signal = RepeatedSignal()
            threading.Thread(target=self._insist, args=(self._signal, run), name="hvd-interrupt", daemon=True).start()

    @property
    def _is_interrupted(self) -> bool:
        return self._interrupted_run == self._run_number

    def _runs(self, run: int) -> bool:
        return self._running and run == self._run_number

    def _insist(self, interrupt: RepeatedSignal, run: int) -> None:
        """Signal until the main thread has noticed.

        MXNet and Gloo wait for operations in their own code, which no signal interrupts. If operations are pending
        then, they are aborted, and the main thread notices the signal when the wait returns.
        """
        if interrupt.insist(partial(self._runs, run)):
            return
        if communication.pending():
            communication.abort(_INTERRUPTED)
        if torch_connections.main_thread_waits() or communication.main_thread_wait(self.cell_of).ranks:
            torch_connections.close()

    # Running.

    async def _run(self, code: str, *, silent: bool = False) -> BaseException | None:
        shell = self._shell
        try:
            transformed, broken = shell.transform_cell(code), None
        except Exception:  # noqa: BLE001 - the shell shows it, as any IPython does
            transformed, broken = code, sys.exc_info()
        if self._run_number > 0:
            number = self.latest.cell
            file = self.compiler.get_code_name(code, transformed, number)
            self._cell = self.origins.ran(number, transformed, code, file)
        try:
            if shell.should_run_async(code, transformed_cell=transformed, preprocessing_exc_tuple=broken):
                result = await self._run_async(code, transformed, broken, silent=silent)
            else:
                result = shell.run_cell(code, store_history=not silent, silent=silent)
        except (KeyboardInterrupt, asyncio.CancelledError) as error:  # between the user's code and IPython's
            self.on_raise(error)
            return error
        self.value = result.result
        return result.error_before_exec or result.error_in_exec

    async def _run_async(self, code: str, transformed: str, broken: Any, *, silent: bool) -> ExecutionResult:
        shell = self._shell
        options = {"store_history": not silent, "silent": silent}
        running = shell.run_cell_async(code, transformed_cell=transformed, preprocessing_exc_tuple=broken, **options)
        self._task = asyncio.ensure_future(running)
        result = None
        try:
            result = await self._task
        finally:
            self._task = None
            shell.events.trigger("post_execute")
            shell.events.trigger("post_run_cell", result)
        return result

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        self.loop = loop = asyncio.get_running_loop()

        def on_sigint(_number: int, _frame: FrameType | None) -> None:
            if not self._signal.notice():
                return
            task = self._task
            if self._inside and (task is None or asyncio.current_task(loop) is task):
                raise KeyboardInterrupt
            if self._inside and task is not None:
                self._cancelled = True
                loop.call_soon_threadsafe(task.cancel)

        before = signal.signal(signal.SIGINT, on_sigint)
        self._running = True
        try:
            yield
        finally:
            self._running = False
            signal.signal(signal.SIGINT, before)

    def _seen_as(self, error: BaseException) -> str:
        cancelled = self._cancelled and isinstance(error, asyncio.CancelledError)
        late = communication.is_secondary(error) and _INTERRUPTED in str(error)  # a peer's interrupt was first
        return "KeyboardInterrupt" if cancelled or late else type(error).__name__

    def _failure(self, error: BaseException) -> Failure:
        if self._cell is not None:
            self._cell.failed = True
        self.on_raise(error)  # a syntax error does not come through the shell's showtraceback
        name = self._seen_as(error)
        lines = self.traceback or [f"{name}: {message_of(error)}"]
        if explained := self.explain(error):
            lines = [*lines, explained]
        return self._failure_with(error, lines)

    def _failure_with(self, error: BaseException, lines: Sequence[str]) -> Failure:
        secondary = communication.is_secondary(error)
        return Failure(self.rank, self._seen_as(error), message_of(error), tuple(lines), self._raised_at, secondary)


def _reason(name: str, error: BaseException) -> str:
    """Return the abort reason for the peers, with the error's notes: one tells elastic.run that this rank has left."""
    message = message_of(error)
    text = f"{name}: {message}"[:_REASON_CHARS] if message else name
    return encoded(" ".join([text, *(note[:_NOTE_CHARS] for note in getattr(error, "__notes__", ()))])).decode()
