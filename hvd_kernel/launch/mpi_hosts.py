"""What Open MPI has to be spared on several hosts: it tells them apart by name, and calls at any address.

Two hosts of one name: its ranks do not agree who is beside whom, and its collective operations hang or give wrong
results. An address that several hosts have (docker0): a rank calls itself there, and waits for ever.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from hvd_kernel.errors import ClusterError
from hvd_kernel.routes import Card, common

_CHOICES = ("btl_tcp_if_include", "btl_tcp_if_exclude")  # either excludes the other
_FILE = ".openmpi/mca-params.conf"


def settle(hellos: Sequence[Card], env: Mapping[str, str], args: Sequence[str]) -> dict[str, str]:
    """Return variables for ranks whose hosts have said this: the network in which they call each other.

    Raises
    ------
    ClusterError
        Two hosts have the same name.
    """
    _refuse_same_names(hellos)
    network = common(hellos[0], hellos)
    if network is None or _chosen(env, args):
        return {}
    return {"OMPI_MCA_btl_tcp_if_include": str(network.network)}


def _refuse_same_names(hellos: Sequence[Card]) -> None:
    first: dict[str, int] = {}
    for rank, hello in enumerate(hellos):
        name = str(hello["name"]).partition(".")[0]
        before = first.setdefault(name, rank)
        if hellos[before]["machine"] != hello["machine"]:
            raise ClusterError(
                f"ranks {before} and {rank} are on different hosts which are both called {name!r}, and Open MPI tells "
                "hosts apart by their names up to the first dot: its collective operations would hang or give wrong "
                "results. Give each host a name of its own (hostnamectl set-hostname NAME), or leave --mpi away."
            )


def _chosen(env: Mapping[str, str], args: Sequence[str]) -> bool:
    """Tell whether the user has chosen the network: on the command line, in the environment, or in Open MPI's file."""
    file = Path(env.get("HOME", "/")) / _FILE
    written = file.read_text(errors="replace") if file.is_file() else ""
    return any(name in args or f"OMPI_MCA_{name}" in env or name in written for name in _CHOICES)
