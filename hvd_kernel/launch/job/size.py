"""Size of a job without flags: the allocation's hosts and slots, else one rank per GPU of this machine, else one."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from hvd_kernel.errors import UsageError
from hvd_kernel.formatting.plural import plural
from hvd_kernel.jobs.here import allocation
from hvd_kernel.jobs.place import HERE
from hvd_kernel.jobs.readers.allocation import Allocation
from hvd_kernel.jobs.readers.hostfile import spelled
from hvd_kernel.jobs.tables.programs import JSRUN
from hvd_kernel.launch.environment import Part
from hvd_kernel.launch.launchers.ssh import STEPS
from hvd_kernel.settings import gpus


@dataclass(frozen=True)
class JobSize:
    """The ranks that this launcher starts, their hosts in the syntax of ``-H``, and a sentence on the reason."""

    np: int
    hosts: str
    sentence: str
    via: str = ""  # the program that starts agents on other hosts instead of ssh
    part: Part | None = None  # other launchers start the other ranks


def agent_launcher(allocated: Allocation | None) -> str:
    """Return the program that starts agents on an allocation's hosts: its own launcher if installed; empty: ssh."""
    via = "" if allocated is None else allocated.via
    return via if via in {*STEPS, JSRUN} and shutil.which(via) else ""


def without_flags(env: Mapping[str, str], np: int = 0) -> JobSize:
    """Return the size for the place in which this process runs; ``np``: the user's -np, for fewer ranks than slots.

    Raises
    ------
    JobError
        The allocation contradicts itself.
    """
    allocated = allocation(env)
    if allocated is None:
        devices = gpus.usable(env.get(gpus.CHOICE, "") or "auto", env)
        reason = f"one for each of its {devices} GPU(s)" if devices else "it has no GPU"
        ranks = np or devices or 1
        return JobSize(ranks, f"{HERE}:{ranks}", f"{plural(ranks, 'rank')} on this machine: {reason}")
    replicas = allocated.spec.replicas
    if allocated.own is not None:
        slots = replicas[allocated.own].slots
        return JobSize(slots, f"{HERE}:{slots}", allocated.sentence, part=_part(allocated, allocated.own, env, np))
    hosts = ",".join(spelled(replica.host, replica.slots) for replica in replicas)
    return JobSize(np or allocated.spec.size, hosts, allocated.sentence, via=agent_launcher(allocated))


def _part(allocated: Allocation, index: int, env: Mapping[str, str], np: int) -> Part:
    if np and np != allocated.spec.size:
        raise UsageError(f"hvdrun: -np {np}: {allocated.sentence}: leave out -np, or write the file for as many ranks")
    rendezvous = allocated.spec.rendezvous
    assert rendezvous is not None  # the readers of pods and tasks set it
    host = rendezvous.host if index else socket.gethostname()  # the DNS may not have this host's name yet
    return Part(index, len(allocated.spec.replicas), (host, rendezvous.port), env.get("HVD_SECRET_KEY", ""))
