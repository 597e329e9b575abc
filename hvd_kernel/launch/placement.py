"""Placement of ranks: hosts and their slots, the place of each rank, and the variables that tell a rank its place.

Pure, except that it reads the hostfile and asks the system for this host's names and GPUs.

Terms.
  slot     room for one rank on a host
  place    one rank and the host it runs on
  part     the ranks of one launcher in a job with several launchers
  carried  passed to another host: variables that do not describe the launcher's own machine or session
"""

from __future__ import annotations

import math
import shutil
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hvd_kernel.errors import ConfigError, UsageError
from hvd_kernel.formatting.units import plural
from hvd_kernel.jobs.here import allocation
from hvd_kernel.jobs.place import HERE
from hvd_kernel.jobs.readers import hostfile as hostfile_reader
from hvd_kernel.jobs.readers.allocation import Allocation
from hvd_kernel.jobs.readers.mpirun import JSRUN
from hvd_kernel.settings import gpus, torchrun
from hvd_kernel.settings.network import addresses, reached

STEPS = {
    # One more step beside the running ones; without the options it would have one core and no memory.
    "srun": ("srun", "--quiet", "--overlap", "--unbuffered", "--cpu-bind=none", "--mem=0", "-N1", "-n1", "-w"),
}
"""An allocation's own launcher -> its command to start one process on a host, up to the host's name."""

_LOCAL = {"localhost", "127.0.0.1", "::1"}


@dataclass(frozen=True)
class Host:
    """A host as the user names it, and its number of slots."""

    name: str
    slots: int
    machine: str = ""  # identifies the machine if several names belong to one; empty: the name identifies it

    def __post_init__(self) -> None:
        # ssh would parse such a name as an option.
        if self.name.startswith("-") or not self.name:
            raise ConfigError(f"{self.name!r} is not a host: write -H host:slots,other:slots.")


def parse(hosts: str, slots: int = 1) -> list[Host]:
    """Parse ``h1:2,h2:4``; a host without a number has ``slots``, an IPv6 address has brackets.

    Raises
    ------
    ConfigError
        Naming the entry that cannot be parsed.
    """
    return [Host(name, count) for name, count in hostfile_reader.host_list(hosts, f"-H {hosts}", slots)]


def read_hostfile(path: str, slots: int = 1) -> list[Host]:
    """Read a file of lines ``host slots=4`` (or ``host:4``, or ``host``: ``slots``), each host once.

    Raises
    ------
    ConfigError
        The file cannot be read, or names no host; a line that cannot be parsed is named, with its column.
    """
    try:
        text = Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the hostfile {path} cannot be read: {error}.") from None
    return [Host(replica.host, replica.slots) for replica in hostfile_reader.read(text, path, slots).replicas]


def job_hosts(hosts: str | None, hostfile: str | None, np: int, slots: int = 1) -> list[Host]:
    """Return the hosts of a job; by default this one, with a slot for every rank.

    ``slots``: of a host without a number.

    Raises
    ------
    ConfigError
        Both were given, or one of them cannot be parsed.
    """
    if hosts and hostfile:
        raise ConfigError("hosts and hostfile were both given: they say the same thing, keep one of them.")
    if hosts:
        return parse(hosts, slots)
    return read_hostfile(hostfile, slots) if hostfile else [Host("localhost", np)]


def with_slots(hosts: str | None, hostfile: str | None, slots: int | None) -> tuple[str | None, str | None]:
    """Return hosts and hostfile; with ``slots`` all hosts in the syntax of -H, each with its number of slots.

    >>> with_slots("a,b:2", None, 3)
    ('a:3,b:2', None)

    Raises
    ------
    ConfigError
        With ``slots``: both were given, or one of them cannot be parsed.
    """
    if slots is None or not (hosts or hostfile):
        return hosts, hostfile
    return ",".join(map(_spell, job_hosts(hosts, hostfile, 1, slots))), None


def _spell(host: Host) -> str:
    return hostfile_reader.spelled(host.name, host.slots)


def places(hosts: Sequence[Host], np: int) -> list[int]:
    """Return for each rank the index of its host; hosts are filled one after another.

    Raises
    ------
    ConfigError
        There are fewer slots than ranks.
    """
    slots = [index for index, host in enumerate(hosts) for _ in range(host.slots)]
    if len(slots) < np:
        names = ", ".join(map(_spell, hosts))
        raise ConfigError(
            f"np={np} ranks do not fit on {names}, which has {plural(len(slots), 'slot')} in all: give a host more "
            "slots (host:8; they may be more than its cores), or ask for fewer ranks."
        )
    return slots[:np]


def is_local(name: str) -> bool:
    """Return whether the name is this host's: by its spelling, or because its address can be bound here."""
    if name in _LOCAL or name == socket.gethostname():
        return True
    try:
        infos = socket.getaddrinfo(name, 0, type=socket.SOCK_STREAM)
    except OSError:
        return False  # a name that only ssh knows
    return any(_binds(family, address) for family, _, _, _, address in infos)


def _binds(family: int, address: Iterable[object]) -> bool:
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind(tuple(address))
    except OSError:
        return False
    return True


# The environment of the ranks


Env = dict[str, str]

_LAST_PORT = 65535

_LOCAL_PREFIXES = ("SSH_", "XDG_", "DBUS_", "BASH_FUNC_")
_LOCAL_NAMES = frozenset(
    {
        *("_", "OLDPWD", "PWD", "SHLVL", "HOSTNAME", "DISPLAY", "XAUTHORITY", "TMPDIR"),
        *("HOME", "USER", "LOGNAME", "MAIL", "SHELL"),
    }
)


def carried(env: Mapping[str, str]) -> Env:
    """Return the variables that make sense on another host."""
    return {n: v for n, v in env.items() if not n.startswith(_LOCAL_PREFIXES) and n not in _LOCAL_NAMES}


def common_variables(np: int, rendezvous: tuple[str, int], secret: str, torch_port: int) -> Env:
    """Return the variables of all ranks; Horovod's names for the rendezvous are set for scripts that read them.

    ``torch_port``: port of the rendezvous' host for the store of torch.distributed.
    """
    address, port = rendezvous[0], str(rendezvous[1])
    return {
        "HOROVOD_SIZE": str(np),
        "HOROVOD_CONTROLLER_ADDR": address,
        "HOROVOD_CONTROLLER_PORT": port,
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": address,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": port,
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HVD_SECRET_KEY": secret,
        "PYTHONUNBUFFERED": "1",
        torchrun.ADDRESS: torchrun.address_text(address, torch_port),
    }


def rank_variables(hosts: Sequence[str], names: Sequence[str]) -> list[Env]:
    """Return the variables of each rank alone: ``hosts[r]`` identifies the host of rank r, ``names[r]`` is its name."""
    return [_variables_of(rank, hosts, names[rank]) for rank in range(len(hosts))]


def _variables_of(rank: int, hosts: Sequence[str], name: str) -> Env:
    on_host = [other for other, host in enumerate(hosts) if host == hosts[rank]]
    local = on_host.index(rank)
    across = [other for other, host in enumerate(hosts) if hosts[:other].count(host) == local]
    return variables_of(rank, name, (local, len(on_host)), (across.index(rank), len(across)))


def variables_of(rank: int, name: str, local: tuple[int, int], cross: tuple[int, int]) -> Env:
    """Return the variables of one rank; ``local`` and ``cross`` are (rank, size)."""
    values = {"RANK": rank, "HOSTNAME": name, "LOCAL_RANK": local[0], "LOCAL_SIZE": local[1]}
    values |= {"CROSS_RANK": cross[0], "CROSS_SIZE": cross[1]}
    return {f"HOROVOD_{key}": str(value) for key, value in values.items()}


TORCH_PORT_IN_USE = (
    "port {port} of this host, which MASTER_PORT names, is in use: let programs call hvd.init() before they use "
    "torch.distributed, which then uses another one"
)


@dataclass(frozen=True)
class Part:
    """One of several launchers of a job, each of which starts its own ranks, for example in a pod of an Indexed Job.

    All ``parts`` have the same number of ranks, ``rendezvous`` and ``secret``.
    """

    index: int
    parts: int
    rendezvous: tuple[str, int]
    secret: str

    @property
    def torch_port(self) -> int:
        """Port beside that of the rendezvous; the launcher on rank 0's host reserves it if it is free."""
        port = self.rendezvous[1]
        return port + 1 if port < _LAST_PORT else port - 1

    def rank_variables(self, slots: int, name: str) -> list[Env]:
        """Return the variables of each rank of this part alone."""
        first, cross = self.index * slots, (self.index, self.parts)
        return [variables_of(first + local, name, (local, slots), cross) for local in range(slots)]


def rendezvous_address(hellos: Sequence[Mapping[str, Any]], remote: Sequence[bool], interface: str) -> tuple[str, int]:
    """Return the address of the rendezvous on the host of rank 0, which is the first host.

    ``hellos``: the hellos of the hosts' agents; ``remote``: whether each was reached through ssh;
    ``interface``: the user's choice.
    """
    first = hellos[0]
    port = int(first["port"])
    if all(hello["machine"] == first["machine"] for hello in hellos):
        return "127.0.0.1", port
    if interface in (here := addresses(first)):
        return here[interface], port
    # SSH_CONNECTION has the address by which each side of a connection is reached.
    if remote[0] and len(first["ssh"]) == 4:  # noqa: PLR2004 - SSH_CONNECTION's words
        return str(first["ssh"][2]), port
    seen = [hello["ssh"][0] for hello, far in zip(hellos, remote, strict=True) if far and hello["ssh"]]
    if not remote[0] and seen:
        return str(seen[0]), port
    return reached(first, hellos) or str(first["name"]), port


# The size of a job without flags


@dataclass(frozen=True)
class JobSize:
    """The ranks that this launcher starts, their hosts in the syntax of ``-H``, and a sentence on the reason."""

    np: int
    hosts: str
    sentence: str
    via: str = ""  # the program that starts agents on other hosts instead of ssh
    cores: Mapping[str, int] = field(default_factory=dict)  # allocated on each host
    part: Part | None = None  # other launchers start the other ranks


def agent_launcher(allocated: Allocation | None) -> str:
    """Return the program that starts agents on an allocation's hosts: its own launcher if installed; empty: ssh."""
    via = "" if allocated is None else allocated.via
    return via if via in {*STEPS, JSRUN} and shutil.which(via) else ""


def allocated_cores(allocated: Allocation | None) -> dict[str, int]:
    """Return the number of cores that an allocation has on each host, as far as it is known."""
    replicas = () if allocated is None else allocated.spec.replicas
    return {replica.host: math.floor(replica.resources.cpu.request or 0) for replica in replicas}


def without_flags(env: Mapping[str, str], np: int = 0) -> JobSize:
    """Return the size for the place in which this process runs; ``np``: the user's -np, for fewer ranks than slots.

    Raises
    ------
    JobError
        The allocation contradicts itself.
    UsageError
        The environment names more ranks than would start.
    """
    allocated = allocation(env)
    if allocated is None:
        devices = gpus.usable(env.get(gpus.CHOICE, "") or "auto", env)
        reason = f"one for each of its {plural(devices, 'GPU')}" if devices else "it has no GPU"
        ranks = np or devices or 1
        if not np:
            _check_promise(env, ranks)
        return JobSize(ranks, f"{HERE}:{ranks}", f"{plural(ranks, 'rank')} on this machine: {reason}")
    replicas = allocated.spec.replicas
    if allocated.own is not None:
        slots = replicas[allocated.own].slots
        return JobSize(slots, f"{HERE}:{slots}", allocated.sentence, part=_part(allocated, allocated.own, env, np))
    hosts = ",".join(hostfile_reader.spelled(replica.host, replica.slots) for replica in replicas)
    via, cores = agent_launcher(allocated), allocated_cores(allocated)
    return JobSize(np or allocated.spec.size, hosts, allocated.sentence, via, cores=cores)


_PROMISES = (
    ("WORLD_SIZE",),
    ("PET_NNODES", "PET_NPROC_PER_NODE"),  # of operators that start torchrun
    ("OMPI_COMM_WORLD_SIZE",),
    ("PMI_SIZE",),
)
"""Variables of launchers and operators whose product is the number of ranks of a job."""


def fewer_ranks_text(promise: str, promised: int, ranks: int) -> str:
    """Return that the environment names more ranks than would start, and the remedy."""
    return (
        f"hvdrun: {promise} names {plural(promised, 'rank')}, but {ranks} would start, on this machine alone: name all "
        "hosts by -H or --hostfile, or the number of ranks by -np"
    )


def _check_promise(env: Mapping[str, str], ranks: int) -> None:
    """Refuse to start fewer ranks than the environment names: the job would train a part and succeed."""
    if "HOROVOD_RANK" in env:  # this process is a rank of a job, and starts one of its own
        return
    for names in _PROMISES:
        numbers = [int(env[name]) for name in names if env.get(name, "").isdecimal()]
        if math.prod(numbers) > ranks:
            promise = " and ".join(f"{name}={env[name]}" for name in names if name in env)
            raise UsageError(fewer_ranks_text(promise, math.prod(numbers), ranks))


def _part(allocated: Allocation, index: int, env: Mapping[str, str], np: int) -> Part:
    if np and np != allocated.spec.size:
        raise UsageError(f"hvdrun: -np {np}: {allocated.sentence}: leave out -np, or write the file for as many ranks")
    rendezvous = allocated.spec.rendezvous
    assert rendezvous is not None  # the readers of pods and tasks set it
    host = rendezvous.host if index else socket.gethostname()  # the DNS may not have this host's name yet
    return Part(index, len(allocated.spec.replicas), (host, rendezvous.port), env.get("HVD_SECRET_KEY", ""))
