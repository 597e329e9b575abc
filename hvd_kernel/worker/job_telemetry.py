"""Telemetry of a rank that a job's launcher has started: ``python -P -m hvd_kernel.worker.job_telemetry MODULE ...``.

The module runs as ``python -m`` runs it. From its ``hvd.init()`` on, a sample goes to whoever has called the job's
function, five times a second and once more at its end: by the agent, as the launcher's monitor hears of it.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import threading

from hvd_kernel.core.stacks import agent_channel
from hvd_kernel.protocol import elastic
from hvd_kernel.protocol.messages import to_wire
from hvd_kernel.worker.telemetry import sample

_PERIOD_S = 0.2


def main() -> None:
    """Run the module that the arguments name, and tell of it."""
    module = sys.argv.pop(1)
    over, rank = threading.Event(), int(os.environ["HOROVOD_RANK"])
    telling = threading.Thread(target=_tell_until, args=(over, rank), name="hvd-telemetry", daemon=True)
    telling.start()
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    finally:
        over.set()
        telling.join()
        _tell(rank, running=False)


def _tell_until(over: threading.Event, rank: int) -> None:
    while not over.wait(_PERIOD_S):
        _tell(rank, running=True)


def _tell(rank: int, *, running: bool) -> None:
    if agent_channel.is_connected():
        told = json.dumps(to_wire(sample(rank, running=running)))
        agent_channel.send(elastic.encode(elastic.Sampled(told)))


if __name__ == "__main__":
    main()
