"""What Open MPI has to be spared on several hosts: it tells them apart by name, and calls at any address.

Two hosts of one name: its ranks do not agree who is beside whom, and its collective operations hang or give wrong
results. An address that several hosts have (docker0): a rank calls itself there, and waits for ever.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hvd_kernel.cluster.network import CHOICES, chosen
from hvd_kernel.errors import ClusterError
from hvd_kernel.settings.network import Card, common


def settle(hellos: Sequence[Card], env: Mapping[str, str], args: Sequence[str]) -> dict[str, str]:
    """Return variables for ranks whose hosts have said this: the network in which they call each other.

    Raises
    ------
    ClusterError
        Two hosts have the same name.
    """
    _refuse_same_names(hellos)
    network = common(hellos[0], hellos)
    if network is None or chosen(env, args):
        return {}
    return {f"OMPI_MCA_{CHOICES[0]}": str(network.network)}


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
