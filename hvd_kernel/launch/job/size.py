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
    """How many ranks this launcher starts, on which hosts as ``-H`` takes them, and the sentence that says so."""

    np: int
    hosts: str
    sentence: str
    via: str = ""  # what starts agents on other hosts, instead of ssh
    part: Part | None = None  # other launchers start the other ranks


def agents_by(found: Allocation | None) -> str:
    """Return what starts agents on an allocation's hosts: its own launcher where that is installed, else ssh."""
    return found.via if found is not None and found.via in {*STEPS, JSRUN} and shutil.which(found.via) else ""


def without_flags(env: Mapping[str, str], np: int = 0) -> JobSize:
    """Return the size that follows from where this process is; ``np``: said by the user, for fewer ranks than slots.

    Raises
    ------
    JobError
        The allocation contradicts itself.
    """
    found = allocation(env)
    if found is None:
        devices = gpus.usable(env.get(gpus.CHOICE, "") or "auto", env)
        why = f"one for each of its {devices} GPU(s)" if devices else "it has no GPU"
        ranks = np or devices or 1
        return JobSize(ranks, f"{HERE}:{ranks}", f"{plural(ranks, 'rank')} on this machine: {why}")
    replicas = found.spec.replicas
    if found.own is not None:
        slots = replicas[found.own].slots
        return JobSize(slots, f"{HERE}:{slots}", found.sentence, part=_part(found, found.own, env, np))
    hosts = ",".join(spelled(replica.host, replica.slots) for replica in replicas)
    return JobSize(np or found.spec.size, hosts, found.sentence, via=agents_by(found))


def _part(found: Allocation, own: int, env: Mapping[str, str], np: int) -> Part:
    if np and np != found.spec.size:
        raise UsageError(f"hvdrun: -np {np}: {found.sentence}: leave out -np, or write the file for as many ranks")
    rendezvous = found.spec.rendezvous
    assert rendezvous is not None  # the readers of pods and tasks see to it
    host = rendezvous.host if own else socket.gethostname()  # the name that others know may not be in the DNS yet
    return Part(own, len(found.spec.replicas), (host, rendezvous.port), env.get("HVD_SECRET_KEY", ""))
