"""``horovod.ray.ray_logger``: values that a rank sends to the callbacks of the process that runs it."""

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

_MOST = 100_000  # bytes of a value that an agent carries


@dataclass
class _Way:
    """Where values go from this process."""

    put: Callable[[Any], Any] | None = None
    has_warned: bool = False


_way = _Way()


class AgentQueue:
    """Way of a rank of an elastic job, whose process is none of Ray's: its agent carries what it logs."""

    def put(self, value: Any) -> None:
        """Send a value.

        Raises
        ------
        ValueError
            It is too large, or ``hvd.init`` has not been called.
        """
        data = cloudpickle.dumps(value)
        if len(data) > _MOST:
            raise ValueError(f"ray_logger.log was given {len(data)} bytes, and takes {_MOST}: log figures, not data.")
        session = sys.modules.get("hvd_kernel.core.session")
        if session is None:
            raise NotInitialized
        session.connect_to_agent()
        sys.modules["hvd_kernel.core.stacks.agent_channel"].send(elastic.encode(elastic.Logged(data)))


def configure(queue: Any) -> None:
    """Have ``log`` put its values into a queue (``ray.util.queue.Queue``, ``AgentQueue``); None: nowhere."""
    _way.put = None if queue is None else queue.put


def is_chief() -> bool:
    """Tell whether this process is rank 0."""
    return os.environ.get("HOROVOD_RANK") == "0"


def log(info_dict: Mapping[str, Any], chief_only: bool = True) -> None:
    """Send values to the callbacks of ``RayExecutor.run`` or ``ElasticRayExecutor.run``, while the ranks run.

    Parameters
    ----------
    info_dict
        What can be pickled, by names.
    chief_only
        Only rank 0 sends.

    Raises
    ------
    ValueError
        In an elastic job: the values are more than 100,000 bytes, or come before ``hvd.init``.

    Examples
    --------
    In a function that ``RayExecutor.run`` runs::

        ray_logger.log({"epoch": epoch, "loss": float(loss)})
    """
    if chief_only and not is_chief():
        return
    if _way.put is not None:
        _way.put(info_dict)
    elif not _way.has_warned:
        _way.has_warned = True
        warnings.warn("`ray_logger.log` called but logging is not configured.", UserWarning, stacklevel=2)
