"""Spare process of an elastic job: ``python -P -m hvd_kernel.worker.job_spare train.py ...``, started by the agent.

It imports the modules that ranks of the job have imported, and waits; on request it runs the job's program as if it had
been started with it: ``__main__``, arguments, environment.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

from hvd_kernel.processes import program
from hvd_kernel.processes.channel.messages import Preload, RunProgram
from hvd_kernel.worker.standby import Standby, at_low_priority, without_collection

_NICE = 10
_MACHINERY = (__file__, program.__file__, "<frozen runpy>")


def main() -> None:
    """Wait for a task and run it; return if the parent closes the connection."""
    standby = Standby()
    imports = standby.next_message(Preload)
    if imports is None:
        return
    os.environ.update(imports.variables)
    at_low_priority(lambda: _import(imports.modules), _lower_priority)
    standby.report_ready()
    task = standby.next_message(RunProgram)
    if task is None:
        return
    standby.close()
    _run(task)


def _lower_priority() -> None:
    """Lower the priority of this thread below the ranks': a tenth of a core is enough."""
    os.setpriority(os.PRIO_PROCESS, 0, _NICE)


def _import(names: Sequence[str]) -> None:
    with without_collection():
        for name in names:
            if name not in sys.modules:
                try:
                    importlib.import_module(name)
                except Exception:  # noqa: BLE001, S112 - the import that needs it raises again
                    continue


def _run(task: RunProgram) -> None:
    """Run the program; tracebacks of its exceptions start in it."""
    os.environ.clear()
    os.environ.update(task.env)
    sys.orig_argv[:] = task.command
    target = program.program_of(task.command)
    assert target is not None
    try:
        target.run()
    except Exception as error:  # noqa: BLE001 - as Python does with its program's exceptions
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename in _MACHINERY:
            trace = trace.tb_next
        error.__traceback__ = trace
        sys.excepthook(type(error), error, trace)
        sys.exit(1)


if __name__ == "__main__":
    main()
