"""PBS and Torque allocation reader: PBS_NODEFILE, which lists a host once per slot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

import msgspec

from hvd_kernel.jobs.readers import hostfile
from hvd_kernel.jobs.spec import JobError, JobSpec, Replica, Resources

Env = Mapping[str, str]
File = Callable[[str], str | None]


def in_allocation(env: Env) -> bool:
    """Return whether this process is in a PBS job."""
    return bool(env.get("PBS_JOBID")) and bool(env.get("PBS_NODEFILE"))


def read(env: Env, file: File) -> JobSpec:
    """Return the job's hosts with their slots (mpiprocs, ppn), and with Torque also their GPUs.

    Raises
    ------
    JobError
        The file cannot be read.
    """
    path = env["PBS_NODEFILE"]
    text = file(path)
    if text is None:
        raise JobError(f"PBS_NODEFILE={path!r} cannot be read: it is on the job's first host; run this there.")
    spec = hostfile.read(text, path)
    gpus = _gpus(file(env["PBS_GPUFILE"]) if env.get("PBS_GPUFILE") else None)
    nodes = tuple(_with_gpus(replica, gpus) for replica in spec.replicas)
    return msgspec.structs.replace(spec, kind="pbs", replicas=nodes, name=env.get("PBS_JOBNAME", ""))


def _gpus(text: str | None) -> Counter[str]:
    """Count the GPUs of each host in Torque's lines ``host-gpu0``."""
    return Counter(line.strip().rpartition("-gpu")[0] for line in (text or "").splitlines() if line.strip())


def _with_gpus(replica: Replica, gpus: Counter[str]) -> Replica:
    if not gpus:
        return replica
    return msgspec.structs.replace(replica, resources=Resources(gpus=gpus[replica.host]))
