"""Running one cell on this rank.

A cell that raises aborts this rank's communication *before* its traceback is formatted, so that the peers that wait for
this rank are released within milliseconds. In two cases a peer shall raise its own error rather than hear of this one.
After an interrupt, peers have a moment, because they are being interrupted too. After an error that all ranks of an
operation get (Mismatch), they are released when the notebook sees that they wait for this rank.
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
from hvd_kernel.protocol.messages import Failure, to_wire
from hvd_kernel.worker import communication
from hvd_kernel.worker.elastic_cell import ElasticCell
from hvd_kernel.worker.inspect.origins import Origins, RunCell
from hvd_kernel.worker.output.capture import encoded
from hvd_kernel.worker.shell.prompt import RankPrompts
from hvd_kernel.worker.shell.repeated_signal import RepeatedSignal

_REASON_CHARS = 300
_NOTE_CHARS = 100
_COHERENT_S = 1.0  # how long peers have for their own KeyboardInterrupt before this rank's aborts them
_UNWATCHED_S = 10.0  # how long, after an error of all, where no notebook sees them wait
_INTERRUPTED = "KeyboardInterrupt: the cell was interrupted"


@dataclass(frozen=True)
class Latest:
    """The cell that runs on this rank, or ran last."""

    cell: int = 0
    run: int = 0
    request: str = ""  # id of the message that asked for it: what is published of it names that
    ended: dict[str, Any] | None = None  # the ``hvd`` part of its reply, once it has ended


class Control:
    """Cells of this rank. Everything runs on the main thread but ``interrupt``."""

    prompts: RankPrompts  # of the cells' code, set by the rank's kernel
    elastic: ElasticCell  # the same
    on_rank: Callable[[int], None]  # told when this rank gets another number, set by the rank's kernel
    explain: Callable[[BaseException], str]  # what is to be said beside an error of a cell, the same
    announce: Callable[[str, str], None]  # publishes name and text of the error that ends a cell, the same
    latest = Latest()
    loop: asyncio.AbstractEventLoop | None = None  # of the cells, from the first one on

    def __init__(self, rank: int, shell: Any) -> None:
        self.rank = rank
        self._shell = shell
        self.value: Any = None  # of the latest cell's last expression
        self.traceback: list[str] = []  # of the error that ended it, as the notebook shows it
        self.shows_error = False  # the main thread formats a traceback
        self.came = self.cell_begun = 0.0  # the first and the latest, by this host's monotonic clock
        self.origins = Origins()
        self._cell: RunCell | None = None  # the latest
        self._run_number = 0
        self._kernel = ""  # which counts the cells
        self._unwanted_run = 0  # the latest that an interrupt has named
        self._tasks = 0  # of ipyparallel's clients; their numbers as runs are negative
        self._operations = 0  # of this rank's before the task that runs
        self._signal = RepeatedSignal()  # of the latest interrupt
        self._raised_at = 0.0
        self._interrupted = False
        self._left = False  # this rank has left the cell, and its peers are not released yet
        self._release: Callable[[], None] | None = None  # after an error of all
        self._running = False
        self._inside = False  # the main thread is in the user's code, or in a task that waits there
        self._task: asyncio.Task[ExecutionResult] | None = None

    def become(self, rank: int) -> None:
        """Be this rank from here on: the cluster has another size."""
        if rank != self.rank:
            self.rank = rank
            self.on_rank(rank)

    async def run_cell(self, code: str, asked: Mapping[str, Any], request: str) -> dict[str, Any]:
        """Run the code; ``asked`` is the ``hvd`` part of the request; return that of the reply."""
        self._begin(asked, request)
        if asked["kernel"] != self._kernel:
            self._kernel = asked["kernel"]
            self._shell.compile.count_anew()
        if asked["cell"]:
            self._shell.execution_count = asked["cell"]
            self._shell.history_manager.align(asked["cell"])
        with self._interruptible(), self._shell.cell_error.cell():
            error = await self._run(code)
        return self._ended(None if error is None else self._failure(error))

    def give_up(self, error: BaseException, asked: Mapping[str, Any], request: str) -> dict[str, Any]:
        """End a cell that this rank could not begin, or whose answer it could not make; return as ``run_cell``."""
        ran = self.latest.request == request
        if not ran:
            self._begin(asked, request)
        self.on_raise(error)
        what = "has run the cell, but cannot say how it ended" if ran else "could not run the cell"
        lines = [*"".join(format_exception(error)).splitlines(), f"rank {self.rank} {what}"]
        return self._ended(self._told(error, lines))

    def _begin(self, asked: Mapping[str, Any], request: str) -> None:
        self._run_number = asked["run"]
        self.latest, self.cell_begun = Latest(asked["cell"], asked["run"], request), time.monotonic()
        self.came = self.came or self.cell_begun
        self.value, self._raised_at, self._interrupted, self._left = None, 0.0, False, False
        self._release = None
        self.traceback = []

    def _ended(self, failure: Failure | None) -> dict[str, Any]:
        aborted = self._left or communication.aborted()
        ended = {"failure": failure and to_wire(failure), "aborted": aborted, "holds": self._release is not None}
        self.latest = replace(self.latest, ended=ended)
        return ended

    async def run_task(self, code: str, *, silent: bool) -> BaseException | None:
        """Run the code of a client of ipyparallel's, inside ``task``; return what it raised."""
        with self._shell.cell_error.cell():
            error = await self._run(code, silent=silent)
        if error is None:
            return None
        self.on_raise(error)  # a syntax error does not come through the shell's showtraceback
        return KeyboardInterrupt() if self._seen_as(error) == "KeyboardInterrupt" else error

    @contextmanager
    def task(self) -> Iterator[None]:
        """Run, until the block ends, what is no cell: an interrupt of a cell does not reach it, nor the other way."""
        self._tasks += 1
        self._run_number = -self._tasks
        self._operations = communication.operations()
        self._raised_at, self._interrupted, self._left, self._release = 0.0, False, False, None
        self._shell._last_traceback = None  # noqa: SLF001 - ipykernel's own way to hand it on
        value = self.value
        with self._interruptible():
            yield
        self.value = value

    @property
    def run_number(self) -> int:
        """The number of the run that is under way, or was most recently; negative: a task."""
        return self._run_number

    @property
    def in_task(self) -> bool:
        """True while ``task`` runs."""
        return self._running and self._run_number < 0

    def interrupt_task(self) -> None:
        """Interrupt the task that runs, if one does. Control thread."""
        if self.in_task:
            self.interrupt(self._run_number)

    @contextmanager
    def users_code(self) -> Iterator[None]:
        """Mark the user's own code, statement by statement: only there may an interrupt raise.

        IPython swallows a KeyboardInterrupt in some of its own places; one that comes there waits for the user's next.
        """
        nested, self._inside = self._inside, True  # nested: a statement that runs a cell itself
        try:
            if not nested and self._unwanted:
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
        found: dict[str, Any] = self._shell.user_ns
        return found

    @property
    def coroutine(self) -> Any:
        """The running cell as a coroutine, where it awaits; else None."""
        task = self._task
        return None if task is None else task.get_coro()

    def cell_of(self, file: str) -> str | None:
        """Return the cell whose code goes by this file name: ``cell 4``, ``cell 4 (earlier kernel)``."""
        found = self._shell.compile.format_code_name(file)
        return "cell " + found[1].removeprefix("In[").replace("]", "", 1) if found else None

    @property
    def has_clients(self) -> bool:
        """True if a client of ipyparallel's has sent a task: more may arrive at any time."""
        return self._tasks > 0

    @property
    def busy(self) -> bool:
        """True while a cell runs."""
        return self._running

    def on_raise(self, error: BaseException) -> None:
        """Note the time and release the peers. Called by the shell before it formats the traceback."""
        if self._raised_at:
            return
        self._raised_at = time.monotonic()
        if self.in_task and communication.operations() == self._operations:
            return  # a task that nobody waits for
        name = self._seen_as(error)
        interrupted = name == "KeyboardInterrupt" and self._unwanted
        self._left = interrupted or communication.is_of_all(error)
        if interrupted:
            communication.abort(_INTERRUPTED, after_s=_COHERENT_S)
        elif self._left:
            self._release = communication.abort(_reason(name, error), after_s=_UNWATCHED_S)
        else:
            communication.abort(_reason(name, error))
        if not (self.in_task or name == "KeyboardInterrupt" or communication.is_secondary(error)):
            self.announce(name, message_of(error)[:_REASON_CHARS])

    def is_interrupt(self, error: BaseException) -> bool:
        """Return whether an error is the user's interrupt of the cell, of which no traceback is shown."""
        obeys = self._unwanted or not isinstance(error, KeyboardInterrupt)
        return obeys and not self.in_task and self._seen_as(error) == "KeyboardInterrupt"

    @contextmanager
    def showing_error(self) -> Iterator[None]:
        """Mark that the main thread formats a traceback until the block ends."""
        self.shows_error = True
        try:
            yield
        finally:
            self.shows_error = False

    def release(self) -> None:
        """Release the peers that an error of all has not ended: they caught it, or were not in the operation."""
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
        """Interrupt that run's cell: while it runs, or as soon as it begins, but no other. Control thread."""
        self._unwanted_run = run
        if self._runs(run):
            self._signal = RepeatedSignal()
            threading.Thread(target=self._insist, args=(self._signal, run), name="hvd-interrupt", daemon=True).start()

    @property
    def _unwanted(self) -> bool:
        return self._unwanted_run == self._run_number

    def _runs(self, run: int) -> bool:
        return self._running and run == self._run_number

    def _insist(self, interrupt: RepeatedSignal, run: int) -> None:
        """Signal until the main thread has noticed.

        MXNet waits for operations in code of its own that no signal ends: where some are under way then, the ranks are
        released from them, and the main thread notices when the wait returns.
        """
        if not interrupt.insist(partial(self._runs, run)) and communication.pending():
            communication.abort(_INTERRUPTED)

    # Running.

    async def _run(self, code: str, *, silent: bool = False) -> BaseException | None:
        shell = self._shell
        try:
            transformed, broken = shell.transform_cell(code), None
        except Exception:  # noqa: BLE001 - the shell shows it, as in any IPython
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
        except (KeyboardInterrupt, asyncio.CancelledError) as error:  # between the user's code and IPython's own
            self.on_raise(error)
            return error
        self.value = result.result
        return result.error_before_exec or result.error_in_exec

    async def _run_async(self, code: str, transformed: str, broken: Any, *, silent: bool) -> ExecutionResult:
        shell = self._shell
        how = {"store_history": not silent, "silent": silent}
        running = shell.run_cell_async(code, transformed_cell=transformed, preprocessing_exc_tuple=broken, **how)
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
                self._interrupted = True
                loop.call_soon_threadsafe(task.cancel)

        before = signal.signal(signal.SIGINT, on_sigint)
        self._running = True
        try:
            yield
        finally:
            self._running = False
            signal.signal(signal.SIGINT, before)

    def _seen_as(self, error: BaseException) -> str:
        cancelled = self._interrupted and isinstance(error, asyncio.CancelledError)
        late = communication.is_secondary(error) and _INTERRUPTED in str(error)  # a peer's interrupt came before ours
        return "KeyboardInterrupt" if cancelled or late else type(error).__name__

    def _failure(self, error: BaseException) -> Failure:
        if self._cell is not None:
            self._cell.failed = True
        self.on_raise(error)  # a syntax error does not come through the shell's showtraceback
        name = self._seen_as(error)
        lines = self.traceback or [f"{name}: {message_of(error)}"]
        if explained := self.explain(error):
            lines = [*lines, explained]
        return self._told(error, lines)

    def _told(self, error: BaseException, lines: Sequence[str]) -> Failure:
        secondary = communication.is_secondary(error)
        return Failure(self.rank, self._seen_as(error), message_of(error), tuple(lines), self._raised_at, secondary)


def _reason(name: str, error: BaseException) -> str:
    """Say what the peers hear, with the error's notes: by one of them elastic.run knows that this rank has left it."""
    says = message_of(error)
    text = f"{name}: {says}"[:_REASON_CHARS] if says else name
    return encoded(" ".join([text, *(note[:_NOTE_CHARS] for note in getattr(error, "__notes__", ()))])).decode()
