"""Start a program on ranks with hvdrun for a measurement on a GPU, within its time, and return its output."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence


def output_of(
    ranks: int, options: Sequence[str], program: Sequence[str], env: Mapping[str, str], seconds: float
) -> str:
    """Return the stdout of the ranks of a Python program; a timeout is reported on stderr."""
    hvdrun = [sys.executable, "-P", "-m", "hvd_kernel.launch", "-np", str(ranks), *options]
    command = [*hvdrun, sys.executable, "-P", *program]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **env})
    try:
        out, _ = running.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        running.terminate()
        out, _ = running.communicate()
        print(f"{ranks} ranks were terminated after {seconds} s", file=sys.stderr, flush=True)
    return out
