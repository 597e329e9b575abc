"""Spare process of an elastic job: ``python -P -m hvd_kernel.worker.job_spare train.py ...``, started by the agent.

It imports what ranks of the job have imported, and waits; told to, it runs the job's program as if it had begun with
that: ``__main__``, arguments, environment.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

from hvd_kernel.processes.channel.messages import Preload, RunProgram
from hvd_kernel.processes.spares import program
from hvd_kernel.worker.standby import Standby, in_spare_time, uncollected

_NICE = 10
_MACHINERY = (__file__, program.__file__, "<frozen runpy>")


def main() -> None:
    """Wait, and become a rank; end where nobody wants one."""
    standby = Standby()
    imports = standby.told(Preload)
    if imports is None:
        return
    os.environ.update(imports.variables)
    in_spare_time(lambda: _import(imports.modules), _give_way)
    standby.say_ready()
    task = standby.told(RunProgram)
    if task is None:
        return
    standby.leave()
    _run(task)


def _give_way() -> None:
    """Let ranks have the cores first: a tenth of one is enough. Of this thread alone."""
    os.setpriority(os.PRIO_PROCESS, 0, _NICE)


def _import(names: Sequence[str]) -> None:
    with uncollected():
        for name in names:
            if name not in sys.modules:
                try:
                    importlib.import_module(name)
                except Exception:  # noqa: BLE001, S112 - whoever needs it hears why it fails
                    continue


def _run(task: RunProgram) -> None:
    """Run the program; an exception's traceback begins in it."""
    os.environ.clear()
    os.environ.update(task.env)
    sys.orig_argv[:] = task.command
    found = program.program_of(task.command)
    assert found is not None
    try:
        found.run()
    except Exception as error:  # noqa: BLE001 - as Python does with what its program raises
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename in _MACHINERY:
            trace = trace.tb_next
        error.__traceback__ = trace
        sys.excepthook(type(error), error, trace)
        sys.exit(1)


if __name__ == "__main__":
    main()
