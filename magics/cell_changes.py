"""Changes of the ranks within a cell in ``elastic.run``: dead ranks are replaced, and the user resizes the cell."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from hvd_kernel import tracking
from hvd_kernel.errors import ClusterError, UsageError
from hvd_kernel.formatting.rank_labels import rank_list
from hvd_kernel.magics import cluster_size, messages
from hvd_kernel.magics.display.cell_output import steps_lost

if TYPE_CHECKING:
    from hvd_kernel.cluster import CellExecution, Session
    from hvd_kernel.cluster.ranks.changes import ResizeOutcome, Respawned
    from hvd_kernel.magics.display.cell_output import CellOutput
    from hvd_kernel.protocol.messages import MetricsSample


@dataclass(frozen=True)
class ResizeRequest:
    """A request for another number of ranks; ``outcome`` resolves to the sentence for its caller, or to the error."""

    n: int
    restore: tuple[str, ...] = ()
    force: bool = False
    outcome: Future[str] = field(default_factory=Future)


class CellChanges:
    """Changes of the ranks within one cell. The thread that reads the events of its execution calls ``tick`` often."""

    def __init__(self, session: Session, execution: CellExecution, output: CellOutput) -> None:
        self._session, self._execution, self._output = session, execution, output
        self._work: Future[Any] | None = None
        self._lost = 0  # steps
        self._lock = threading.Lock()  # of the request and of _over
        self._request: ResizeRequest | None = None  # until it is resolved
        self._started = False  # a thread carries the request out
        self._over = False

    def resize(self, n: int, restore: Sequence[str] = (), *, force: bool = False) -> Future[str]:
        """Resize to n ranks at the cell's next commit, or when it has ended; return the future outcome as a sentence.

        Any thread may call it.

        Raises
        ------
        UsageError
            Another resize is pending, or the cell has ended; or as ``cluster_size.check_room``.
        """
        spec, running = self._session.spec, self._session.n - len(self._session.dead)
        cluster_size.check_room(replace(spec, n=n), running, force=force)
        with self._lock:
            if self._over:
                raise UsageError("the cell has ended: `%hvd resize N` changes the number of ranks now")
            if self._request is not None:
                raise UsageError(f"the ranks are being resized to {self._request.n} already: wait for the next commit")
            self._request, self._started = ResizeRequest(n, tuple(restore), force), False
            request = self._request
        self._output.show_size(self._session.n, n, "at the next commit")
        return request.outcome

    def tick(self) -> None:
        """Start a resize, or a replacement once all living ranks of the cell wait; finish one that is done."""
        if self._work is not None:
            if self._work.done():
                self._finish(self._work)
            return
        execution = self._execution
        living = execution.busy - set(self._session.dead)
        if self._request is not None and not self._started:
            self._started = True
            self._start(self._resize)
        elif execution.replaces and not self._started and living and living <= execution.waiting.keys():
            self._start(self._replace)
        elif execution.lost and not execution.busy:
            self._session.executor.wire.soon(execution.give_up)

    def finalize(self, samples: dict[int, MetricsSample], report: Callable[[str], None]) -> None:
        """Carry out, now that the cell has ended, a resize for which no commit came."""
        if self._work is not None and self._execution.finished:
            self._work.exception()
            self._finish(self._work)
        with self._lock:
            self._over, request, self._request = True, self._request, None
        for rank in [rank for rank in samples if rank >= self._session.n]:
            del samples[rank]
        if request is None:
            return
        sentences: list[str] = []
        try:
            self._check_ended()
            restore, force = request.restore, request.force
            cluster_size.resize(
                self._session, samples, request.n, sentences.append, lambda _: None, restore=restore, force=force
            )
            request.outcome.set_result("\n".join(sentences))
        except (ClusterError, UsageError) as error:
            sentences.append(str(error))
            request.outcome.set_exception(error)
        finally:
            self._refuse(request)
        report("\n".join(sentences))

    def close(self) -> None:
        """Refuse a pending resize, so that no caller waits for it, whatever has ended the cell."""
        with self._lock:
            self._over, request, self._request = True, self._request, None
        if request is not None:
            self._refuse(request)

    def _refuse(self, request: ResizeRequest) -> None:
        if not request.outcome.done():
            request.outcome.set_exception(
                UsageError("the cell has ended before the ranks were resized: `%hvd resize` again")
            )

    def _check_ended(self) -> None:
        if not self._execution.finished:
            raise ClusterError("the ranks were not resized: not all have ended the cell")

    def mark_earlier(self) -> None:
        """Mark, at the start of this cell, the ranks that joined or left since the last one."""
        for change in self._session.pop_changes():
            self._mark(change.left, change.joined, change.generation)

    def _mark(self, left: Sequence[int], joined: Sequence[int], generation: int) -> None:
        if left:
            self._output.mark("left", f"{rank_list(left)} left, generation {generation}")
        if joined:
            self._output.mark("joined", f"{rank_list(joined)} joined, generation {generation}")

    def _start(self, act: Callable[[], Any]) -> None:
        self._work = work = Future[Any]()

        def do() -> None:
            try:
                work.set_result(act())
            except BaseException as error:  # noqa: BLE001 - _finish handles it, in the thread that calls tick()
                work.set_exception(error)

        threading.Thread(target=do, name="hvd-rejoin", daemon=True).start()

    def _replace(self) -> Respawned:
        self._lost = max(waits.lost for waits in self._execution.waiting.values())
        return self._session.rejoin(self._execution, self._track)

    def _resize(self) -> ResizeOutcome | None:
        request = self._request
        assert request is not None

        def show(text: str) -> None:
            self._output.show_size(self._session.n, request.n, text)

        return self._session.resize_in_cell(
            self._execution, request.n, restore=request.restore, prepare=self._prepare, progress=show
        )

    def _prepare(self, new: Respawned) -> None:
        self._lost = max((waits.lost for waits in self._execution.waiting.values()), default=0)
        self._track(new)

    def _track(self, new: Respawned) -> None:
        """Configure new ranks to track the same values as the others."""
        tracking.copy_run(self._query, self._session.n, new.ranks)

    def _query(self, handler: str, ranks: Sequence[int] | None, content: dict[str, Any]) -> Any:
        """Query ranks; those that wait in the cell answer from their control thread."""
        return self._session.ask(handler, ranks, content, urgent=bool(self._execution.busy & set(ranks or ())))

    def _finish(self, work: Future[Any]) -> None:
        self._work = None
        request = self._request if self._started else None
        error = work.exception()
        if error is not None:
            if not isinstance(error, ClusterError):
                raise error
            self._output.notify(f"{error}\n")
            if request is not None:
                self._clear_request(str(error).splitlines()[0])
                request.outcome.set_exception(error)
        elif request is None:
            self._show_change(work.result(), (), messages.new_ranks_variables(work.result()))
        elif (outcome := work.result()) is not None:  # None: the cell has ended, and finalize() resizes
            text = messages.resize_outcome(outcome)
            self._show_change(outcome.respawned, outcome.left, text)
            self._clear_request()
            request.outcome.set_result(text.rstrip())

    def _clear_request(self, note: str = "") -> None:
        with self._lock:
            self._request, self._started = None, False
        self._output.show_size(self._session.n, None, note)

    def _show_change(self, new: Respawned, left: Sequence[int], text: str) -> None:
        self._mark(left, new.ranks, self._session.ranks.generation)
        if new.ranks or left:
            self._output.notify(text)
        if self._lost:
            self._output.mark("lost", steps_lost(self._lost))
        self._lost = 0
