"""Launcher of a ClusterSpec's processes: mpiexec's command, the private folders, the supervisor and its environment.

Sets the options of Open MPI that a user would otherwise have to know: running as root, more ranks than cores, no core
binding, loopback, quick start-up, survival of all other ranks when one dies.
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
from hvd_kernel.processes import leftovers, open_mpi
from hvd_kernel.processes.channel.control_channel import ControlChannel, spawn
from hvd_kernel.processes.cluster_spec import ClusterSpec
from hvd_kernel.processes.lifetime import HOLDER, claim, mark
from hvd_kernel.processes.limits import THREADS, threads
from hvd_kernel.processes.mps import decision
from hvd_kernel.processes.open_mpi import find_mpiexec, is_far, shared_memory_folder
from hvd_kernel.processes.private_dir import private_folder
from hvd_kernel.settings import gpus
from hvd_kernel.settings.launchers import without_launchers


class Launched(Supervised):
    """The supervisor that this kernel has started, with its cluster."""

    def __init__(self, spec: ClusterSpec) -> None:
        self._process, channel, folder, shared = begun(spec)
        super().__init__(channel, self._process.pid, folder, shared)

    def stop(self) -> None:
        """Stop all processes and remove all files. Idempotent."""
        super().stop()
        self._process.poll()  # reaps it, unless it is kept: then it outlives this kernel


def begun(
    spec: ClusterSpec, warm: Mapping[str, Any] | None = None
) -> tuple[subprocess.Popen[bytes], ControlChannel, Path, Path]:
    """Start a supervisor, which starts the ranks; return its process, the channel to it and its folders.

    Parameters
    ----------
    spec
        The cluster.
    warm
        Additional entries of the supervisor's plan if the ranks wait for a later kernel (warm_supervisor.py).

    Raises
    ------
    ClusterError, ConfigError
        As ``possible``.
    """
    mpiexec, choice = possible(spec)
    if not is_far(spec):
        choice = _beside_others(choice)
    leftovers.sweep()
    with ExitStack() as undo:  # KeyboardInterrupt may arrive anywhere in this block
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
            del env[HOLDER]  # no kernel owns them until one adopts them
        module = "hvd_kernel.cluster.warm_supervisor" if warm else "hvd_kernel.cluster.supervisor"
        with os.fdopen(os.open(folder / LOG, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as log:
            process, channel = spawn([sys.executable, "-P", "-m", module, json.dumps(plan)], stderr=log, env=env)
        undo.pop_all()
    return process, channel, folder, shared


def possible(spec: ClusterSpec) -> tuple[str, str]:
    """Return mpiexec's path, and the choice of devices for every process of the cluster, spares included.

    Raises
    ------
    ClusterError
        If mpiexec is not installed.
    ConfigError
        If this host does not have the devices. Other hosts check theirs.
    """
    mpiexec = find_mpiexec()
    choice = gpus.checked(spec.gpus or os.environ.get(gpus.CHOICE, "") or "auto")
    if not is_far(spec):
        gpus.check_exist(choice, os.environ)
    return mpiexec, choice


def _beside_others(choice: str) -> str:
    """Return a choice that begins with GPUs unused by the user's other notebooks, unless the user has chosen."""
    count = gpus.usable(choice, os.environ)
    if choice != "auto" or count < 2:  # noqa: PLR2004 - a single GPU is shared
        return choice
    return gpus.starting_after(leftovers.other_ranks(os.getpid()), count)


def mpi_arguments(spec: ClusterSpec, shared: Path) -> list[str]:
    """Return Open MPI's options for this spec."""
    options = ["--with-ft", "ulfm"]
    options += ["--runtime-options", "error-nonzero-status=false"]  # else os._exit(3) on one rank would stop all ranks
    options += ["--prtemca", "odls_base_verbose", "5"]  # logs the exit of each rank: see post_mortem.py
    options += ["-x", gpus.CHOICE] if is_far(spec) else []
    options += ["--host", spec.hosts] if spec.hosts else []
    options += ["--hostfile", spec.hostfile] if spec.hostfile else []
    parameters = {"mpi_yield_when_idle": "1", **open_mpi.between(spec, os.environ)}
    return open_mpi.arguments(spec.n, options, parameters, spec.mpi_args, shared=shared, far=is_far(spec))


def environment(folder: Path) -> dict[str, str]:
    """Return the kernel's environment for the ranks, without variables that another launcher may have set."""
    stacks = {"OMPI_MCA_opal_stacktrace_output": f"file:{folder / NATIVE}", HOLDER: mark(os.getpid())}
    folders = {"IPYTHONDIR": str(folder / "ipython"), "PRTE_MCA_prte_tmpdir_base": str(folder)}
    return without_launchers(os.environ) | stacks | folders


def _threads(spec: ClusterSpec) -> dict[str, str]:
    """Return the thread variables for ranks with a limit of cores; the user's own variables take precedence."""
    counts = [count for count in map(threads, spec.limits) if count is not None]
    return dict.fromkeys(THREADS, str(min(counts))) if counts else {}


def _address_for(spec: ClusterSpec) -> str:
    if not is_far(spec):
        return "127.0.0.1"
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError as error:
        raise ClusterError(f"this host's own name {socket.gethostname()!r} has no address: {error}") from error


def _rank_command() -> list[str]:
    return [sys.executable, "-P", "-m", "hvd_kernel.worker"]
