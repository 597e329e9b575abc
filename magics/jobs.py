"""Cells in the background: a queue of jobs, one at a time on the ranks, served by a thread, and their output.

Terms.
  job      a cell that does not block the notebook; it has a name, a state and, after a failure, an error
  state    queued, running, then done, failed or cancelled
  turn     the thread's right to serve: it holds the lock on the ranks from the first job to the last one, so that no
           other cell runs between two jobs; ``abandon`` revokes it
  panel    the one output that changes after the cell has ended: a line, then the live dashboard, then its last state
  outlet   the real writer; in the job's context its output appears below the cell that started the job
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

from IPython.core.interactiveshell import InteractiveShell

from hvd_kernel.errors import HvdTimeout, UsageError
from hvd_kernel.formatting.rank_labels import rank_list
from hvd_kernel.magics.display.cell_output import figures
from hvd_kernel.magics.display.user_errors import RankError, as_text
from hvd_kernel.magics.display.writer import Handle, Writer
from hvd_kernel.magics.interrupts import InterruptCount, Interrupted

if TYPE_CHECKING:
    from hvd_kernel.widgets import Dashboard


Show = Callable[[Writer], None]


class JobWriter(Writer):
    """Output of a job: live in its panel, and at the end written to its cell, if there is a user."""

    def __init__(self, shell: InteractiveShell) -> None:
        super().__init__(shell)
        self._outlet = Writer(shell)
        self.terminal = False  # text is kept, so that it does not overwrite a terminal's prompt
        self._kept: list[Show] = []
        self._panel: Handle | None = None
        self._board: Dashboard | None = None

    def open(self, job: str, ranks: Sequence[int], state: str) -> None:
        """Announce the job in its cell; called before the cell ends."""
        self._outlet.write(f"job {job} on {rank_list(ranks)}: %hvdjobs, %hvdcancel {job}\n")
        if self.interactive:
            self._panel = self._outlet.updatable({"text/plain": f"job {job}: {state}"})

    def close(self, job: str, state: str, error: BaseException | None) -> None:
        """Keep the error, and write all output to the cell, if there is a user."""
        if error is not None:
            self.write(as_text(error), "stderr")
        if self._panel is None:
            return
        if self._board is None:
            self._panel.update({"text/plain": f"job {job}: {state}"}, raw=True)
        for show in self._kept:
            show(self._outlet)

    def replay(self, writer: Writer) -> None:
        """Write all output again, as the cell would have shown it."""
        if self._board is not None:
            _show(*self._board.static_bundle(), writer)
        for show in self._kept:
            show(writer)

    def write(self, text: str, stream: str = "stdout") -> None:
        """Keep text."""
        if text:
            self._kept.append(lambda writer: writer.write(text, stream))

    def show(self, data: dict[str, Any], metadata: dict[str, Any] | None = None) -> None:
        """Keep a MIME bundle."""
        self._kept.append(partial(_show, data, metadata))

    def live(self, thing: Any) -> Handle | None:
        """Replace the panel by the dashboard."""
        self._board = thing
        if self._panel is not None:
            self._panel.update(thing)
        return self._panel


def _show(data: dict[str, Any], metadata: dict[str, Any] | None, writer: Writer) -> None:
    if writer.terminal and metadata and "hvd" in metadata:
        writer.write(figures(metadata["hvd"]))
    else:
        writer.show(data, metadata)


QUEUED, RUNNING, DONE, FAILED, CANCELLED = "queued", "running", "done", "failed", "cancelled"
KEEP = 50
"""Ended jobs whose output is kept."""

Work = Callable[["BackgroundJob"], None]


@dataclass(eq=False)
class BackgroundJob:
    """One cell in the background."""

    name: str
    ranks: tuple[int, ...]
    writer: JobWriter
    work: Work
    raise_error: bool = True  # False: a waiting cell shows the failure of the ranks and succeeds
    state: str = QUEUED
    error: BaseException | None = None
    awaited: bool = False  # %hvdjobs --wait, or %hvdcancel, has reported its end
    announced: bool = False
    left: Callable[[], list[int]] | None = None  # the ranks that still run, once it runs
    number: int = 0  # of the notebook's cell that started it
    cell: int = 0  # the same, once it runs: its number in the ranks' logs
    steps: Callable[[], int] = int
    interrupts: InterruptCount = field(default_factory=InterruptCount)
    ended: threading.Event = field(default_factory=threading.Event)
    context: Context = field(default_factory=copy_context)  # of the cell: output in it is shown below that cell
    since: float = field(default_factory=time.monotonic)

    def begin(self) -> None:
        """Record that it runs."""
        self.state, self.since = RUNNING, time.monotonic()

    def follow(self, left: Callable[[], list[int]], steps: Callable[[], int]) -> None:
        """Set the functions that return the ranks that still run, and the optimizer steps taken."""
        self.left, self.steps = left, steps

    def state_text(self, *, times: bool) -> str:
        """Return the state for users; ``times``: with the run time, which differs from run to run."""
        if self.state == FAILED:
            return f"failed: {_cause(self.error)}"
        return f"running {self._age()}" if times and self.state == RUNNING else self.state

    def sentence(self) -> str:
        """Return why the ranks are not free, with the remedy."""
        so_far = f" ({self._age()} so far)" if self.writer.has_user else ""
        remedy = f"wait with %hvdjobs --wait {self.name}, or %hvdcancel {self.name}"
        return f"the ranks are busy with job {self.name}{so_far}: {remedy}"

    def wait(self, timeout: float | None = None) -> None:
        """Wait for its end and raise the error of its cell, if any. An interrupt stops the wait, not the job.

        Raises
        ------
        HvdTimeout
            It still runs after ``timeout`` seconds.
        """
        self.wait_end(timeout)
        if self.error is not None:
            raise self.error.with_traceback(None)

    def wait_end(self, timeout: float | None, left: float | None = None) -> None:
        """Wait for its end, without raising its error; ``left``: the rest of the ``timeout`` named in the message."""
        if not self.ended.wait(timeout if left is None else left):
            raise HvdTimeout(
                f"job {self.name} has not ended within {timeout:g} s and goes on: {_REMEDY} {self.name} ends it"
            )
        self.awaited = True

    def _age(self) -> str:
        return f"{time.monotonic() - self.since:.0f} s"


class Jobs:
    """The queue of jobs, and the latest ended ones."""

    def __init__(self, ranks: threading.Lock) -> None:
        self._ranks = ranks
        self._lock = threading.RLock()
        self._jobs: dict[str, BackgroundJob] = {}
        self._turn: object | None = None
        self._count = 0

    def __iter__(self) -> Iterator[BackgroundJob]:
        """Iterate over all kept jobs, oldest first."""
        with self._lock:
            return iter(list(self._jobs.values()))

    def find(self, name: str) -> BackgroundJob:
        """Return a job.

        Raises
        ------
        UsageError
            No job has that name.
        """
        job = self._jobs.get(name)
        if job is None:
            names = ", ".join(self._jobs) or "none"
            raise UsageError(f"there is no job {name!r}; there is {names}")
        return job

    def name(self, requested: str) -> str:
        """Return the name of a new job; the name of an ended job may be used again.

        Raises
        ------
        UsageError
            A job of that name has not ended.
        """
        with self._lock:
            name = requested
            if not name:
                name = next(name for name in (f"job{i}" for i in count(self._count + 1)) if name not in self._jobs)
                self._count = int(name.removeprefix("job"))
            other = self._jobs.get(name)
        if other is not None and not other.ended.is_set():
            raise UsageError(f"there is a job {name} already, {other.state}: take another name, or {_REMEDY} {name}")
        return name

    def at_work(self) -> BackgroundJob | None:
        """Return the job that runs on the ranks, or the next one; None if no job needs them."""
        alive = [job for job in self if not job.ended.is_set()]
        return next((job for job in alive if job.state == RUNNING), alive[0] if alive else None)

    def join(self, job: BackgroundJob) -> bool:
        """Append a job to the queue; return False if the queue does not hold the ranks."""
        with self._lock:
            if self._turn is None:
                return False
            self._admit(job)
            return True

    def begin(self, job: BackgroundJob) -> None:
        """Start serving with this job; the caller has locked the ranks and passes the lock on."""
        with self._lock:
            job.begin()
            self._admit(job)
            self._turn = turn = object()
        threading.Thread(target=self._serve, args=(turn, job), name="hvd-jobs", daemon=True).start()

    def cancel(self, job: BackgroundJob) -> None:
        """Cancel a queued job at once, interrupt a running one as the interrupt key does."""
        with self._lock:
            job.awaited = True
            if job.state == QUEUED:
                self._end(job, Interrupted(f"job {job.name} was cancelled before its turn came"))
            else:
                job.interrupts.count += 1

    def clear(self, seconds: float) -> bool:
        """Cancel every job; return whether all have ended within the time."""
        alive = [job for job in self if not job.ended.is_set()]
        for job in reversed(alive):  # the running one last, so that no queued job starts
            self.cancel(job)
        deadline = time.monotonic() + seconds
        return all(job.ended.wait(max(0.0, deadline - time.monotonic())) for job in alive)

    def abandon(self) -> None:
        """End every job, also one whose ranks do not respond, and release the ranks."""
        with self._lock:
            for job in self:
                if not job.ended.is_set():
                    self._end(job, Interrupted(f"job {job.name} ended with the ranks"))
            if self._turn is not None:
                self._turn = None
                self._ranks.release()

    def _admit(self, job: BackgroundJob) -> None:
        self._jobs.pop(job.name, None)
        self._jobs[job.name] = job
        job.writer.open(job.name, job.ranks, job.state_text(times=False))
        ended = [name for name, other in self._jobs.items() if other.ended.is_set()]
        for name in ended[: max(0, len(ended) - KEEP)]:
            del self._jobs[name]

    def _end(self, job: BackgroundJob, error: BaseException | None) -> None:
        job.error = error
        job.state = DONE if error is None else CANCELLED if isinstance(error, KeyboardInterrupt) else FAILED
        try:
            job.context.copy().run(
                job.writer.close, job.name, job.state_text(times=False), job.error
            )  # a copy: its own may be in use in the thread
        except Exception as unshown:  # noqa: BLE001 - the job has ended nevertheless, and the next one waits
            job.error, job.state = error or unshown, job.state if error else FAILED
        job.ended.set()

    # In the thread that serves the queue.

    def _serve(self, turn: object, first: BackgroundJob) -> None:
        job: BackgroundJob | None = first
        while job is not None:
            error = job.context.run(_outcome, job)
            job = self._follow(turn, job, error)

    def _follow(self, turn: object, job: BackgroundJob, error: BaseException | None) -> BackgroundJob | None:
        """Record a job's end and return the next one; the ranks are free before the last job's end is announced."""
        with self._lock:
            if self._turn is not turn:  # abandoned
                return None
            following = next((other for other in self if other.state == QUEUED), None)
            if following is None:
                self._turn = None
                self._ranks.release()
            else:
                following.begin()
            self._end(job, error)
            return following


def _outcome(job: BackgroundJob) -> BaseException | None:
    try:
        job.work(job)
    except BaseException as error:  # noqa: BLE001 - any error is the outcome of the job
        return error
    return None


_REMEDY = "%hvdcancel"


def _cause(error: BaseException | None) -> str:
    name = type(error).__name__
    if not isinstance(error, RankError):
        return name
    first = error.failures[0]
    alike = (f.rank for f in error.failures if (f.ename, f.secondary) == (first.ename, first.secondary))
    return f"{name} on {rank_list(alike)}"
