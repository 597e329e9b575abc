"""Callbacks of a run: what the ranks log (ray_logger.py) reaches them where the run was called, while it lasts."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Self

from hvd_kernel.protocol.messages import MetricsSample, RankLeft
from hvd_kernel.ray.utils import ray_api

_LAST = b""
"""Of ``Forwarding``: no pickle is empty."""


class _End:
    """What comes last."""


class Callbacks:
    """A queue on Ray, and a thread that calls all callbacks with each value, in the order in which they came.

    The first error of a callback is raised at the end of the ``with``, where the ranks have not failed; none is called
    after it. ``show`` is given what the ranks do (``MetricsSample``, ``RankLeft``), and no callback is; None: nobody
    wants that.
    """

    def __init__(
        self,
        callbacks: Sequence[Callable[[Any], Any]] | None,
        show: Callable[[MetricsSample | RankLeft], None] | None = None,
    ) -> None:
        self.queue: Any = None
        self._callbacks, self._show = [*(callbacks or ())], show
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._call, name="hvd-callbacks", daemon=True)

    def __enter__(self) -> Self:
        if self._callbacks or self._show:
            at = ray_api().util.scheduling_strategies.NodeAffinitySchedulingStrategy
            from ray.util.queue import Queue  # noqa: PLC0415 - see ray_api

            self.queue = Queue(actor_options={"num_cpus": 0, "scheduling_strategy": at(lasting_node(), soft=False)})
            self._thread.start()
        return self

    def __exit__(self, _kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self.queue is None:
            return
        self.queue.put(_End())
        self._thread.join()
        self.queue.shutdown(force=True)
        if error is None and self._error is not None:
            raise self._error

    def _call(self) -> None:
        try:
            while not isinstance(value := self.queue.get(), _End):
                if isinstance(value, MetricsSample | RankLeft):
                    if self._show is not None:
                        self._show(value)
                    continue
                for callback in self._callbacks:
                    callback(value)
        except Exception as error:  # noqa: BLE001 - the user's code: raised where the callbacks were given
            self._error = error


class Forwarding:
    """Values that ranks of an elastic job log, and their samples, on their way to a queue of ``Callbacks``.

    None: they go nowhere.

    A thread brings them, all at once that are there: Ray takes its time, and meanwhile the job hears its ranks.
    """

    def __init__(self, queue: Any) -> None:
        self._queue = queue
        self._values = SimpleQueue[bytes]()
        self._thread = threading.Thread(target=self._forward, name="hvd-logged", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Return when all of them are in the queue."""
        self._values.put(_LAST)
        self._thread.join()

    def take(self, value: bytes) -> None:
        """Take a value, pickled. Does not wait."""
        if self._queue is not None:
            self._values.put(value)

    def show(self, news: MetricsSample | RankLeft) -> None:
        """Take what a rank does. Does not wait."""
        self.take(pickle.dumps(news))

    def _forward(self) -> None:
        values: list[bytes] = []
        while _LAST not in values:
            values = [self._values.get()]
            while not self._values.empty():
                values.append(self._values.get())
            if found := [pickle.loads(each) for each in values if each != _LAST]:  # noqa: S301 - our ranks
                self._queue.put_nowait_batch(found)


def lasting_node() -> str:
    """Return the node of this process, which stays as long as it does; of a client of Ray's, that of the head."""
    ray = ray_api()
    if not ray.util.client.ray.is_connected():
        return str(ray.get_runtime_context().get_node_id())
    return next(str(node["NodeID"]) for node in ray.nodes() if "node:__internal_head__" in node["Resources"])
