"""``horovod.runner.common.util.tiny_shell_exec``: what a command of the shell says."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping


def execute(command: str, env: Mapping[str, str] | None = None) -> tuple[str, int] | None:
    """Return its output, stderr included, and its exit status; None where it could not be run."""
    given = None if env is None else dict(env)
    try:
        done = subprocess.run(  # noqa: S602 - a command of the shell is what Horovod's callers give
            command, shell=True, env=given, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
    except OSError:
        return None
    return done.stdout, done.returncode
