"""Choice of an elastic job's source of hosts, from what the user names."""

from __future__ import annotations

from hvd_kernel.errors import ConfigError
from hvd_kernel.launch.elastic.discovery.hosts_file import HostsFile
from hvd_kernel.launch.elastic.discovery.kinds import KINDS
from hvd_kernel.launch.elastic.discovery.kubernetes import KubernetesDns, KubernetesEndpoints
from hvd_kernel.launch.elastic.discovery.polled import HostDiscovery, PolledHosts
from hvd_kernel.launch.elastic.discovery.script import DiscoveryScript
from hvd_kernel.launch.elastic.discovery.slurm import SlurmHosts
from hvd_kernel.launch.elastic.discovery.source import Feed, HostSource
from hvd_kernel.processes.event_loop import EventLoop


def source(
    script: str | HostDiscovery, slots: int | None, interval_s: float, loop: EventLoop, feed: Feed
) -> HostSource:
    """Return the source that ``--host-discovery-script`` names; ``run`` takes an object in its place.

    Raises
    ------
    ConfigError
        It names a kind, and nothing of that kind.
    """
    asked = named(script, slots) if isinstance(script, str) else script
    if asked is not None:
        return PolledHosts(asked, interval_s, loop, feed)
    return DiscoveryScript(str(script), slots, interval_s, loop, feed)


def named(script: str, slots: int | None) -> HostDiscovery | None:
    """Return the object that is named; None: this is a script.

    >>> named("kubernetes-dns:workers", 2)
    KubernetesDns(service='workers', slots=2, ...)
    >>> named("./hosts.sh", None) is None
    True

    Raises
    ------
    ConfigError
        Nothing stands behind a kind that needs a name.
    """
    kind = next((each for each in KINDS if script.startswith(each)), "")
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
