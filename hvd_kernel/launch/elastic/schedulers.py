"""Discovery objects that query a scheduler: Slurm about its allocation, Kubernetes about the ready pods of a service.

Slurm. The allocation may shrink and grow (``scontrol update JobId=N NumNodes=M``). With ``--no-kill`` it
outlives nodes.

Kubernetes. DNS needs no permissions and returns addresses: those of a headless service (``clusterIP: None``) are its
ready pods'. The API server knows names too, which outlive an address if the pods belong to a StatefulSet.
"""

from __future__ import annotations

import ipaddress
import json
import os
import re
import socket
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from hvd_kernel.errors import ConfigError
from hvd_kernel.jobs.readers import slurm
from hvd_kernel.launch.elastic.discovery import (
    DiscoveryScript,
    Feed,
    HostDiscovery,
    HostSource,
    PolledHosts,
    parse_lines,
)
from hvd_kernel.processes.event_loop import EventLoop

_LIMIT_S = 20.0
_NODES = re.compile(r"(?:^|\s)NodeList=(\S+)")
_UP = {"allocated", "mixed", "idle", "completing"}  # states of sinfo; a trailing * marks a node that does not respond
_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_NOT_FOUND = 404

Run = Callable[[Sequence[str]], str]


def command_output(command: Sequence[str]) -> str:
    """Return the output of one of Slurm's programs.

    Raises
    ------
    ConfigError
        It fails, or is not installed.
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
    """Nodes of the Slurm job in which this process runs.

    Parameters
    ----------
    slots
        Of each node; None: the number of tasks that Slurm would start there (jobs/readers/slurm.py).
    env
        Environment of the job.
    run
        Runs a command and returns what it prints.
    """

    slots: int | None = None
    env: Mapping[str, str] = field(default_factory=lambda: os.environ)
    run: Run = command_output

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """Query Slurm for the nodes that are up.

        Raises
        ------
        ConfigError
            This process is not in a Slurm job, or Slurm's programs fail.
        """
        job = self.env.get("SLURM_JOB_ID")
        if not job:
            raise ConfigError("SLURM_JOB_ID is not set: discovery by Slurm works within salloc, sbatch or srun.")
        match = _NODES.search(self.run(["scontrol", "show", "job", "-o", job]))
        if match is None or match[1] == "(null)":
            return {}
        states = self.run(["sinfo", "--noheader", "--Node", "--format=%N %T", f"--nodes={match[1]}"])
        up = {name for name, _, state in (line.partition(" ") for line in states.splitlines()) if state.strip() in _UP}
        nodes = [name for name in slurm.expand(match[1], "NodeList") if name in up]
        slots = self._slots(match[1])
        return {name: slots[name] for name in nodes}

    def _slots(self, nodes: str) -> dict[str, int]:
        names = slurm.expand(nodes, "NodeList")
        if self.slots is not None:
            return dict.fromkeys(names, self.slots)
        nodes_at_start = slurm.expand(self.env.get("SLURM_JOB_NODELIST") or nodes)
        slots_at_start = {replica.host: replica.slots for replica in slurm.read(self.env).replicas}
        default = max(slots_at_start.get(name, 1) for name in nodes_at_start)
        # Nodes that were added later are assumed to be as large as the first ones.
        return {name: slots_at_start.get(name, default) for name in names}


Addresses = Callable[[str], Iterable[str]]


def addresses(name: str) -> list[str]:
    """Return all addresses of a host name.

    Raises
    ------
    ConfigError
        The name server does not answer.
    """
    try:
        infos = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        if error.errno in {socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)}:
            return []  # a headless service without a ready pod has no address
        raise ConfigError(f"{name}: {error}.") from None
    return [str(address[0]) for *_, address in infos]


@dataclass(frozen=True)
class KubernetesDns:
    """Addresses of a headless service's ready pods, in numeric order: name servers shuffle them.

    Parameters
    ----------
    service
        Its name, as ``workers`` or ``workers.namespace.svc.cluster.local``.
    slots
        Of each pod.
    lookup
        Returns the addresses of a name.

    Examples
    --------
    >>> KubernetesDns("workers", 2, lambda name: ["10.0.0.10", "10.0.0.9"]).find_available_hosts_and_slots()
    {'10.0.0.9': 2, '10.0.0.10': 2}
    """

    service: str
    slots: int = 1
    lookup: Addresses = addresses

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """Query the name server.

        Raises
        ------
        ConfigError
            It does not answer.
        """
        unique = {ipaddress.ip_address(address) for address in self.lookup(self.service)}
        in_order = sorted(unique, key=lambda address: (address.version, int(address)))
        return {str(address): self.slots for address in in_order}


@dataclass(frozen=True)
class KubernetesEndpoints:
    """Ready pods of a service as the API server names them; this pod's account must be allowed to ``get`` endpoints.

    Parameters
    ----------
    service
        Its name.
    slots
        Of each pod.
    namespace
        Its namespace; empty: this pod's.
    server
        The API server.
    account
        Folder with the token, namespace and certificate of this pod's account.
    """

    service: str
    slots: int = 1
    namespace: str = ""
    server: str = "https://kubernetes.default.svc"
    account: Path = _ACCOUNT

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """Query the API server.

        Raises
        ------
        ConfigError
            It does not answer, or refuses the request.
        """
        namespace = self.namespace or self._read("namespace")
        url = f"{self.server}/api/v1/namespaces/{namespace}/endpoints/{self.service}"
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {self._read('token')}"})  # noqa: S310
        certificate = self.account / "ca.crt"
        context = ssl.create_default_context(cafile=str(certificate) if certificate.exists() else None)
        try:
            with urllib.request.urlopen(request, timeout=_LIMIT_S, context=context) as response:  # noqa: S310
                return pods_of(json.load(response), self.slots)
        except urllib.error.HTTPError as error:
            if error.code == _NOT_FOUND:
                raise ConfigError(f"namespace {namespace} has no endpoints {self.service}.") from None
            raise ConfigError(f"{url}: {error}; check that this pod's service account may read endpoints.") from None
        except (OSError, ValueError) as error:
            raise ConfigError(f"{url}: {error}.") from None

    def _read(self, name: str) -> str:
        try:
            return (self.account / name).read_text().strip()
        except OSError as error:
            raise ConfigError(f"this process is not in a pod with a service account: {error}.") from None


def pods_of(endpoints: dict[str, Any], slots: int) -> dict[str, int]:
    """Return the ready pods of an Endpoints object: by name if the service names them, else by address.

    >>> pods_of({"metadata": {"name": "w"}, "subsets": [{"addresses": [{"ip": "10.0.0.9", "hostname": "w-0"}]}]}, 2)
    {'w-0.w': 2}
    """
    service = endpoints["metadata"]["name"]
    ready = [address for subset in endpoints.get("subsets") or () for address in subset.get("addresses") or ()]
    names = [f"{address['hostname']}.{service}" if address.get("hostname") else address["ip"] for address in ready]
    return dict.fromkeys(sorted(names, key=_ordinal), slots)


def _ordinal(name: str) -> tuple[str, int, str]:
    """Return a sort key that puts w-10 after w-9, and addresses in the order of their text."""
    base, _, number = name.partition(".")[0].rpartition("-")
    return (base, int(number), name) if number.isdecimal() and base else (name, 0, name)


# The choice by ``--host-discovery-script``: a script, a file, a scheduler or an object


KINDS = MappingProxyType({"file:": "PATH", "slurm:": "", "kubernetes:": "SERVICE", "kubernetes-dns:": "SERVICE"})
"""Prefix of a kind of discovery besides a script -> its operand; empty: it has none."""


def source(
    script: str | HostDiscovery, slots: int | None, interval_s: float, loop: EventLoop, feed: Feed
) -> HostSource:
    """Return the source that ``--host-discovery-script`` names; ``run`` passes an object instead.

    Raises
    ------
    ConfigError
        The operand of a kind is missing.
    """
    discovery = discovery_object(script, slots) if isinstance(script, str) else script
    if discovery is not None:
        return PolledHosts(discovery, interval_s, loop, feed)
    return DiscoveryScript(str(script), slots, interval_s, loop, feed)


def discovery_object(script: str, slots: int | None) -> HostDiscovery | None:
    """Return the discovery object that the flag's value names; None if it is a script.

    >>> discovery_object("kubernetes-dns:workers", 2)
    KubernetesDns(service='workers', slots=2, ...)
    >>> discovery_object("./hosts.sh", None) is None
    True

    Raises
    ------
    ConfigError
        The operand of a kind is missing.
    """
    kind = next((prefix for prefix in KINDS if script.startswith(prefix)), "")
    name = script.removeprefix(kind)
    if kind and KINDS[kind] and not name:
        raise ConfigError(f"--host-discovery-script {script} names nothing: write {kind}NAME.")
    match kind:
        case "file:":
            return HostsFile(name, slots)
        case "slurm:":
            return SlurmHosts(slots)
        case "kubernetes-dns:":
            return KubernetesDns(name, slots or 1)
        case "kubernetes:":
            return KubernetesEndpoints(name, slots or 1)
    return None


@dataclass(frozen=True)
class HostsFile:
    """A file of lines like those of a discovery script, read at each poll; replace it atomically, by renaming.

    Parameters
    ----------
    path
        The file; if it is empty, no hosts are available.
    slots
        Of hosts without a number of slots; None: 1.

    Examples
    --------
    >>> HostsFile("/tmp/hosts.txt", slots=2).find_available_hosts_and_slots()  # doctest: +SKIP
    {'a': 4, 'b': 2}
    """

    path: str
    slots: int | None = None

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """Return the hosts in the file.

        Raises
        ------
        ConfigError
            The file does not exist, or a line cannot be parsed.
        """
        try:
            text = Path(self.path).read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"the hosts file {self.path} cannot be read: {error}.") from None
        try:
            return {host.name: host.slots for host in parse_lines(text, self.slots)}
        except ConfigError as error:
            raise ConfigError(f"{self.path}: {error}") from None
