"""Network of Open MPI's ranks on several hosts: Open MPI calls at any address, and tells hosts apart by name.

An address that several hosts have (docker0) leads a rank to itself, and it waits for ever. Where two hosts have one
name, ranks do not agree who is beside whom: collective operations hang or give wrong results.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

from hvd_kernel.errors import ClusterError
from hvd_kernel.processes.cluster_spec import ClusterSpec
from hvd_kernel.settings import network as routes
from hvd_kernel.settings.lists import entries
from hvd_kernel.settings.network import Card

CHOICES = ("btl_tcp_if_include", "btl_tcp_if_exclude")  # either excludes the other
LOCAL = {"localhost", "127.0.0.1", "::1"}
_FILE = ".openmpi/mca-params.conf"


def far_names(spec: ClusterSpec) -> set[str]:
    """Return the names of other hosts on which ranks shall run."""
    lines = entries(spec.hosts) if spec.hosts else _lines(spec.hostfile)
    names = {line.split()[0].partition(":")[0] for line in lines if line.strip()}
    return names - LOCAL - {socket.gethostname()}


def is_far(spec: ClusterSpec) -> bool:
    """Tell whether a rank may run on another host."""
    return bool(spec.hostfile) or bool(far_names(spec))


def between(spec: ClusterSpec, env: Mapping[str, str]) -> dict[str, str]:
    """Return Open MPI's option for the network that all hosts have in common; {} if none is seen, or one was chosen.

    Ranks cannot be asked before MPI starts them, so the names of their hosts tell: each stands for an address.
    """
    names = far_names(spec)
    if not names or chosen(env, spec.mpi_args):
        return {}
    try:
        addresses = {socket.gethostbyname(name) for name in names} - set(routes.addresses().values())
    except OSError:  # a name that this host does not know: ssh may
        return {}
    others = [{"machine": address, "networks": {"": f"{address}/32"}} for address in sorted(addresses)]
    network = routes.common({"machine": "", "networks": routes.networks()}, others)
    return {} if network is None else {CHOICES[0]: str(network.network)}


def settle(hellos: Sequence[Card], env: Mapping[str, str], args: Sequence[str]) -> dict[str, str]:
    """Return variables for ranks whose hosts have said this: the network in which they call each other.

    Raises
    ------
    ClusterError
        Two hosts have the same name.
    """
    _refuse_same_names(hellos)
    network = routes.common(hellos[0], hellos)
    if network is None or chosen(env, args):
        return {}
    return {f"OMPI_MCA_{CHOICES[0]}": str(network.network)}


def chosen(env: Mapping[str, str], args: Sequence[str]) -> bool:
    """Tell whether the user has chosen the network: on the command line, in the environment, or in Open MPI's file."""
    file = Path(env.get("HOME", "/")) / _FILE
    written = file.read_text(errors="replace") if file.is_file() else ""
    return any(name in args or f"OMPI_MCA_{name}" in env or name in written for name in CHOICES)


def _lines(file: str) -> list[str]:
    path = Path(file)
    found = path.read_text(errors="replace").splitlines() if file and path.is_file() else []
    return [line.partition("#")[0] for line in found]


def _refuse_same_names(hellos: Sequence[Card]) -> None:
    first: dict[str, int] = {}
    for rank, hello in enumerate(hellos):
        name = str(hello["name"]).partition(".")[0]
        before = first.setdefault(name, rank)
        if hellos[before]["machine"] != hello["machine"]:
            raise ClusterError(
                f"ranks {before} and {rank} are on different hosts which are both called {name!r}, and Open MPI tells "
                "hosts apart by their names up to the first dot: its collective operations would hang or give wrong "
                "results. Give each host a name of its own (hostnamectl set-hostname NAME), or leave --mpi out."
            )
