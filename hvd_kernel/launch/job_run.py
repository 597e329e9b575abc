"""Run of a job: a ``Job`` in, an ``Outcome`` out.

launch -> agents (one per host; from MPI or a cluster engine one per rank) -> hello -> plan -> monitor: output, input,
ends -> outcome
"""

from __future__ import annotations

import os
import secrets
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from hvd_kernel import tracking
from hvd_kernel.compat import rank_environment
from hvd_kernel.errors import ConfigError
from hvd_kernel.jobs.tables.programs import JSRUN
from hvd_kernel.launch import environment
from hvd_kernel.launch.agents import AgentHandle, Agents
from hvd_kernel.launch.launchers import mpi_command
from hvd_kernel.launch.launchers.agent_listener import AgentListener
from hvd_kernel.launch.launchers.cluster_engine import Engine, EngineRun, Invitation, by_hosts
from hvd_kernel.launch.launchers.mpiexec import Mpiexec
from hvd_kernel.launch.line_output import OutputStream, Write, folder_of, prefixes, standard, writer
from hvd_kernel.launch.monitor import JobMonitor
from hvd_kernel.launch.outcome import shell_status
from hvd_kernel.launch.placement import Host, is_local, named, places
from hvd_kernel.launch.signals import forwarded
from hvd_kernel.launch.whereabouts import RankMonitor, on_sigquit
from hvd_kernel.processes.channel.authentication import ADDRESS_VARIABLE
from hvd_kernel.processes.channel.messages import MPIEXEC, RankPlan, StartRanks
from hvd_kernel.processes.mps import decision
from hvd_kernel.processes.resources.limits import Limits
from hvd_kernel.protocol.messages import MetricsSample, RankLeft
from hvd_kernel.settings import lookup
from hvd_kernel.settings.launchers import without_launchers
from hvd_kernel.settings.network import addresses

_LET_GO_S = 10.0  # that an engine may take to notice that the ranks have ended


NO_FOLDER = (
    "the current directory does not exist any more: it was deleted or replaced. Change to an existing one and run the "
    "command again: cd DIRECTORY"
)


def current_folder() -> str:
    """Return the current directory, in which ranks start.

    Raises
    ------
    ConfigError
        It was deleted.
    """
    try:
        return str(Path.cwd())
    except FileNotFoundError:
        raise ConfigError(NO_FOLDER) from None


@dataclass(frozen=True)
class Job:
    """What is to run, and where."""

    command: list[str]  # with an engine its first word may be empty: the Python of the engine's process
    np: int
    hosts: str | None = None  # "a:2,b:2"; None: this host
    env: dict[str, str] | None = None  # added to this process's environment; an empty value is as good as none
    hostfile: str | None = None
    cwd: str | None = None  # None: this process's, on every host
    ssh_port: int | None = None
    ssh_identity_file: str | None = None
    network_interface: str = ""  # rendezvous and traffic of the ranks go over it; empty: the one that leads there
    output_filename: str | None = None  # a folder that gets rank.N/stdout and rank.N/stderr
    start_timeout_s: float | None = None  # for hosts to answer; None: HOROVOD_START_TIMEOUT, else 30
    timeout_s: float | None = None  # for everything
    grace_s: float = 5.0  # between SIGTERM and SIGKILL, for ranks that have to be ended
    prefix: bool = True  # "[rank]<stdout>:" before every line
    timestamp: bool = False  # and the time before that
    stdin: int = -1  # descriptor that rank 0 reads from; below 0: nothing
    use_mpi: bool = False  # mpiexec starts the ranks
    mpi_args: tuple[str, ...] = ()
    part: environment.Part | None = None  # of a job with several launchers, on this host
    via: str = ""  # srun or jsrun: an allocation's own launcher, which starts the agents instead of ssh
    engine: Engine | None = None  # of a cluster: starts the ranks' processes, in their own environment plus ``env``
    call: bytes = b""  # what each rank carries out (``pack_call``): the command gets the path of a folder that has it
    on_logged: Callable[[bytes], None] | None = None  # gets what ranks of an elastic job log for whoever called them
    on_sample: Callable[[MetricsSample | RankLeft], None] | None = None  # gets what ranks do that carry a call out
    limits: tuple[Limits, ...] = ()  # of each rank; (): none has any
    verbose: bool = False  # say on stderr what is started where
    quiet: bool = False  # write neither tracebacks of ranks that failed nor the verdict: whoever called tells of them

    def __post_init__(self) -> None:
        if self.np < 1:
            raise ConfigError(f"np={self.np}: a job has 1 rank or more, e.g. np=4.")
        if not self.command:
            raise ConfigError("there is no command to run: e.g. hvdrun -np 4 python train.py.")
        if self.limits and len(self.limits) != self.np:
            raise ConfigError(f"limits are for {len(self.limits)} rank(s), but np={self.np}.")
        if not self.use_mpi and self.mpi_args:
            raise ConfigError("mpi_args are for ranks that MPI starts: add --mpi (use_mpi=True).")
        if not self.cwd and self.engine is None:
            current_folder()  # before anything is started

    @property
    def folder(self) -> str:
        """The directory in which ranks start, unless their engine has one of its own."""
        return self.cwd or current_folder()

    @property
    def mpi_launcher(self) -> str:
        """What starts an agent for each rank, all at once; empty: each host's agent is started alone."""
        return self.via if self.via == JSRUN else "mpiexec" if self.use_mpi else ""

    @property
    def size(self) -> int:
        """How many ranks there are, those of other launchers included."""
        return self.np * (self.part.parts if self.part else 1)

    @property
    def first(self) -> int:
        """The number of the first rank that this launcher starts."""
        return self.part.index * self.np if self.part else 0


@dataclass(frozen=True)
class Outcome:
    """How the ranks ended. A code below 0 is a signal's number, as in ``subprocess``."""

    codes: tuple[int, ...]
    failed: int | None = None  # the rank that failed first, for a reason of its own
    last_lines: tuple[str, ...] = ()  # the end of its stderr, a traceback whole
    status: int = 0  # the shell's status of the whole: the failed rank's; 128 + N where signal N ended it
    why: str = ""  # a limit that it has passed: "killed for memory: 1.02 GiB of its limit of 1 GiB"
    workers: tuple[int, ...] = ()  # of an elastic job, the process of each rank by the number that it alone has had
    failed_worker: int | None = None  # the process that ``failed`` was
    answers: Mapping[int, bytes] = field(default_factory=dict)  # to the job's call, by rank; none came: it is missing


def launch(job: Job, *, stdout: IO[Any] | None = None, stderr: IO[Any] | None = None) -> Outcome:
    """Start the ranks, carry what they say, wait for their end, and leave nothing behind.

    Without ``stdout`` and ``stderr`` they speak on this process's own. A rank that fails ends the others. Ctrl-C
    (KeyboardInterrupt) ends all of them and is raised again.

    Raises
    ------
    ConfigError
        The job cannot be as it is described.
    ClusterError
        The ranks could not be started, a host was lost, or ``timeout_s`` is over.
    """
    env = without_launchers(os.environ) | (job.env or {})
    job = replace(job, env=(job.env or {}) | tracking.rank_environment(env))
    patience = job.start_timeout_s or lookup.start_timeout(env)
    begun = time.monotonic()
    default_out, default_err = standard()
    out, err = writer(stdout, default_out), writer(stderr, default_err)
    tell = err if job.verbose else None
    outputs: list[tuple[OutputStream, OutputStream]] = []
    last = ExitStack()  # what is ended when the agents are
    agents, mpiexec = Agents(err), Mpiexec(err, job.mpi_launcher) if job.mpi_launcher else None
    try:
        if mpiexec is not None:
            placed = _mpi_start(job, agents, mpiexec, patience, tell)
        elif job.engine is not None:
            placed = _engine_start(job, job.engine, agents, patience, last)
        else:
            placed = _start(job, agents, patience, tell)
        outputs = _outputs(job, out, err)
        watches = lookup.engine_options(env).get("stall_warning_s") != "0"
        monitor = RankMonitor(placed, job.first, job.size, err, watches=watches)
        running = JobMonitor(
            agents, outputs, placed, job.grace_s, mpiexec, monitor=monitor, on_sample=job.on_sample or _ignore
        )
        left = None if job.timeout_s is None else begun + job.timeout_s - time.monotonic()
        try:
            with forwarded(agents), on_sigquit(monitor.want):
                running.run(job.stdin, left)
        except KeyboardInterrupt:
            running.stop()
            running.run(-1, None)
            raise
        return _outcome(job, running, err)
    finally:
        agents.end()
        last.close()
        if mpiexec is not None:
            mpiexec.close()
        for output in (output for pair in outputs for output in pair):
            output.close()


def _ignore(_sample: MetricsSample) -> None:
    """Have no use for telemetry."""


def _start(job: Job, agents: Agents, patience: float, tell: Write | None) -> list[AgentHandle]:
    """Start the ranks; return the agent of each."""
    hosts = named(job.hosts, job.hostfile, job.np)
    where = places(hosts, job.np)
    used = hosts[: where[-1] + 1]
    agents.start(used, job.ssh_port, job.ssh_identity_file, patience, job.via)
    hellos = [agent.hello for agent in agents.every]
    if job.part is not None:
        rendezvous, secret, size = job.part.rendezvous, job.part.secret, job.np * job.part.parts
        own = job.part.own(job.np, hellos[0]["name"])
    else:
        rendezvous = environment.rendezvous(hellos, [agent.remote for agent in agents.every], job.network_interface)
        secret, size = secrets.token_hex(32), job.np
        own = environment.own([hellos[host]["host"] for host in where], [used[host].name for host in where])
    common = environment.shared(size, rendezvous, secret)
    if tell is not None:
        tell(_told(used, where, rendezvous).encode())
    for index, agent in enumerate(agents.every):
        ranks = [
            _one(job, rank, int(own[rank]["HOROVOD_LOCAL_RANK"]), own[rank])
            for rank in range(job.np)
            if where[rank] == index
        ]
        env = without_launchers(os.environ)
        env = _for_ranks(job, (environment.carried(env) if agent.remote else env) | common)
        if tell is not None and not agent.remote:
            tell(_told_mps(agent, len(ranks), env))
        agent.send(
            _order(
                job,
                ranks,
                env=env,
                inherit_env=agent.remote,
                is_step=bool(job.via),
                ranks_on_host=len(ranks),
                mps_ranks=len(ranks),
            )
        )
    return [agents.every[host] for host in where]


def _for_ranks(job: Job, env: dict[str, str]) -> dict[str, str]:
    """Return these variables with the user's, and with those by which `import horovod` means us."""
    env = {"PYTHONFAULTHANDLER": "1"} | env | (job.env or {})  # a rank that crashes in C says where it was
    return env | rank_environment(env)


def _mpi_start(job: Job, agents: Agents, mpiexec: Mpiexec, patience: float, tell: Write | None) -> list[AgentHandle]:
    """Start mpiexec as an agent's only child, so that nothing outlives it; return the agent of each rank."""
    hosts = named(job.hosts, job.hostfile, job.np)
    agents.start([Host("localhost", 1)], None, None, patience)
    holder = agents.every[0]
    holder.holds_ranks = False
    env = without_launchers(os.environ) | {"PYTHONUNBUFFERED": "1", "HVD_SECRET_KEY": secrets.token_hex(32)}
    env = _for_ranks(job, env)
    far = not all(is_local(host.name) for host in hosts)
    reachable = _reachable(holder, job.network_interface) if far else []
    with AgentListener(agents, env["HVD_SECRET_KEY"], reachable) as listener:
        plan = mpi_command.plan(
            mpi_command.Order(
                command=[sys.executable, "-P", "-m", "hvd_kernel.processes.mpi_agent"],
                np=job.np,
                hosts=hosts,
                env=env | {ADDRESS_VARIABLE: listener.address},
                args=job.mpi_args,
                ssh_port=job.ssh_port,
                ssh_identity_file=job.ssh_identity_file,
                interface=job.network_interface,
                via=job.via if job.mpi_launcher == JSRUN else "",
            )
        )
        if tell is not None:
            tell(f"hvdrun: {shlex.join(plan.command)}: {shlex.join(job.command)}\n".encode())
        ranks = [_one(job, MPIEXEC, 0, {})]
        here = 0 if far else job.np
        if tell is not None and here:
            tell(_told_mps(holder, here, plan.env))
        holder.send(_order(job, ranks, command=plan.command, env=plan.env, folders=plan.folders, mps_ranks=here))
        placed = listener.wait(mpiexec, job.np, patience)
    mpiexec.up()
    hellos = [agent.hello for agent in placed]
    told = _placements(job, hellos) if plan.needs_placement else [plan.settle(hellos)] * job.np
    mps = _mps_by_hosts(hellos) if far else [{}] * job.np
    for rank, agent in enumerate(placed):
        ranks = [_one(job, rank, rank, told[rank])]
        # MPI has carried the environment.
        more = {"is_step": plan.needs_placement, "ranks_on_host": agent.hello["beside"], **mps[rank]}
        agent.send(_order(job, ranks, env={}, inherit_env=True, **more))
    return [*placed]


def _placements(job: Job, hellos: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Return what ranks are told whose launcher gives them no more than their numbers."""
    rendezvous = environment.rendezvous(hellos, [True] * job.np, job.network_interface)
    common = environment.shared(job.np, rendezvous, secrets.token_hex(32))
    own = environment.own([hello["host"] for hello in hellos], [hello["name"] for hello in hellos])
    return [common | each for each in own]


def _engine_start(job: Job, engine: Engine, agents: Agents, patience: float, last: ExitStack) -> list[AgentHandle]:
    """Have an engine start the ranks' processes, and their agents the ranks; return the agent of each rank."""
    secret = secrets.token_hex(32)
    with AgentListener(agents, secret, [*engine.addresses]) as listener:
        run = EngineRun(engine, Invitation(listener.address, secret, job.env or {}, engine.hidden))
        last.callback(run.close, _LET_GO_S)
        run.watch(agents.loop, lambda: run.fail(listener.there, job.np))
        placed = by_hosts(listener.wait(run, job.np, patience))
    run.unwatch(agents.loop)
    run.up()
    hellos = [agent.hello for agent in placed]
    hosts = [hello["host"] for hello in hellos]
    mps = _mps_by_hosts(hellos)
    for rank, (agent, env) in enumerate(zip(placed, _placements(job, hellos), strict=True)):
        slot = hosts[:rank].count(hosts[rank])
        command = [agent.hello["python"], *job.command[1:]] if not job.command[0] else job.command
        agent.send(
            _order(
                job,
                [_one(job, rank, slot, env)],
                command=command,
                cwd=job.cwd or agent.hello["cwd"],
                env={"PYTHONFAULTHANDLER": "1"},
                inherit_env=True,
                ranks_on_host=hosts.count(hosts[rank]),
                **mps[rank],
            )
        )
    return placed


def _mps_by_hosts(hellos: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return what each agent is told of MPS, where each holds one rank: how many share its devices, and their run."""
    run = secrets.token_hex(16)
    return [{"mps_ranks": decision.sharing(hello, hellos), "mps_run": run} for hello in hellos]


def _one(job: Job, rank: int, slot: int, env: dict[str, str]) -> RankPlan:
    """Return what an agent is told of one rank; ``slot``: which one it is on its host, for cores of its own."""
    limits = job.limits[rank] if job.limits and rank != MPIEXEC else Limits()
    return RankPlan(rank, slot, env, reads_stdin=rank == 0 and job.stdin >= 0, limits=limits)


def _reachable(holder: AgentHandle, interface: str) -> list[str]:
    """Return the addresses at which other hosts may reach this one."""
    here = addresses(holder.hello)
    outward = [address for address in here.values() if not address.startswith("127.")]
    return [here[interface]] if interface in here else outward or list(here.values())


def _order(job: Job, ranks: list[RankPlan], **rest: Any) -> StartRanks:
    """Return what an agent is told to start."""
    usual: dict[str, Any] = {"command": job.command, "cwd": job.folder, "call": job.call}
    return StartRanks(ranks=ranks, **usual | rest)


def _told(hosts: Sequence[Host], where: Sequence[int], rendezvous: tuple[str, int]) -> str:
    lines = [
        f"hvdrun: {hosts[host].name}: ranks {', '.join(str(rank) for rank, at in enumerate(where) if at == host)}\n"
        for host in range(len(hosts))
    ]
    return "".join([*lines, f"hvdrun: rendezvous at {rendezvous[0]}:{rendezvous[1]}\n"])


def _told_mps(agent: AgentHandle, ranks: int, env: Mapping[str, str]) -> bytes:
    return f"hvdrun: {agent.host.name}: MPS: {decision.look(ranks, env).sentence}\n".encode()


def _outputs(job: Job, out: Write, err: Write) -> list[tuple[OutputStream, OutputStream]]:
    outputs = []
    for rank in range(job.first, job.first + job.np):
        folder = folder_of(job.output_filename, rank, job.size) if job.output_filename else None
        pair = [
            OutputStream(
                write,
                prefixes(rank, name, prefix=job.prefix, timestamp=job.timestamp),
                folder / name if folder else None,
                holds=name == "stderr",
            )
            for name, write in (("stdout", out), ("stderr", err))
        ]
        outputs.append((pair[0], pair[1]))
    return outputs


def _outcome(job: Job, ended: JobMonitor, write: Write) -> Outcome:
    codes = tuple(ended.codes[rank] for rank in range(job.np))
    cause = ended.report_failure(write, quiet=job.quiet, first=job.first)
    if cause is None:
        return Outcome(codes, answers=ended.answers)
    status = shell_status(cause.code)
    return Outcome(codes, cause.rank, cause.words, status, cause.why, answers=ended.answers)
