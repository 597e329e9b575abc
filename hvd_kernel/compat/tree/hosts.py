"""Parameters of a job to start, and its hosts: lists, placement of ranks, discovery, addresses, remote commands.

``horovod.runner.common.util.{hosts, settings}``, ``horovod.runner.elastic.{constants, discovery, settings}`` and
``horovod.runner.util.{lsf, network, remote}``.
"""

from __future__ import annotations

import importlib
import io
import os
import socket
import warnings
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, NoReturn

import psutil

from hvd_kernel.compat import plumbing
from hvd_kernel.compat.tree import safe_shell_exec, utilities

RESET_LIMIT_EXCEEDED_MESSAGE = "Reset count has exceeded the limit {}: the job ends."


@dataclass
class HostInfo:
    """A host and its number of slots."""

    hostname: str
    slots: int

    @staticmethod
    def from_string(host_string: str) -> HostInfo:
        """Parse ``host:slots``."""
        return parse_hosts(host_string)[0]


@dataclass
class SlotInfo:
    """Placement of a rank: its number in the job, on its host (local), and among ranks of its local rank (cross)."""

    hostname: str
    rank: int
    local_rank: int
    cross_rank: int
    size: int
    local_size: int
    cross_size: int

    def to_response_string(self) -> str:
        """Return rank, size, local rank, local size, cross rank and cross size, separated by commas."""
        pairs = (self.rank, self.size, self.local_rank, self.local_size, self.cross_rank, self.cross_size)
        return ",".join(map(str, pairs))


INVALID_SLOT_INFO = SlotInfo("", -1, -1, -1, -1, -1, -1)


def _placement() -> Any:
    return importlib.import_module("hvd_kernel.launch.placement")


def parse_hosts(hosts_string: str) -> list[HostInfo]:
    """Parse ``h1:2,h2:4``."""
    return [HostInfo(host.name, host.slots) for host in _placement().parse(hosts_string)]


def parse_hosts_and_slots(hosts: str) -> tuple[list[str], dict[str, int]]:
    """Return the hosts of ``h1:2,h2:4`` in order, and the slots by host."""
    parsed = parse_hosts(hosts)
    return [host.hostname for host in parsed], {host.hostname: host.slots for host in parsed}


def parse_host_files(filename: str) -> str:
    """Return the hosts of a file of lines ``h1 slots=2`` as ``h1:2,h2:4``."""
    return ",".join(f"{host.name}:{host.slots}" for host in _placement().read_hostfile(filename))


def get_host_assignments(
    hosts: Sequence[HostInfo], min_num_proc: int, max_num_proc: int | None = None
) -> list[SlotInfo]:
    """Return the placement of one rank per slot, host by host, for at most ``max_num_proc`` ranks.

    Raises
    ------
    ValueError
        There are fewer slots than ``min_num_proc``.
    """
    slots = chain.from_iterable(((host.hostname, local) for local in range(host.slots)) for host in hosts)
    places = list(islice(slots, max_num_proc))
    if len(places) < min_num_proc:
        raise ValueError(f"Requested more processes ({min_num_proc}) than there are available slots ({len(places)})")
    on_host: dict[str, int] = defaultdict(int)
    alike: dict[int, list[str]] = defaultdict(list)
    for name, local in places:
        on_host[name] += 1
        alike[local].append(name)
    return [
        SlotInfo(name, rank, local, alike[local].index(name), len(places), on_host[name], len(alike[local]))
        for rank, (name, local) in enumerate(places)
    ]


class HostDiscovery:
    """Interface of a source of hosts."""

    def find_available_hosts_and_slots(self) -> Mapping[str, int]:
        """Return the slots of each available host."""
        raise NotImplementedError


class HostDiscoveryScript(HostDiscovery):
    """Hosts that a script prints in lines ``host`` or ``host:slots``; ``slots`` is the default number.

    Subclasses may override ``_execute_discovery_script``, which returns the lines.
    """

    def __init__(self, discovery_script: str, slots: int) -> None:
        self._discovery_script = discovery_script
        self._default_slots = slots

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """Run the script and return the slots of each host.

        Raises
        ------
        RuntimeError
            The script fails.
        """
        lines = [line.strip() for line in self._execute_discovery_script().splitlines()]
        parts = [line.partition(":") for line in lines if line]
        return {host: int(slots) if slots else self._default_slots for host, _, slots in parts}

    def _execute_discovery_script(self) -> str:
        stdout = io.StringIO()
        status = safe_shell_exec.execute(self._discovery_script, stdout=stdout)
        if status:
            raise RuntimeError(f"Failed to execute discovery script: {self._discovery_script}. Exit code: {status}")
        return stdout.getvalue()


class FixedHosts(HostDiscovery):
    """Hosts that are set by the caller."""

    def __init__(self, host_slots: Mapping[str, int]) -> None:
        self._host_slots = host_slots

    def find_available_hosts_and_slots(self) -> Mapping[str, int]:
        """Return the hosts and their slots."""
        return self._host_slots

    def set(self, host_slots: Mapping[str, int]) -> None:
        """Replace the hosts."""
        self._host_slots = host_slots


_LOOPBACK = "127.0.0.1"


def _addresses() -> dict[str, list[str]]:
    return {
        name: [address.address for address in addresses if address.family == socket.AF_INET]
        for name, addresses in psutil.net_if_addrs().items()
    }


def get_local_host_addresses() -> set[str]:
    """Return every IPv4 address of this host."""
    return {address for listed in _addresses().values() for address in listed}


def get_local_intfs(nic: str | None = None) -> set[str]:
    """Return the interfaces with the address 127.0.0.1, of ``nic`` only if it is set."""
    return {name for name, listed in _addresses().items() if _LOOPBACK in listed and nic in {None, name}}


def resolve_host_address(host_name: str) -> str | None:
    """Return a host's IPv4 address, or None if its name cannot be resolved."""
    try:
        return socket.gethostbyname(host_name)
    except socket.gaierror:
        return None


def filter_local_addresses(all_host_names: Iterable[str]) -> list[str]:
    """Return the hosts other than this one."""
    here = get_local_host_addresses()
    return [name for name in all_host_names if resolve_host_address(name) not in here]


def find_port(server_factory: Callable[[tuple[str, int]], Any]) -> tuple[Any, int]:
    """Create a server on a free port; return the server and the port.

    Raises
    ------
    OSError
        No port is available.
    """
    server = server_factory(("", 0))
    return server, int(getattr(server, "socket", server).getsockname()[1])


def get_driver_ip(nics: Collection[str]) -> str:
    """Return the address of the first of these interfaces.

    Raises
    ------
    RuntimeError
        The interface has no IPv4 address.
    """
    first = next(iter(nics))
    addresses = _addresses().get(first)
    if not addresses:
        raise RuntimeError(f"The interface {first} has no IPv4 address; this host has {', '.join(_addresses())}.")
    return addresses[-1]


SSH_COMMAND_PREFIX = "ssh -o PasswordAuthentication=no -o StrictHostKeyChecking=no"


def get_ssh_command(
    local_command: str,
    host: str,
    port: int | None = None,
    identity_file: str | None = None,
    timeout_s: int | None = None,
) -> str:
    """Return the ssh command that runs ``local_command`` on the host; the caller has quoted it for ssh."""
    options = {"-p": port, "-i": identity_file, "-o ConnectTimeout=": timeout_s}
    words = [f"{option}{'' if option.endswith('=') else ' '}{value}" for option, value in options.items() if value]
    return " ".join([SSH_COMMAND_PREFIX, host, *words, local_command])


def get_remote_command(
    local_command: str,
    host: str,
    port: int | None = None,
    identity_file: str | None = None,
    timeout_s: int | None = None,
) -> str:
    """Return the command that runs ``local_command`` on the host: with ssh, or with kubexec in Kubeflow's pods."""
    if utilities.is_kubeflow_mpi():
        return f"{utilities.KUBEFLOW_MPI_EXEC} {host} {local_command}"
    return get_ssh_command(local_command, host, port, identity_file, timeout_s)


class LSFUtils:
    """The environment of an LSF job; raises HorovodOnly for what only IBM's CSM knows."""

    @staticmethod
    def using_lsf() -> bool:
        """Return whether this process runs in an LSF job."""
        return "LSB_JOBID" in os.environ

    @staticmethod
    def get_compute_hosts() -> list[str]:
        """Return the job's hosts from LSB_MCPU_HOSTS."""
        return sorted(_slots())

    @staticmethod
    def get_num_processes() -> int:
        """Return the number of slots of all hosts."""
        return sum(_slots().values())

    @staticmethod
    def get_allocation_info() -> dict[str, Any]:
        """Raise HorovodOnly."""
        _refuse("get_allocation_info")

    @staticmethod
    def get_num_cores() -> int:
        """Raise HorovodOnly."""
        _refuse("get_num_cores")

    @staticmethod
    def get_num_gpus() -> int:
        """Raise HorovodOnly."""
        _refuse("get_num_gpus")

    @staticmethod
    def get_num_threads() -> int:
        """Raise HorovodOnly."""
        _refuse("get_num_threads")


def _refuse(name: str) -> NoReturn:
    raise plumbing.error("horovod.runner.util.lsf.LSFUtils", name, plumbing.LSF)


def _slots() -> dict[str, int]:
    words = os.environ.get("LSB_MCPU_HOSTS", "").split()
    return {host: int(slots) for host, slots in zip(words[::2], words[1::2], strict=True)}


@dataclass
class BaseSettings:
    """Parameters of static and elastic jobs."""

    num_proc: int | None = None
    verbose: int = 0
    ssh_port: int | None = None
    ssh_identity_file: str | None = None
    extra_mpi_args: str | None = None
    tcp_flag: bool | None = None
    binding_args: str | None = None
    key: bytes | None = None
    start_timeout: Any = None
    output_filename: str | None = None
    run_func_mode: bool | None = None
    nics: Any = None
    elastic: bool = False
    prefix_output_with_timestamp: bool = False


class Settings(BaseSettings):
    """Parameters of a job on a fixed list of hosts, for ``gloo_run`` and ``mpi_run``."""

    def __init__(self, hosts: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.hosts = hosts


class ElasticSettings(BaseSettings):
    """Parameters of a job whose hosts join and leave, for ``gloo_run_elastic``."""

    def __init__(  # noqa: PLR0917 - Horovod's signature
        self,
        discovery: Any,
        min_num_proc: int | None,
        max_num_proc: int | None,
        elastic_timeout: float | None,
        reset_limit: int | None,
        cooldown_range: Sequence[int] | None = None,
        min_np: int | None = None,
        max_np: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(elastic=True, **kwargs)
        self.discovery = discovery
        self.min_num_proc = _newer("min_np", min_np, "min_num_proc", min_num_proc)
        self.max_num_proc = _newer("max_np", max_np, "max_num_proc", max_num_proc)
        self.elastic_timeout = elastic_timeout
        self.reset_limit = reset_limit
        self.cooldown_range = cooldown_range

    def __getstate__(self) -> dict[str, Any]:
        """Exclude the discovery, as Horovod does: it belongs to this process."""
        return vars(self) | {"discovery": None}


def _newer(old: str, old_value: int | None, new: str, value: int | None) -> int | None:
    if old_value is None:
        return value
    warnings.warn(f"{old} is deprecated, use {new} instead", DeprecationWarning, stacklevel=3)
    return old_value
