"""Works: started operations as torch knows them, and the thread that completes their futures.

``wait`` waits in the core on the caller's thread. A future is completed by the group's waiter thread, so that DDP's
backward continues meanwhile. Whichever thread waits first waits in the core; others wait for it.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed import Work

from hvd_kernel.core import call_stack, group_engines, main_thread
from hvd_kernel.errors import HvdTimeout

if TYPE_CHECKING:
    from hvd_kernel._native import Engine

LATE = "The operation is not complete after {seconds:g} s. Ranks that have not called it are late or have failed."

Finish = Callable[[Any], None]

_KEEPS_WORKS = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 7)
_C10D: Any = torch._C._distributed_c10d  # noqa: SLF001 - torch has no public name for it


def seconds_of(timeout: timedelta | None) -> float | None:
    """Return a timeout in seconds; None for torch's values for "not set", which are not positive."""
    seconds = timeout.total_seconds() if timeout is not None else 0.0
    return seconds if seconds > 0 else None


class WaiterThread:
    """Thread that completes works in the order of their futures; it starts with the first one."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._works: queue.SimpleQueue[HvdWork | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def is_current(self) -> bool:
        """Return whether the caller runs on this thread."""
        return threading.current_thread() is self._thread

    def add(self, work: HvdWork) -> None:
        """Complete a work after those added before."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
            self._works.put(work)

    def stop(self) -> None:
        """Make the thread exit after the works that it has."""
        with self._lock:
            if self._thread is not None:
                self._works.put(None)
                self._thread = None

    def _run(self) -> None:
        while (work := self._works.get()) is not None:
            work.complete_beside_main_thread()
            del work  # its tensors


class HvdWork(Work):
    """An operation of the core.

    Parameters
    ----------
    result
        Value of ``result()`` and of the future.
    finish
        Copies the core's outcome to the outputs; it keeps the buffers alive that the core uses.
    timeout
        Seconds for which ``wait`` without a timeout waits; None: without limit.
    waiter
        Thread that completes the future.

    Examples
    --------
    >>> work = dist.all_reduce(torch.ones(2), async_op=True)
    >>> work.wait()
    True
    >>> work.is_success(), work.exception()
    (True, None)
    """

    def __init__(self, result: Any, finish: Finish, timeout: float | None, waiter: WaiterThread) -> None:
        super().__init__()
        self._result, self._timeout, self._waiter = result, timeout, waiter
        self._finish: Finish | None = finish
        self._engine: Engine | None = None
        self._release: Callable[[], Any] | None = None
        self._handle = -1
        self.source = -1
        self._waited_until = self._main_ran = 0  # nanoseconds: at the end of a wait on the waiter thread
        self._error: BaseException | None = None
        self._done = False
        self._waiting = threading.Lock()  # held by the thread that waits in the core
        self._futures = threading.Lock()
        self._base: torch.futures.Future[None] | None = None
        self._future: torch.futures.Future[Any] | None = None
        self._resolved = False

    def begin(self, engine: Engine, handle: int, release: Callable[[], Any]) -> None:
        """Record the handle of the enqueued operation; ``release`` is called when the core has left the buffers."""
        self._engine, self._handle, self._release = engine, handle, release

    @property
    def is_done(self) -> bool:
        """True once the outcome is known; does not query the core."""
        return self._done

    def complete(self, timeout: float | None = None) -> None:
        """Wait for the operation and copy its outcome to the outputs; errors are kept for ``wait``.

        Raises
        ------
        HvdTimeout
            The timeout has passed; the operation goes on, and can be waited for again.
        """
        if not self._done:
            limit = -1.0 if timeout is None else timeout
            if not self._waiting.acquire(timeout=limit):
                raise HvdTimeout(LATE.format(seconds=limit))
            try:
                if not self._done:
                    self._wait_in_core(limit)
            finally:
                self._waiting.release()
        self._resolve()

    def _wait_in_core(self, limit: float) -> None:
        assert self._engine is not None
        assert self._finish is not None
        try:
            outcome = self._engine.wait(self._handle, limit)
            if self._waiter.is_current():
                self._waited_until, self._main_ran = time.monotonic_ns(), main_thread.processor_ns()
            self._finish(outcome)
        except BaseException as error:
            if self._in_flight(self._engine):
                raise  # a timeout or an interrupt ended the wait, not the operation
            self._error = error
        if self._release is not None:
            self._release()
        self._finish = self._release = self._engine = None  # the buffers
        self._done = True

    def _in_flight(self, engine: Engine) -> bool:
        try:
            engine.poll(self._handle)
        except ValueError:
            return False
        return True

    def complete_or_give_up(self) -> None:
        """Complete, and after the timeout fail the future, and keep the buffers of the operation."""
        try:
            self.complete(self._timeout)
        except HvdTimeout as error:
            self._error = error
            self._resolve()

    def complete_beside_main_thread(self) -> None:
        """Do as ``complete_or_give_up`` on the waiter thread, whose waits count as far as the main thread is idle."""
        begun, ran, queued = time.monotonic_ns(), main_thread.processor_ns(), main_thread.scheduled_ns()[1]
        self.complete_or_give_up()
        if self._waited_until:  # else another thread has waited
            computed = self._main_ran - ran + main_thread.scheduled_ns()[1] - queued
            group_engines.hide(min(computed, self._waited_until - begun))

    def _resolve(self) -> None:
        with self._futures:
            base = None if self._resolved else self._base
            self._resolved = self._resolved or base is not None
        if base is not None:
            base.set_result(None)  # runs the user's callbacks, which may use this work

    def _value(self, _base: Any) -> Any:
        if self._error is not None:
            raise self._error
        return self._result

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until the outputs are written.

        Raises
        ------
        HvdTimeout
            The timeout, else the group's, has passed; the operation goes on.
        HorovodInternalError
            The ranks disagree (Mismatch), or a rank has failed or died (RankFailed, RankDied).
        """
        self.complete(seconds_of(timeout) or self._timeout)
        if self._error is not None:
            raise self._error
        return True

    def get_future(self) -> torch.futures.Future[Any]:
        """Return a future of the result, completed by the waiter thread. Does not block."""
        with self._futures:
            is_new = self._future is None
            if self._future is None:
                self._base = torch.futures.Future()
                self._future = self._base.then(self._value)
        if is_new:
            if self._done or self._waiter.is_current():  # a callback on the waiter thread may wait for the future
                self.complete_or_give_up()
            else:
                self._waiter.add(self)
        return self._future

    def is_completed(self) -> bool:
        """Return whether ``wait`` would return at once. Does not block."""
        engine = self._engine
        if not self._done and engine is not None and self._polled(engine):
            self.complete()
        return self._done

    def _polled(self, engine: Engine) -> bool:
        try:
            return engine.poll(self._handle)
        except ValueError:  # another thread has waited for it
            return self._done

    def is_success(self) -> bool:
        """Return whether the operation has completed without an error."""
        return self._done and self._error is None

    def exception(self) -> BaseException | None:
        """Return the operation's error, if it has failed."""
        return self._error

    def result(self) -> Any:
        """Return the output tensors."""
        return self._result

    def synchronize(self) -> None:
        """Wait as ``wait`` does: tensors on the CPU have no stream."""
        self.wait()

    def block_current_stream(self) -> None:
        """Wait as ``wait`` does: tensors on the CPU have no stream."""
        self.wait()

    def source_rank(self) -> int:
        """Return the sender, in the group, of a completed receive from any source; else -1."""
        return self.source

    _source_rank = source_rank


def for_cpp(work: HvdWork) -> Work:
    """Return a work for which code in C++ can wait.

    Before torch 2.7 C++ does not keep a work of Python alive, and would wait for ever: there the work is one of C++
    that waits for the future, whose errors are RuntimeError with our text.
    """
    return work if _KEEPS_WORKS else _C10D._create_work_from_future(work.get_future())  # noqa: SLF001 - torch's example uses it


class CombinedWork(Work):
    """Works that a coalescing manager has started together."""

    def __init__(self, works: Sequence[HvdWork]) -> None:
        super().__init__()
        self._works = list(works)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for all works; raise the first error."""
        for work in self._works:
            work.wait(timeout)
        return True

    def get_future(self) -> torch.futures.Future[Any]:
        """Return a future of the works' results."""
        futures: Any = [work.get_future() for work in self._works]
        return torch.futures.collect_all(futures).then(lambda done: [future.value() for future in done.value()])

    def is_completed(self) -> bool:
        """Return whether all works are complete."""
        return all(work.is_completed() for work in self._works)

    def is_success(self) -> bool:
        """Return whether all works have completed without an error."""
        return all(work.is_success() for work in self._works)

    def exception(self) -> BaseException | None:
        """Return the first error."""
        return next((error for work in self._works if (error := work.exception()) is not None), None)

    def result(self) -> Any:
        """Return the output tensors of each work."""
        return [work.result() for work in self._works]


COMPLETE = CombinedWork(())
"""Work of an operation that was complete before its method returned."""

call_stack.register_core_caller(__name__)
