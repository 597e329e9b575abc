"""Kernel side of a cluster's supervisor: ``Launched`` with mpiexec, ``EngineLaunched`` with an engine, or attached to.

With mpiexec it sets the options of Open MPI that a user would otherwise have to know: running as root, more ranks than
cores, no core binding, loopback, quick start-up, survival of all other ranks when one dies. With an engine (Ray, Spark,
Kubernetes) the supervisor starts here; the engine then starts one process per rank, whose agent connects back to it.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

from hvd_kernel.diagnosis.recorder import NATIVE
from hvd_kernel.errors import ClusterError
from hvd_kernel.processes import allocator, leftovers, open_mpi
from hvd_kernel.processes.channel import messages
from hvd_kernel.processes.channel.control_channel import ControlChannel, is_ready, spawn
from hvd_kernel.processes.channel.messages import Inviting, Message, Stop
from hvd_kernel.processes.cluster_spec import ClusterSpec
from hvd_kernel.processes.lifetime import HOLDER, children, claim, is_stopped, mark
from hvd_kernel.processes.limits import THREADS, threads
from hvd_kernel.processes.mps import decision
from hvd_kernel.processes.open_mpi import find_mpiexec, is_far, shared_memory_folder
from hvd_kernel.processes.private_dir import private_folder
from hvd_kernel.settings import gpus
from hvd_kernel.settings.lookup import without_launchers

LOG = "cluster.log"
_GRACE_S = 1.5  # for ranks to exit after SIGTERM
_STOP_S = 4.0  # for a supervisor that may be stopped (SIGSTOP)
_BUSY_S = 30.0  # additionally for one that runs: only it can find processes that cells have detached


class Supervised:
    """The control channel to the supervisor, its process, and the private folders."""

    def __init__(self, channel: ControlChannel, pid: int, folder: Path, shared: Path) -> None:
        self.pid = pid
        self.folder = folder
        self.log = folder / LOG
        self._shared = shared
        self._channel = channel
        self._gone: int | None = os.pidfd_open(pid)

    @property
    def descriptor(self) -> int:
        """The descriptor to wait on for ``receive``."""
        return self._channel.fileno()

    def receive(self) -> list[Message]:
        """Return the supervisor's messages since the last call; ChannelClosed when it is gone. May block."""
        return self._channel.receive()

    def send(self, message: Message) -> None:
        """Send a message to the supervisor, which may be gone. Any thread."""
        self._channel.send(message)

    def local_ranks(self) -> set[int]:
        """Return the process ids of the ranks on this host: those that mpiexec started here."""
        return {rank for mpiexec in children(self.pid) for rank in children(mpiexec)}

    def invite(self, invitation: Inviting) -> None:
        """Tell the engine to start its processes (no-op with mpiexec)."""

    def on_ready(self, ask: Callable[..., Any]) -> None:
        """Handle that all ranks have started; ``ask`` queries them (``Session.ask``)."""

    def explain(self, reason: str) -> str:
        """Return the reason why ranks did not start, with additional facts."""
        return reason

    def stop(self) -> None:
        """Stop all processes and remove all files. Idempotent."""
        if self._gone is None:
            return
        self.send(Stop(_GRACE_S))
        if not self._ends(self._gone):
            signal.pidfd_send_signal(self._gone, signal.SIGKILL)
            is_ready(self._gone, None)
        self.leave()
        for folder in (self.folder, self._shared):  # still exist only if the supervisor was killed
            shutil.rmtree(folder, ignore_errors=True)

    def _ends(self, gone: int) -> bool:
        """Wait for the supervisor to exit, only briefly if it is stopped (SIGSTOP); return whether it has."""
        return is_ready(gone, _STOP_S) or (not is_stopped(self.pid) and is_ready(gone, _BUSY_S))

    def leave(self) -> None:
        """Close the channel: a detached cluster continues, any other stops. Idempotent."""
        self._channel.close()
        if self._gone is not None:
            os.close(self._gone)
            self._gone = None


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
        env |= _of_allocator(env, spec)
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
    options += ["-x", allocator.TUNABLES] if is_far(spec) and _of_allocator(os.environ, spec) else []
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


def _of_allocator(env: Mapping[str, str], spec: ClusterSpec) -> dict[str, str]:
    memory = min(filter(None, (limit.memory for limit in spec.limits)), default=None)
    return allocator.variables(env, spec.n, memory)


def _address_for(spec: ClusterSpec) -> str:
    if not is_far(spec):
        return "127.0.0.1"
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError as error:
        raise ClusterError(f"this host's own name {socket.gethostname()!r} has no address: {error}") from error


def _rank_command() -> list[str]:
    return [sys.executable, "-P", "-m", "hvd_kernel.worker"]


class RankSource(Protocol):
    """One use of an engine, for one cluster (implemented by launch/launchers/cluster_engine.py:NotebookEngine)."""

    name: str
    """Name of the engine in messages."""

    addresses: Sequence[str]
    """Addresses of this host that the engine's processes may reach; empty if all of them run on this host."""

    def begin(self, address: str, secret: str, on_end: Callable[[str], None]) -> None:
        """Start one process per rank; each connects back to ``address``.

        ``on_end(reason)`` runs when no more processes will be started.
        """

    def shortage(self) -> str:
        """Return a sentence on the resources that the engine has for the ranks now; empty if it reports none."""

    def end(self, *, at_once: bool) -> None:
        """Stop all processes; ``at_once``: do not wait for requested ranks that have not started."""


class EngineLaunched(Supervised):
    """The supervisor that this kernel has started, and the engine that starts the ranks."""

    def __init__(self, spec: ClusterSpec, engine: RankSource) -> None:
        self._engine, self._is_up = engine, False
        plan = {
            "address": _own_address(engine.name, engine.addresses),
            "ranks": spec.n,
            "engine": engine.name,
            "env": {gpus.CHOICE: gpus.checked(spec.gpus or os.environ.get(gpus.CHOICE, "") or "auto")},
        }
        leftovers.sweep()
        with ExitStack() as undo:  # KeyboardInterrupt may arrive anywhere in this block
            folder = private_folder()
            undo.callback(shutil.rmtree, folder, ignore_errors=True)
            claim(folder)
            argument = json.dumps(plan | {"folders": [str(folder)]})
            command = [sys.executable, "-P", "-m", "hvd_kernel.cluster.engine_supervisor", argument]
            with os.fdopen(os.open(folder / LOG, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as log:
                self._process, channel = spawn(command, stderr=log, env=environment(folder))
            undo.pop_all()
        super().__init__(channel, self._process.pid, folder, folder)

    def invite(self, invitation: messages.Inviting) -> None:
        """Tell the engine to start its processes."""
        begin = self._engine.begin
        begin(invitation.address, invitation.secret, lambda reason: self.send(messages.EngineEnded(reason)))

    def on_ready(self, _ask: Callable[..., Any]) -> None:
        """Record that all ranks have started."""
        self._is_up = True

    def explain(self, reason: str) -> str:
        """Append the engine's shortage to the reason why ranks did not start."""
        return f"{reason} {self._engine.shortage()}".rstrip()

    def stop(self) -> None:
        """Stop all processes and remove all files. Idempotent."""
        super().stop()  # calls leave()
        self._process.poll()

    def leave(self) -> None:
        """Close the channel, which stops the cluster. Idempotent."""
        super().leave()
        self._engine.end(at_once=not self._is_up)


def _own_address(engine: str, addresses: Sequence[str]) -> str:
    """Return the first of the addresses that belongs to this host; "" if the engine's processes run on this host.

    Raises
    ------
    ClusterError
        If none of the addresses belongs to this host.
    """
    for address in addresses:
        with socket.socket() as probe:
            try:
                resolved = socket.gethostbyname(address)
                probe.bind((resolved, 0))
            except OSError:
                continue
            return resolved
    if addresses:
        listed = ", ".join(addresses)
        raise ClusterError(f"{engine} reaches this notebook at {listed}, which is no address of this host's")
    return ""
