"""Allocation detection: the scheduler's job, pod or task of this process, read from its environment."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from hvd_kernel.formatting.units import plural
from hvd_kernel.jobs.readers import hostfile, lsf, pods, slurm
from hvd_kernel.jobs.readers.mpirun import JSRUN
from hvd_kernel.jobs.spec import JobSpec, Replica

Env = Mapping[str, str]
File = Callable[[str], str | None]
Resolve = Callable[[str], Sequence[str]]
Ask = Callable[[list[str]], str | None]

_MOST_NAMES = 4


class Allocation(msgspec.Struct, frozen=True):
    """An allocation of hosts.

    Parameters
    ----------
    spec
        The hosts, with slots and known resources; without steps.
    sentence
        Description for users: "Slurm job 42 gives 2 hosts (n1, n2) with 4 slots each".
    via
        Command that starts a process on a host instead of ssh: "srun", "jsrun" or empty.
    own
        Index of this replica if each part of the job starts its own ranks; None if this process starts all ranks.
    """

    spec: JobSpec
    sentence: str
    via: str = ""
    own: int | None = None


def detect(env: Env, file: File, resolve: Resolve, ask: Ask = lambda _: None) -> Allocation | None:
    """Return the allocation of this process; None outside of one, or if the scheduler provides no hosts.

    Parameters
    ----------
    env
        The environment.
    file
        Function that returns the text of a file, or None.
    resolve
        Function that returns the addresses of a host name.
    ask
        Function that returns the output of a command, or None if it fails; for CSM's queries.

    Raises
    ------
    JobError
        The environment is contradictory, or this process is a rank; the message has the variable or file.
    """
    return next((read(env, file, resolve, ask) for matches, read in _TABLE if matches(env)), None)


def _slurm(env: Env, _file: File, _resolve: Resolve, _ask: Ask) -> Allocation:
    spec = slurm.read(env)
    return Allocation(spec, f"{slurm.title(env)} gives {_hosts(spec.replicas)}", via="srun")


def _lsf(env: Env, file: File, _resolve: Resolve, ask: Ask) -> Allocation:
    spec = lsf.read(env, file, lsf.query(env, ask))
    return Allocation(spec, f"LSF job {env['LSB_JOBID']} gives {_hosts(spec.replicas)}", via=JSRUN)


def _pbs(env: Env, file: File, _resolve: Resolve, _ask: Ask) -> Allocation:
    spec = hostfile.read_pbs_nodes(env, file)
    return Allocation(spec, f"PBS job {env['PBS_JOBID']} gives {_hosts(spec.replicas)}")


def _sge(env: Env, file: File, _resolve: Resolve, _ask: Ask) -> Allocation:
    spec = hostfile.read_sge_hosts(env, file)
    return Allocation(spec, f"Grid Engine job {env.get('JOB_ID', '?')} gives {_hosts(spec.replicas)}")


def _mpijob(env: Env, file: File, _resolve: Resolve, _ask: Ask) -> Allocation:
    spec = pods.mpijob(env, file)
    return Allocation(spec, f"{pods.hostfile_title(env)} gives {_hosts(spec.replicas)}")


def _indexed_job(env: Env, _file: File, _resolve: Resolve, _ask: Ask) -> Allocation:
    spec, index = pods.indexed_job(env), pods.own(env)
    return Allocation(spec, f"this is pod {index} of the Indexed Job {spec.name}: {_parts(spec, 'pod')}", own=index)


def _swarm(env: Env, _file: File, resolve: Resolve, _ask: Ask) -> Allocation:
    spec, index = pods.swarm(env, resolve), pods.own(env)
    return Allocation(spec, f"this is task {index + 1} of the service {spec.name}: {_parts(spec, 'task')}", own=index)


_TABLE = (  # the first match is used; a batch job may run in a container of Kubernetes, rarely the reverse
    (slurm.in_allocation, _slurm),
    (lsf.in_allocation, _lsf),
    (hostfile.in_pbs_job, _pbs),
    (hostfile.in_sge_job, _sge),
    (pods.is_mpijob_launcher, _mpijob),
    (pods.is_indexed_job, _indexed_job),
    (pods.is_swarm_task, _swarm),
)


def _hosts(replicas: Sequence[Replica]) -> str:
    """Return ``2 hosts (n1, n2) with 4 slots and 2 GPUs each``; ``2 hosts with 3 slots (n1: 2, n2: 1)``."""
    slots = [replica.slots for replica in replicas]
    gpus = {replica.resources.gpus or 0 for replica in replicas}
    devices = f" and {plural(max(gpus), 'GPU')}" if len(gpus) == 1 and max(gpus) else ""
    hosts = plural(len(replicas), "host")
    if len(set(slots)) > 1:
        names = [f"{replica.host}: {replica.slots}" for replica in replicas]
        return f"{hosts} with {plural(sum(slots), 'slot')} ({_few(names)})" + (devices and f"{devices} each")
    suffix = " each" if len(replicas) > 1 else ""
    return f"{hosts} ({_few([replica.host for replica in replicas])}) with {plural(slots[0], 'slot')}{devices}{suffix}"


def _parts(spec: JobSpec, part: str) -> str:
    """Return ``4 pods with 2 slots each; rendezvous at train-0.train:7000``."""
    suffix = " each" if len(spec.replicas) > 1 else ""
    where = f"{spec.rendezvous.host}:{spec.rendezvous.port}" if spec.rendezvous else ""
    slots = plural(spec.replicas[0].slots, "slot")
    return f"{plural(len(spec.replicas), part)} with {slots}{suffix}; rendezvous at {where}"


def _few(names: Sequence[str]) -> str:
    if len(names) <= _MOST_NAMES:
        return ", ".join(names)
    return ", ".join([*names[: _MOST_NAMES - 1], "...", names[-1]])
