"""Launcher of a ClusterSpec's processes: mpiexec's command, the private folders, the supervisor, and its words.

Everything a newcomer would otherwise have to know is set here: root, more ranks than cores, no core binding, loopback,
Open MPI's quick start-up, survival of the others when one rank dies.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from hvd_kernel.cluster.supervised import LOG, Supervised
from hvd_kernel.diagnosis.recorder import NATIVE
from hvd_kernel.errors import ClusterError
from hvd_kernel.processes import leftovers
from hvd_kernel.processes.channel.control_channel import ControlChannel, spawn
from hvd_kernel.processes.cluster_spec import ClusterSpec
from hvd_kernel.processes.lifetime import HOLDER, claim, mark
from hvd_kernel.processes.mpi import network, open_mpi
from hvd_kernel.processes.mpi.network import is_far
from hvd_kernel.processes.mpi.open_mpi import find_mpiexec, shared_memory_folder
from hvd_kernel.processes.mps import decision
from hvd_kernel.processes.private_dir import private_folder
from hvd_kernel.processes.resources.limits import THREADS, threads
from hvd_kernel.settings import gpus
from hvd_kernel.settings.launchers import without_launchers


class Launched(Supervised):
    """The supervisor that this kernel has started, with its cluster."""

    def __init__(self, spec: ClusterSpec) -> None:
        self._process, channel, folder, shared = begun(spec)
        super().__init__(channel, self._process.pid, folder, shared)

    def stop(self) -> None:
        """End everything and leave nothing. Idempotent."""
        super().stop()
        self._process.poll()  # it has ended, unless it is kept: then it is nobody's to wait for


def begun(
    spec: ClusterSpec, warm: Mapping[str, Any] | None = None
) -> tuple[subprocess.Popen[bytes], ControlChannel, Path, Path]:
    """Start a supervisor and have it start the ranks; return its process, the channel to it and its folders.

    Parameters
    ----------
    spec
        The cluster.
    warm
        The ranks are for a kernel to come: what its plan has beside (pool/warm_supervisor.py).

    Raises
    ------
    ClusterError, ConfigError
        As ``possible``.
    """
    mpiexec, choice = possible(spec)
    if not is_far(spec):
        choice = _beside_others(choice)
    leftovers.sweep()
    with ExitStack() as undo:  # the key may be pressed anywhere in here
        folder = private_folder()
        undo.callback(shutil.rmtree, folder, ignore_errors=True)
        shared = shared_memory_folder(folder)
        undo.callback(shutil.rmtree, shared, ignore_errors=True)
        claim(folder, shared)
        plan = {
            "mpiexec": [mpiexec, *mpi_arguments(spec, shared), *_rank_command(), *(["warm"] if warm else [])],
            "folders": [str(folder), str(shared)],
            "address": _address_for(spec),
            "ranks": spec.n,
            "mps_ranks": 0 if is_far(spec) else spec.n,
            **(warm or {}),
        }
        env = _threads(spec) | environment(folder) | {gpus.CHOICE: choice}
        env |= {decision.CHOICE: spec.mps} if spec.mps else {}
        if warm:
            del env[HOLDER]  # no kernel's end is theirs, until one has taken them
        module = "hvd_kernel.cluster.pool.warm_supervisor" if warm else "hvd_kernel.cluster.supervisor"
        with os.fdopen(os.open(folder / LOG, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as log:
            process, channel = spawn([sys.executable, "-P", "-m", module, json.dumps(plan)], stderr=log, env=env)
        undo.pop_all()
    return process, channel, folder, shared


def possible(spec: ClusterSpec) -> tuple[str, str]:
    """Return mpiexec's path, and the choice of devices for every process of the cluster, spares too.

    Raises
    ------
    ClusterError
        There is no mpiexec.
    ConfigError
        This host does not have the devices. Another one says so itself.
    """
    mpiexec = find_mpiexec()
    choice = gpus.checked(spec.gpus or os.environ.get(gpus.CHOICE, "") or "auto")
    if not is_far(spec):
        gpus.check_exist(choice, os.environ)
    return mpiexec, choice


def _beside_others(choice: str) -> str:
    """Begin, where the user does not choose, with the GPUs that no rank of the user's other notebooks has."""
    there = gpus.usable(choice, os.environ)
    if choice != "auto" or there < 2:  # noqa: PLR2004 - one is everybody's
        return choice
    return gpus.starting_after(leftovers.other_ranks(os.getpid()), there)


def mpi_arguments(spec: ClusterSpec, shared: Path) -> list[str]:
    """Return Open MPI's options for this spec."""
    options = ["--with-ft", "ulfm"]
    options += ["--runtime-options", "error-nonzero-status=false"]  # os._exit(3) on one rank would end them all
    options += ["--prtemca", "odls_base_verbose", "5"]  # tells the log what became of each rank: see post_mortem.py
    options += ["-x", gpus.CHOICE] if is_far(spec) else []
    options += ["--host", spec.hosts] if spec.hosts else []
    options += ["--hostfile", spec.hostfile] if spec.hostfile else []
    parameters = {"mpi_yield_when_idle": "1", **network.between(spec, os.environ)}
    return open_mpi.arguments(spec.n, options, parameters, spec.mpi_args, shared=shared, far=is_far(spec))


def environment(folder: Path) -> dict[str, str]:
    """Return the kernel's environment without what another launcher may have left in it."""
    stacks = {"OMPI_MCA_opal_stacktrace_output": f"file:{folder / NATIVE}", HOLDER: mark(os.getpid())}
    own = {"IPYTHONDIR": str(folder / "ipython"), "PRTE_MCA_prte_tmpdir_base": str(folder)}
    return without_launchers(os.environ) | stacks | own


def _threads(spec: ClusterSpec) -> dict[str, str]:
    """Return with how many threads ranks compute that may use fewer cores than their part; what the user says wins."""
    few = [each for each in map(threads, spec.limits) if each is not None]
    return dict.fromkeys(THREADS, str(min(few))) if few else {}


def _address_for(spec: ClusterSpec) -> str:
    if not is_far(spec):
        return "127.0.0.1"
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError as error:
        raise ClusterError(f"this host's own name {socket.gethostname()!r} has no address: {error}") from error


def _rank_command() -> list[str]:
    return [sys.executable, "-P", "-m", "hvd_kernel.worker"]
