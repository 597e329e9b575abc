"""Choice of an elastic job's source of hosts from ``--host-discovery-script``: a script, or an object."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from hvd_kernel.errors import ConfigError
from hvd_kernel.launch.elastic.discovery.schedulers import KubernetesDns, KubernetesEndpoints, SlurmHosts
from hvd_kernel.launch.elastic.discovery.script import DiscoveryScript
from hvd_kernel.launch.elastic.discovery.source import Feed, HostDiscovery, HostSource, PolledHosts, parse_lines
from hvd_kernel.processes.event_loop import EventLoop

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
