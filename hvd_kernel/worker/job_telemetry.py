"""Telemetry of a rank that a job's launcher has started: ``python -P -m hvd_kernel.worker.job_telemetry MODULE ...``.

The module runs as with ``python -m``. From its ``hvd.init()`` on, a sample is sent to the caller of the job's function
five times a second and once more at the end, through the agent and the launcher's monitor.
"""

from __future__ import annotations

import contextlib
import os
import runpy
import sys
import threading
from collections.abc import Callable
from typing import Self

from hvd_kernel.core import agent_channel, session
from hvd_kernel.errors import NotInitialized
from hvd_kernel.protocol import elastic
from hvd_kernel.protocol.messages import MetricsSample
from hvd_kernel.worker.telemetry import sample

_PERIOD_S = 0.2
_NONE = -1


def main() -> None:
    """Run the module named by the arguments, and send samples of it."""
    module = sys.argv.pop(1)
    with SampleReporter(_send_to_agent):
        runpy.run_module(module, run_name="__main__", alter_sys=True)


class SampleReporter:
    """Calls ``send`` with samples of this rank, in a thread during the ``with`` block, and at its end."""

    def __init__(self, send: Callable[[MetricsSample], None]) -> None:
        self._send, self._rank, self._over = send, _Rank(), threading.Event()
        self._thread = threading.Thread(target=self._send_until_over, name="hvd-telemetry", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._send_now(running=False)

    def _send_until_over(self) -> None:
        while not self._over.wait(_PERIOD_S):
            self._send_now(running=True)

    def _send_now(self, *, running: bool) -> None:
        if (rank := self._rank.now()) != _NONE:
            self._send(sample(rank, running=running))


class _Rank:
    """Rank of this process: in an elastic job, that of its generation, and none before the first."""

    def __init__(self) -> None:
        is_elastic = elastic.VARIABLE in os.environ  # HOROVOD_RANK may differ from the rank of the first generation
        self._last = _NONE if is_elastic else int(os.environ.get("HOROVOD_RANK", _NONE))

    def now(self) -> int:
        """Return the current rank; between two generations the previous one."""
        with contextlib.suppress(NotInitialized):
            self._last = session.rank()
        return self._last


def _send_to_agent(current: MetricsSample) -> None:
    if agent_channel.is_connected():
        agent_channel.send(elastic.encode(elastic.Sampled(current)))


if __name__ == "__main__":
    main()
