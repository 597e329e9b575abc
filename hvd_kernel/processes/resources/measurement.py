"""Measurement of what allreduce gives on this machine, in fresh processes: ours, Gloo, MPI, and a copy in memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hvd_kernel.errors import ClusterError
from hvd_kernel.processes.resources import bandwidth
from hvd_kernel.settings.launchers import without_launchers

SIZES = ("4K", "64K", "1M", "16M", "64M")
ROUNDS = 3
PATIENCE_S = 170.0
"""It takes half a minute; this is for a machine that others use too."""

_TAIL = 2000


@dataclass(frozen=True)
class Measured:
    """What was found: shown as a table, and in a notebook as a picture."""

    ranks: int
    results: tuple[Mapping[str, Any], ...]  # of each contender and size: contender, nbytes, seconds, busbw, ratio, ...
    text: str
    svg: str
    problem: str = ""  # why it is not kept

    def __str__(self) -> str:
        return self.text + (f"not kept: {self.problem}\n" if self.problem else "")

    def __repr__(self) -> str:
        return str(self).rstrip()

    def _repr_svg_(self) -> str:
        return self.svg


def measure(ranks: int, sizes: Sequence[str] = SIZES, rounds: int = ROUNDS) -> Measured:
    """Measure with so many ranks on this host, and keep what it gave.

    Raises
    ------
    ClusterError
        A rank failed, or the values that ours gave were wrong; the message carries what was written.
    """
    arguments = ["-np", str(ranks), "--sizes", ",".join(sizes), "--rounds", str(rounds), "--timeout", str(PATIENCE_S)]
    command = [sys.executable, "-P", "-m", "hvd_kernel.bench", *arguments, "--limit", "--json", "--tied"]
    with subprocess.Popen(  # noqa: S603 - our own module
        command,
        env=without_launchers(os.environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # an interrupt is this process's alone
    ) as run:
        try:
            said, complaint = run.communicate()
        except BaseException:
            run.kill()  # its ranks end with it
            raise
    if run.returncode:
        raise ClusterError(f"the measurement failed with status {run.returncode}: {complaint.strip()[-_TAIL:]}")
    found = json.loads(said)
    problem = bandwidth.keep(ranks, found["results"])
    return Measured(ranks, tuple(found["results"]), found["text"], found["svg"], problem)
