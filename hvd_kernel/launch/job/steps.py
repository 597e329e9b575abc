"""Steps of a job: lines that all ranks run, one after another, each waited for by all; the first that fails ends it."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from hvd_kernel.jobs.shell_words import is_plain
from hvd_kernel.launch.job_run import Job, Outcome, launch

_SHELL = "/bin/sh"


def run(job: Job, steps: Sequence[str], say: Callable[[str], None]) -> Outcome:
    """Run each step on all ranks of a job, whose own command is ignored; return how the last one ended.

    A step's ranks end before those of the next one start: that is the barrier. What comes on stdin goes to the first.
    """
    outcome = Outcome(())
    for number, step in enumerate(steps, 1):
        if len(steps) > 1:
            say(f"hvdrun: step {number} of {len(steps)}: {step}\n")
        outcome = launch(replace(job, command=command(step), stdin=job.stdin if number == 1 else -1))
        if outcome.status:
            if number < len(steps):
                say(f"hvdrun: step {number} failed: the {len(steps) - number} after it do not run.\n")
            break
    return outcome


def command(step: str) -> list[str]:
    """Return the words of a step; what only a shell understands goes to one."""
    return shlex.split(step) if is_plain(step) else [_SHELL, "-c", step]


def own_python_first(env: Mapping[str, str]) -> str:
    """Return a PATH on which ``python`` is the one that runs hvdrun: a platform's file means its image's."""
    own = str(Path(sys.executable).parent)
    return os.pathsep.join([own, *(part for part in env.get("PATH", os.defpath).split(os.pathsep) if part != own)])
