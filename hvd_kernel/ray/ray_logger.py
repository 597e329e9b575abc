"""``horovod.ray.ray_logger``: a rank sends values to the callbacks of the process that called ``run``."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import cloudpickle

from hvd_kernel.errors import NotInitialized
from hvd_kernel.protocol import elastic

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
