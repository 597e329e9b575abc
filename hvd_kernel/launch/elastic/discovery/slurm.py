"""Slurm's discovery for an elastic job: nodes of the allocation that are up, as ``scontrol`` and ``sinfo`` say.

The allocation may shrink and grow (``scontrol update JobId=N NumNodes=M``), and with ``--no-kill`` it outlives nodes.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from hvd_kernel.errors import ConfigError
from hvd_kernel.jobs.readers import slurm

_LIMIT_S = 20.0
_NODES = re.compile(r"(?:^|\s)NodeList=(\S+)")
_UP = {"allocated", "mixed", "idle", "completing"}  # sinfo's words; one that does not answer has a * behind it

Run = Callable[[Sequence[str]], str]


def output(command: Sequence[str]) -> str:
    """Return what a program of Slurm's prints.

    Raises
    ------
    ConfigError
        It fails, or is not there.
    """
    try:
        done = subprocess.run(  # noqa: S603 - Slurm's, by its name
            command, capture_output=True, text=True, timeout=_LIMIT_S, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"{command[0]}: {error}.") from None
    if done.returncode:
        raise ConfigError(f"{' '.join(command)}: exit status {done.returncode}: {done.stderr.strip()}.")
    return done.stdout


@dataclass(frozen=True)
class SlurmHosts:
    """Nodes of the Slurm job that this process is in.

    Parameters
    ----------
    slots
        Of each node; None: as many as Slurm would start tasks there (jobs/readers/slurm.py).
    env
        Environment of the job.
    run
        Runs a command and returns what it prints.
    """

    slots: int | None = None
    env: Mapping[str, str] = field(default_factory=lambda: os.environ)
    run: Run = output

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """Ask Slurm.

        Raises
        ------
        ConfigError
            This is no job of Slurm's, or its programs fail.
        """
        job = self.env.get("SLURM_JOB_ID")
        if not job:
            raise ConfigError("SLURM_JOB_ID is not set: discovery by Slurm works within salloc, sbatch or srun.")
        said = _NODES.search(self.run(["scontrol", "show", "job", "-o", job]))
        if said is None or said[1] == "(null)":
            return {}
        states = self.run(["sinfo", "--noheader", "--Node", "--format=%N %T", f"--nodes={said[1]}"])
        up = {name for name, _, state in (line.partition(" ") for line in states.splitlines()) if state.strip() in _UP}
        nodes = [name for name in slurm.expand(said[1], "NodeList") if name in up]
        slots = self._slots(said[1])
        return {name: slots[name] for name in nodes}

    def _slots(self, nodes: str) -> dict[str, int]:
        names = slurm.expand(nodes, "NodeList")
        if self.slots is not None:
            return dict.fromkeys(names, self.slots)
        as_started = slurm.expand(self.env.get("SLURM_JOB_NODELIST") or nodes)
        first = {replica.host: replica.slots for replica in slurm.read(self.env).replicas}
        usual = max(first.get(name, 1) for name in as_started)
        return {name: first.get(name, usual) for name in names}  # nodes that came later are as large as those before
