"""Telemetry of a rank that a job's launcher has started: ``python -P -m hvd_kernel.worker.job_telemetry MODULE ...``.

The module runs as ``python -m`` runs it. From its ``hvd.init()`` on, a sample goes to whoever has called the job's
function, five times a second and once more at its end: by the agent, as the launcher's monitor hears of it.
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
from hvd_kernel.protocol.messages import MetricsSample, to_wire
from hvd_kernel.worker.telemetry import sample

_PERIOD_S = 0.2
_NONE = -1


def main() -> None:
    """Run the module that the arguments name, and tell of it."""
    module = sys.argv.pop(1)
    with Telling(_by_agent):
        runpy.run_module(module, run_name="__main__", alter_sys=True)


class Telling:
    """Calls ``tell`` with samples of this rank, in a thread as long as the ``with`` lasts, and at its end."""

    def __init__(self, tell: Callable[[MetricsSample], None]) -> None:
        self._tell, self._rank, self._over = tell, _Rank(), threading.Event()
        self._thread = threading.Thread(target=self._tell_until_over, name="hvd-telemetry", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._tell_now(running=False)

    def _tell_until_over(self) -> None:
        while not self._over.wait(_PERIOD_S):
            self._tell_now(running=True)

    def _tell_now(self, *, running: bool) -> None:
        if (rank := self._rank.now()) != _NONE:
            self._tell(sample(rank, running=running))


class _Rank:
    """The rank of this process: of an elastic job, that of its generation, and none before the first."""

    def __init__(self) -> None:
        planned = elastic.VARIABLE in os.environ  # the variable's rank may not be the one of the first generation
        self._last = _NONE if planned else int(os.environ.get("HOROVOD_RANK", _NONE))

    def now(self) -> int:
        """Return it; between two generations the one that it has had."""
        with contextlib.suppress(NotInitialized):
            self._last = session.rank()
        return self._last


def _by_agent(taken: MetricsSample) -> None:
    if agent_channel.is_connected():
        agent_channel.send(elastic.encode(elastic.Sampled(to_wire(taken))))


if __name__ == "__main__":
    main()
