"""A fake elastic driver for real ranks: channels of a real agent, in a thread; a test sets its answers.

Terms.
  worker  a process, by its number, as of protocol/elastic.py
  slots   of the workers, by which their local ranks go; without any, these are their ranks
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Collection, Mapping, Sequence
from typing import Self

from hvdtest.launch import free_port

from hvd_kernel.processes.event_loop import EventLoop
from hvd_kernel.processes.rank_channel import RankChannels
from hvd_kernel.protocol import elastic
from hvd_kernel.protocol.elastic import FromWorker, Place, Ready, Removed, ToWorker

PATIENCE_S = 180.0  # importing torch took more than a minute at a load of 34


class FakeDriver:
    """Receives messages of the workers and sends those of the test."""

    def __init__(self, slots: Mapping[int, int] | None = None) -> None:
        self._slots = slots or {}
        self.ready: dict[int, Ready] = {}
        """Those that wait for their place."""
        self._said: queue.SimpleQueue[tuple[int, FromWorker]] = queue.SimpleQueue()
        self._loop = EventLoop()
        self._channels = RankChannels(self._loop, lambda *_: None, self._hear)
        self._thread = threading.Thread(target=self._loop.run, name="fake-driver", daemon=True)
        self._thread.start()

    def variables(self, worker: int) -> dict[str, str]:
        """Environment of a worker's process."""
        return {**self._channels.variable(worker), elastic.VARIABLE: "1"}

    def tell(self, worker: int, message: ToWorker) -> None:
        self._loop.call_soon_threadsafe(lambda: self._channels.forward(worker, elastic.encode(message)))

    def heard(self) -> tuple[int, FromWorker]:
        """Return the next message of any worker."""
        return self._said.get(timeout=PATIENCE_S)

    def until_ready(self, *workers: int) -> dict[int, Ready]:
        """Wait until these workers are ready and return their reasons; Ready messages of other workers are kept."""
        while not set(workers) <= set(self.ready):
            worker, message = self.heard()
            if isinstance(message, Ready):
                assert worker not in self.ready, f"worker {worker} is ready twice"
                self.ready[worker] = message
        return {worker: self.ready.pop(worker) for worker in workers}

    def place(
        self,
        generation: int,
        ranks: Mapping[int, int],
        before: Mapping[int, int],
        root: int = 0,
        only: Collection[int] | None = None,
    ) -> None:
        """Send workers their ranks in the next generation.

        ``before``: their ranks in the one before; ``only``: those that are told.
        """
        workers = {rank: worker for worker, rank in ranks.items()}
        old = tuple(before.get(workers[rank], -1) for rank in range(len(ranks)))
        fresh = tuple(rank for rank, number in enumerate(old) if number < 0)
        size, port = len(ranks), free_port()
        for worker, rank in ranks.items():
            if only is not None and worker not in only:
                continue
            place = Place(
                *(generation, rank, size, self._slots.get(worker, rank), size, 0, 1),
                *("localhost", "127.0.0.1", port, f"secret of {generation}"),
                root=root,
                fresh=fresh if before else (),
                before=old,
            )
            self.tell(worker, place)

    def serve(self, plan: Sequence[Mapping[int, int]]) -> list[dict[int, Ready]]:
        """Send ranks as planned, each generation when its workers and those before are ready; return their messages."""
        said: list[dict[int, Ready]] = []
        before: Mapping[int, int] = {}
        for number, ranks in enumerate(plan, 1):
            said.append(self.until_ready(*{**before, **ranks}))
            self.place(number, ranks, before)
            for worker in set(before) - set(ranks):
                self.tell(worker, Removed(f"not in generation {number}"))
            before = dict(ranks)
        return said

    def _hear(self, worker: int, data: bytes) -> None:
        self._said.put((worker, elastic.from_worker(data)))

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        self._channels.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
