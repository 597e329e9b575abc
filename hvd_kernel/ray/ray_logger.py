"""``horovod.ray.ray_logger``: values that ranks log, and the callbacks that receive them in the caller's process."""

from __future__ import annotations

import os
import pickle
import sys
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Self

import cloudpickle

from hvd_kernel.errors import ClusterError, NotInitialized
from hvd_kernel.protocol import elastic
from hvd_kernel.protocol.messages import MetricsSample, RankLeft
from hvd_kernel.ray.utils import ray_api, reason_of

_MAX_BYTES = 100_000  # of a value that is sent through an agent


@dataclass
class _Sink:
    """Destination of the values logged in this process."""

    put: Callable[[Any], Any] | None = None
    has_warned: bool = False


_sink = _Sink()


class AgentQueue:
    """Destination in a rank of an elastic job: the rank is not a process of Ray, so its agent sends the values."""

    def put(self, value: Any) -> None:
        """Send a value.

        Raises
        ------
        ValueError
            The value is too large, or ``hvd.init`` has not been called.
        """
        data = cloudpickle.dumps(value)
        if len(data) > _MAX_BYTES:
            raise ValueError(
                f"ray_logger.log was given {len(data)} bytes, and takes {_MAX_BYTES}: log figures, not data."
            )
        session = sys.modules.get("hvd_kernel.core.session")
        if session is None:
            raise NotInitialized
        session.connect_to_agent()
        sys.modules["hvd_kernel.core.agent_channel"].send(elastic.encode(elastic.Logged(data)))


def configure(queue: Any) -> None:
    """Send the values of ``log`` to a queue (``ray.util.queue.Queue``, ``AgentQueue``); None discards them."""
    _sink.put = None if queue is None else queue.put


def is_chief() -> bool:
    """Return whether this process is rank 0."""
    return os.environ.get("HOROVOD_RANK") == "0"


def log(info_dict: Mapping[str, Any], chief_only: bool = True) -> None:
    """Send values to the callbacks of ``RayExecutor.run`` or ``ElasticRayExecutor.run``, while the ranks run.

    Parameters
    ----------
    info_dict
        Values by name; they must be picklable.
    chief_only
        Send only from rank 0.

    Raises
    ------
    ValueError
        In an elastic job: the values are larger than 100,000 bytes, or ``hvd.init`` has not been called.

    Examples
    --------
    In a function that ``RayExecutor.run`` runs::

        ray_logger.log({"epoch": epoch, "loss": float(loss)})
    """
    if chief_only and not is_chief():
        return
    if _sink.put is not None:
        _sink.put(info_dict)
    elif not _sink.has_warned:
        _sink.has_warned = True
        warnings.warn("`ray_logger.log` called but logging is not configured.", UserWarning, stacklevel=2)


# Callbacks


LOST_QUEUE = (
    "values that the ranks logged did not reach the callbacks, because Ray's queue for them failed: {error}. "
    "Call run() again."
)

_LAST = b""
"""Ends the queue of ``Forwarding``: no pickle is empty."""


class _End:
    """Last value of the queue of ``Callbacks``."""


class Callbacks:
    """A queue on Ray, and a thread that calls all callbacks with each value, in order of arrival.

    The first error of a callback stops the calls and is raised at the end of the ``with``, unless the ranks failed.
    ``show`` receives the ranks' activity (``MetricsSample``, ``RankLeft``), which callbacks do not receive; None
    discards it.
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
            affinity = ray_api().util.scheduling_strategies.NodeAffinitySchedulingStrategy
            from ray.util.queue import Queue  # noqa: PLC0415 - see ray_api

            strategy = affinity(lasting_node(), soft=False)
            self.queue = Queue(actor_options={"num_cpus": 0, "scheduling_strategy": strategy})
            self._thread.start()
        return self

    def __exit__(self, _kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self.queue is None:
            return
        with suppress(ray_api().exceptions.RayActorError):  # the thread has stopped with the same error
            self.queue.put(_End())
        self._thread.join()
        self.queue.shutdown(force=True)
        if error is None and self._error is not None:
            raise self._error

    def _call(self) -> None:
        try:
            while not isinstance(value := self._next(), _End):
                if isinstance(value, MetricsSample | RankLeft):
                    if self._show is not None:
                        self._show(value)
                    continue
                for callback in self._callbacks:
                    callback(value)
        except Exception as error:  # noqa: BLE001 - the user's code: raised in the caller's thread
            self._error = error

    def _next(self) -> Any:
        try:
            return self.queue.get()
        except ray_api().exceptions.RayActorError as error:
            raise ClusterError(LOST_QUEUE.format(error=reason_of(error).rstrip("."))) from error


class Forwarding:
    """Forwards values and samples of an elastic job's ranks to the queue of ``Callbacks``; None discards them.

    A thread sends everything that has arrived in one batch, so that the job's event loop never waits for Ray. If the
    queue fails, later values are discarded, and the error is raised at the end of the ``with``, unless the job failed.

    Raises
    ------
    ClusterError
        The queue failed.
    """

    def __init__(self, queue: Any) -> None:
        self._queue = queue
        self._values = SimpleQueue[bytes]()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._forward, name="hvd-logged", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, _kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Wait until all values are in the queue."""
        self._values.put(_LAST)
        self._thread.join()
        if error is None and self._error is not None:
            raise ClusterError(LOST_QUEUE.format(error=self._error)) from self._error

    def put(self, value: bytes) -> None:
        """Forward a pickled value. Does not wait."""
        if self._queue is not None and self._error is None:
            self._values.put(value)

    def show(self, activity: MetricsSample | RankLeft) -> None:
        """Forward a rank's activity. Does not wait."""
        self.put(pickle.dumps(activity))

    def _forward(self) -> None:
        batch: list[bytes] = []
        while _LAST not in batch:
            batch = [self._values.get()]
            while not self._values.empty():
                batch.append(self._values.get())
            if self._error is None:
                try:
                    self._send([value for value in batch if value != _LAST])
                except Exception as error:  # noqa: BLE001 - raised in the thread of the job
                    self._error = error

    def _send(self, batch: Sequence[bytes]) -> None:
        if batch:
            self._queue.put_nowait_batch([pickle.loads(value) for value in batch])  # noqa: S301 - our ranks


def lasting_node() -> str:
    """Return a node that lives as long as this process: its node, or the head for a client of Ray (``ray://``)."""
    ray = ray_api()
    if not ray.util.client.ray.is_connected():
        return str(ray.get_runtime_context().get_node_id())
    return next(str(node["NodeID"]) for node in ray.nodes() if "node:__internal_head__" in node["Resources"])
