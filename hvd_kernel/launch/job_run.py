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
from hvd_kernel.launch.forwarding import forwarded
from hvd_kernel.launch.launchers import mpi_command
from hvd_kernel.launch.launchers.agent_listener import AgentListener
from hvd_kernel.launch.launchers.cluster_engine import Engine, EngineRun, Invitation, by_hosts
from hvd_kernel.launch.launchers.mpiexec import Mpiexec
from hvd_kernel.launch.line_output import OutputStream, Write, folder_of, prefixes, standard, writer
from hvd_kernel.launch.monitor import JobMonitor
from hvd_kernel.launch.outcome import shell_status
from hvd_kernel.launch.placement import Host, is_local, job_hosts, places
from hvd_kernel.launch.whereabouts import RankMonitor, on_sigquit
from hvd_kernel.processes.channel.authentication import ADDRESS_VARIABLE
from hvd_kernel.processes.channel.messages import MPIEXEC, RankPlan, StartRanks
from hvd_kernel.processes.limits import Limits
from hvd_kernel.processes.mps import decision
from hvd_kernel.protocol.messages import MetricsSample, RankLeft
from hvd_kernel.settings import lookup
from hvd_kernel.settings.launchers import without_launchers
from hvd_kernel.settings.network import addresses

_ENGINE_CLOSE_S = 10.0  # time for an engine to notice that the ranks have exited


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
    """A command, the number of its ranks, and how and where they run."""

    command: list[str]  # with an engine its first word may be empty: the Python of the engine's process
    np: int
    hosts: str | None = None  # "a:2,b:2"; None: this host
    env: dict[str, str] | None = None  # added to this process's environment; an empty value counts as unset
    hostfile: str | None = None
    cwd: str | None = None  # None: this process's, on every host
    ssh_port: int | None = None
    ssh_identity_file: str | None = None
    network_interface: str = ""  # of the rendezvous and the ranks' traffic; empty: the one with the route there
    output_filename: str | None = None  # a folder that gets rank.N/stdout and rank.N/stderr
    start_timeout_s: float | None = None  # for hosts to answer; None: HOROVOD_START_TIMEOUT, else 30
    timeout_s: float | None = None  # of the whole job
    grace_s: float = 5.0  # between SIGTERM and SIGKILL, for ranks that have to be stopped
    prefix: bool = True  # "[rank]<stdout>:" before every line
    timestamp: bool = False  # and the time before that
    stdin: int = -1  # descriptor that rank 0 reads from; below 0: none
    use_mpi: bool = False  # mpiexec starts the ranks
    mpi_args: tuple[str, ...] = ()
    part: environment.Part | None = None  # of a job with several launchers, on this host
    via: str = ""  # srun or jsrun: an allocation's own launcher, which starts the agents instead of ssh
    engine: Engine | None = None  # of a cluster: starts the ranks' processes, in their own environment plus ``env``
    call: bytes = b""  # function call of each rank (``pack_call``): the command gets the path of a folder with it
    on_logged: Callable[[bytes], None] | None = None  # receives the values that ranks of an elastic job log
    on_sample: Callable[[MetricsSample | RankLeft], None] | None = None  # receives telemetry of ranks with a call
    limits: tuple[Limits, ...] = ()  # of each rank; (): none
    verbose: bool = False  # log on stderr what is started where
    quiet: bool = False  # write neither tracebacks of failed ranks nor the verdict: the caller reports them

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
        """Return the directory in which ranks start, unless their engine has one of its own."""
        return self.cwd or current_folder()

    @property
    def mpi_launcher(self) -> str:
        """Return the program that starts an agent for each rank; empty: hvdrun starts one on each host."""
        return self.via if self.via == JSRUN else "mpiexec" if self.use_mpi else ""

    @property
    def size(self) -> int:
        """Return the number of ranks, including those of other launchers."""
        return self.np * (self.part.parts if self.part else 1)

    @property
    def first(self) -> int:
        """Return the number of the first rank that this launcher starts."""
        return self.part.index * self.np if self.part else 0


@dataclass(frozen=True)
class Outcome:
    """The exit codes of the ranks, and the failure. A code below 0 is a signal's number, as in ``subprocess``."""

    codes: tuple[int, ...]
    failed: int | None = None  # the rank that failed first, for a reason of its own
    last_lines: tuple[str, ...] = ()  # the end of its stderr, with a whole traceback
    status: int = 0  # the shell's status of the job: the failed rank's; 128 + N for signal N
    reason: str = ""  # a limit that it has exceeded: "killed for memory: 1.02 GiB of its limit of 1 GiB"
    workers: tuple[int, ...] = ()  # of an elastic job: the process of each rank, by its unique number
    failed_worker: int | None = None  # the process of the rank ``failed``
    answers: Mapping[int, bytes] = field(default_factory=dict)  # to the job's call, of the ranks that sent one


def launch(job: Job, *, stdout: IO[Any] | None = None, stderr: IO[Any] | None = None) -> Outcome:
    """Start the ranks, forward their output, wait for their exit, and leave no process behind.

    Output goes to this process's streams by default. A rank that fails ends the others. Ctrl-C (KeyboardInterrupt)
    stops all of them and is raised again.

    Raises
    ------
    ConfigError
        The description of the job is not valid.
    ClusterError
        The ranks could not be started, a host was lost, or ``timeout_s`` is over.
    """
    env = without_launchers(os.environ) | (job.env or {})
    job = replace(job, env=(job.env or {}) | tracking.rank_environment(env))
    patience = job.start_timeout_s or lookup.start_timeout(env)
    start = time.monotonic()
    default_out, default_err = standard()
    out, err = writer(stdout, default_out), writer(stderr, default_err)
    log = err if job.verbose else None
    outputs: list[tuple[OutputStream, OutputStream]] = []
    after_agents = ExitStack()  # closed when the agents are
    agents, mpiexec = Agents(err), Mpiexec(err, job.mpi_launcher) if job.mpi_launcher else None
    try:
        if mpiexec is not None:
            rank_agents = _start_by_mpi(job, agents, mpiexec, patience, log)
        elif job.engine is not None:
            rank_agents = _start_by_engine(job, job.engine, agents, patience, after_agents)
        else:
            rank_agents = _start(job, agents, patience, log)
        outputs = _outputs(job, out, err)
        watches = lookup.engine_options(env).get("stall_warning_s") != "0"
        monitor = RankMonitor(rank_agents, job.first, job.size, err, watches=watches)
        running = JobMonitor(
            agents, outputs, rank_agents, job.grace_s, mpiexec, monitor=monitor, on_sample=job.on_sample or _ignore
        )
        remaining = None if job.timeout_s is None else start + job.timeout_s - time.monotonic()
        try:
            with forwarded(agents), on_sigquit(monitor.request_report):
                running.run(job.stdin, remaining)
        except KeyboardInterrupt:
            running.stop()
            running.run(-1, None)
            raise
        return _outcome(job, running, err)
    finally:
        agents.end()
        after_agents.close()
        if mpiexec is not None:
            mpiexec.close()
        for output in (output for pair in outputs for output in pair):
            output.close()


def _ignore(_sample: MetricsSample) -> None:
    """Drop telemetry."""


def _start(job: Job, agents: Agents, patience: float, log: Write | None) -> list[AgentHandle]:
    """Start the ranks by an agent on each host; return the agent of each rank."""
    hosts = job_hosts(job.hosts, job.hostfile, job.np)
    host_of = places(hosts, job.np)
    used = hosts[: host_of[-1] + 1]
    agents.start(used, job.ssh_port, job.ssh_identity_file, patience, job.via)
    hellos = [agent.hello for agent in agents.every]
    if job.part is not None:
        rendezvous, secret, size = job.part.rendezvous, job.part.secret, job.np * job.part.parts
        variables = job.part.own(job.np, hellos[0]["name"])
    else:
        rendezvous = environment.rendezvous(hellos, [agent.remote for agent in agents.every], job.network_interface)
        secret, size = secrets.token_hex(32), job.np
        variables = environment.own([hellos[host]["host"] for host in host_of], [used[host].name for host in host_of])
    common = environment.shared(size, rendezvous, secret)
    if log is not None:
        log(_placement_text(used, host_of, rendezvous).encode())
    for index, agent in enumerate(agents.every):
        ranks = [
            _rank_plan(job, rank, int(variables[rank]["HOROVOD_LOCAL_RANK"]), variables[rank])
            for rank in range(job.np)
            if host_of[rank] == index
        ]
        env = without_launchers(os.environ)
        env = _for_ranks(job, (environment.carried(env) if agent.remote else env) | common)
        if log is not None and not agent.remote:
            log(_mps_text(agent, len(ranks), env))
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
    return [agents.every[host] for host in host_of]


def _for_ranks(job: Job, env: dict[str, str]) -> dict[str, str]:
    """Return these variables with the user's, and with those that make `import horovod` import hvd_kernel."""
    env = {"PYTHONFAULTHANDLER": "1"} | env | (job.env or {})  # a rank that crashes in C prints its Python stack
    return env | rank_environment(env)


def _start_by_mpi(job: Job, agents: Agents, mpiexec: Mpiexec, patience: float, log: Write | None) -> list[AgentHandle]:
    """Start the ranks by mpiexec, the only child of an agent, which stops it; return the agent of each rank."""
    hosts = job_hosts(job.hosts, job.hostfile, job.np)
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
        if log is not None:
            log(f"hvdrun: {shlex.join(plan.command)}: {shlex.join(job.command)}\n".encode())
        ranks = [_rank_plan(job, MPIEXEC, 0, {})]
        mps_ranks = 0 if far else job.np
        if log is not None and mps_ranks:
            log(_mps_text(holder, mps_ranks, plan.env))
        holder.send(_order(job, ranks, command=plan.command, env=plan.env, folders=plan.folders, mps_ranks=mps_ranks))
        rank_agents = listener.wait(mpiexec, job.np, patience)
    mpiexec.up()
    hellos = [agent.hello for agent in rank_agents]
    variables = _placements(job, hellos) if plan.needs_placement else [plan.network_variables(hellos)] * job.np
    mps = _mps_by_hosts(hellos) if far else [{}] * job.np
    for rank, agent in enumerate(rank_agents):
        ranks = [_rank_plan(job, rank, rank, variables[rank])]
        # MPI has passed the environment on.
        options = {"is_step": plan.needs_placement, "ranks_on_host": agent.hello["beside"], **mps[rank]}
        agent.send(_order(job, ranks, env={}, inherit_env=True, **options))
    return [*rank_agents]


def _placements(job: Job, hellos: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Build the environment of ranks whose launcher sets only rank and size."""
    rendezvous = environment.rendezvous(hellos, [True] * job.np, job.network_interface)
    common = environment.shared(job.np, rendezvous, secrets.token_hex(32))
    variables = environment.own([hello["host"] for hello in hellos], [hello["name"] for hello in hellos])
    return [common | of_rank for of_rank in variables]


def _start_by_engine(
    job: Job, engine: Engine, agents: Agents, patience: float, after_agents: ExitStack
) -> list[AgentHandle]:
    """Start the ranks by agents in processes that an engine starts; return the agent of each rank."""
    secret = secrets.token_hex(32)
    with AgentListener(agents, secret, [*engine.addresses]) as listener:
        run = EngineRun(engine, Invitation(listener.address, secret, job.env or {}, engine.hidden))
        after_agents.callback(run.close, _ENGINE_CLOSE_S)
        run.watch(agents.loop, lambda: run.fail(listener.ready, job.np))
        rank_agents = by_hosts(listener.wait(run, job.np, patience))
    run.unwatch(agents.loop)
    run.up()
    hellos = [agent.hello for agent in rank_agents]
    hosts = [hello["host"] for hello in hellos]
    mps = _mps_by_hosts(hellos)
    for rank, (agent, env) in enumerate(zip(rank_agents, _placements(job, hellos), strict=True)):
        slot = hosts[:rank].count(hosts[rank])
        command = [agent.hello["python"], *job.command[1:]] if not job.command[0] else job.command
        agent.send(
            _order(
                job,
                [_rank_plan(job, rank, slot, env)],
                command=command,
                cwd=job.cwd or agent.hello["cwd"],
                env={"PYTHONFAULTHANDLER": "1"},
                inherit_env=True,
                ranks_on_host=hosts.count(hosts[rank]),
                **mps[rank],
            )
        )
    return rank_agents


def _mps_by_hosts(hellos: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the MPS fields of each rank's order: the number of ranks that share its devices, and their run's id."""
    run = secrets.token_hex(16)
    return [{"mps_ranks": decision.sharing(hello, hellos), "mps_run": run} for hello in hellos]


def _rank_plan(job: Job, rank: int, slot: int, env: dict[str, str]) -> RankPlan:
    """Return the plan of one rank; ``slot``: its number on its host, by which it gets its cores."""
    limits = job.limits[rank] if job.limits and rank != MPIEXEC else Limits()
    return RankPlan(rank, slot, env, reads_stdin=rank == 0 and job.stdin >= 0, limits=limits)


def _reachable(holder: AgentHandle, interface: str) -> list[str]:
    """Return the addresses at which other hosts may reach this one."""
    by_interface = addresses(holder.hello)
    external = [address for address in by_interface.values() if not address.startswith("127.")]
    return [by_interface[interface]] if interface in by_interface else external or list(by_interface.values())


def _order(job: Job, ranks: list[RankPlan], **fields: Any) -> StartRanks:
    """Return an agent's order to start ranks."""
    defaults: dict[str, Any] = {"command": job.command, "cwd": job.folder, "call": job.call}
    return StartRanks(ranks=ranks, **defaults | fields)


def _placement_text(hosts: Sequence[Host], host_of: Sequence[int], rendezvous: tuple[str, int]) -> str:
    lines = [
        f"hvdrun: {host.name}: ranks {', '.join(str(rank) for rank, at in enumerate(host_of) if at == index)}\n"
        for index, host in enumerate(hosts)
    ]
    return "".join([*lines, f"hvdrun: rendezvous at {rendezvous[0]}:{rendezvous[1]}\n"])


def _mps_text(agent: AgentHandle, ranks: int, env: Mapping[str, str]) -> bytes:
    return f"hvdrun: {agent.host.name}: MPS: {decision.inspect(ranks, env).sentence}\n".encode()


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


def _outcome(job: Job, monitor: JobMonitor, write: Write) -> Outcome:
    codes = tuple(monitor.codes[rank] for rank in range(job.np))
    cause = monitor.report_failure(write, quiet=job.quiet, first=job.first)
    if cause is None:
        return Outcome(codes, answers=monitor.answers)
    status = shell_status(cause.code)
    return Outcome(codes, cause.rank, cause.tail, status, cause.reason, answers=monitor.answers)
