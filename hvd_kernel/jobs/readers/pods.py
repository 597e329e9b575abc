"""Pod and task environment readers: an MPIJob's launcher, a pod of our Indexed Job, a task of our swarm service.

The launcher starts all ranks. In the other two, every pod or task runs the same hvdrun command, which starts its own
ranks; the rendezvous is at the first pod or task. Our writers set these variables:
  HVD_JOB_NAME, HVD_JOB_SERVICE  the Job, and its headless Service: pod i is NAME-i.SERVICE
  HVD_SWARM_SERVICE, _SLOT       the service's name, and {{.Task.Slot}}, which starts at 1
  HVD_JOB_SIZE, HVD_JOB_SLOTS    number of pods or tasks, and of ranks in each
  HVD_JOB_PORT                   port of the rendezvous
  HVD_SECRET_KEY                 from a Secret
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

import msgspec

from hvd_kernel.jobs.readers import hostfile
from hvd_kernel.jobs.spec import JobError, JobSpec, RendezvousAddress, Replica

Env = Mapping[str, str]
File = Callable[[str], str | None]
Resolve = Callable[[str], Sequence[str]]

_FILES = (
    *("OMPI_MCA_orte_default_hostfile", "PRTE_MCA_prte_default_hostfile"),
    *("I_MPI_HYDRA_HOST_FILE", "HYDRA_HOST_FILE"),
)
_SLOTS = ("OMPI_MCA_orte_set_default_slots", "I_MPI_PERHOST")
_ROLE = "K_MPI_JOB_ROLE"
_DEFAULT = "/etc/mpi/hostfile"
_NUMBER = re.compile(r"[0-9]{1,6}", re.ASCII)
_PORTS = 65_535


def is_mpijob_launcher(env: Env) -> bool:
    """Return whether this is the launcher's pod of a Kubeflow MPIJob, or has the hostfile of an MPI in its environment.

    The launcher's pod of a TrainJob, and of the first MPIJobs, has the variables of MPI only.
    """
    return env.get(_ROLE) == "launcher" or (_ROLE not in env and any(env.get(name) for name in _FILES))


def hostfile_title(env: Env) -> str:
    """Return the hostfile of the launcher's pod for users: the MPIJob's file, or the variable that names it."""
    if env.get(_ROLE) == "launcher":
        return f"the MPIJob's {hostfile_of(env)}"
    name = next(name for name in _FILES if env.get(name))
    return f"{name}={env[name]}"


def mpijob(env: Env, file: File) -> JobSpec:
    """Return the workers of an MPIJob, from the hostfile of its launcher for any of the three MPIs.

    Raises
    ------
    JobError
        The file does not exist, or cannot be read.
    """
    path = hostfile_of(env)
    text = file(path)
    if text is None:
        if env.get(_ROLE) != "launcher":
            raise JobError(
                f"{hostfile_title(env)} cannot be read: an operator mounts it in the launcher's pod. Unset the "
                "variable if this is none, or name the hosts by -H."
            )
        raise JobError(f"the MPIJob's hostfile {path} cannot be read: the operator mounts it in the launcher's pod.")
    slots = next((_whole(env, name, 1) for name in _SLOTS if name in env), 1)
    return msgspec.structs.replace(hostfile.read(text, path, slots), kind="mpijob")


def hostfile_of(env: Env) -> str:
    """Return the path of an MPIJob's hostfile."""
    return next((env[name] for name in _FILES if env.get(name)), _DEFAULT)


def is_indexed_job(env: Env) -> bool:
    """Return whether this is a pod of an Indexed Job written by us."""
    return "JOB_COMPLETION_INDEX" in env and "HVD_JOB_NAME" in env


def indexed_job(env: Env) -> JobSpec:
    """Return all pods of this pod's Indexed Job.

    Raises
    ------
    JobError
        A variable is missing or invalid; the message names it.
    """
    own(env)
    name, service = _text(env, "HVD_JOB_NAME"), _text(env, "HVD_JOB_SERVICE")
    return _symmetric(
        env, "job", name, [f"{name}-{index}.{service}" for index in range(_whole(env, "HVD_JOB_SIZE", 1))]
    )


def is_swarm_task(env: Env) -> bool:
    """Return whether this is a task of a swarm service written by us."""
    return "HVD_SWARM_SERVICE" in env and "HVD_SWARM_SLOT" in env


def swarm(env: Env, resolve: Resolve) -> JobSpec:
    """Return all tasks of this task's service.

    Swarm's DNS returns the addresses of all tasks of a service in no particular order, so the ranks try each address
    until the first task responds.

    Raises
    ------
    JobError
        A variable is missing or invalid; or the service's name has no address.
    """
    own(env)
    service = _text(env, "HVD_SWARM_SERVICE")
    dns_name = f"tasks.{service}"
    if not resolve(dns_name):
        raise JobError(f"{dns_name} has no address: the service {service} must be on an overlay network of its stack.")
    return _symmetric(env, "swarm", service, [""] * _whole(env, "HVD_JOB_SIZE", 1), dns_name)


def own(env: Env) -> int:
    """Return the index of this pod or task among those of its job.

    Raises
    ------
    JobError
        The index is missing, or exceeds the job's size.
    """
    name, first = ("JOB_COMPLETION_INDEX", 0) if is_indexed_job(env) else ("HVD_SWARM_SLOT", 1)
    index, size = _whole(env, name, first) - first, _whole(env, "HVD_JOB_SIZE", 1)
    if index >= size:
        raise JobError(f"{name}={env[name]} is beyond HVD_JOB_SIZE={size}: scale the job by its file, not by hand.")
    return index


def _symmetric(env: Env, kind: str, name: str, hosts: Sequence[str], rendezvous: str = "") -> JobSpec:
    slots, port = _whole(env, "HVD_JOB_SLOTS", 1), _whole(env, "HVD_JOB_PORT", 1)
    if port > _PORTS:
        raise JobError(f"HVD_JOB_PORT={port} is not a port: at most {_PORTS}.")
    if len(hosts) > 1 and not env.get("HVD_SECRET_KEY"):
        raise JobError(
            f"HVD_SECRET_KEY is not set: the {len(hosts)} parts of {name} authenticate each other with it: set it from "
            "a Secret."
        )
    replicas = tuple(Replica("worker", index, host, slots) for index, host in enumerate(hosts))
    return JobSpec(kind, replicas, name=name, rendezvous=RendezvousAddress(rendezvous or hosts[0], port))


def _text(env: Env, name: str) -> str:
    if not env.get(name):
        raise JobError(f"{name} is not set: `hvdrun job write` puts it into the file.")
    return env[name]


def _whole(env: Env, name: str, low: int) -> int:
    text = _text(env, name)
    if not _NUMBER.fullmatch(text) or int(text) < low:
        raise JobError(f"{name}={text!r} must be a whole number, at least {low}.")
    return int(text)
