"""Run of a job: a ``Job`` in, an ``Outcome`` out.

launch -> RankStarter: agents (one per host; from MPI or a cluster engine one per rank), their hellos, an order for each
-> JobMonitor: output, input, exits -> outcome
"""

from __future__ import annotations

import os
import secrets
import shlex
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import IO, Any, Protocol

from hvd_kernel import tracking
from hvd_kernel.compat import rank_environment
from hvd_kernel.errors import ConfigError
from hvd_kernel.formatting.rank_labels import rank_list
from hvd_kernel.formatting.units import plural
from hvd_kernel.jobs import here
from hvd_kernel.jobs.grace import GracePeriod
from hvd_kernel.jobs.readers.mpirun import JSRUN
from hvd_kernel.launch.agents import AgentHandle, AgentListener, Agents
from hvd_kernel.launch.cancellation import SignalHandlers
from hvd_kernel.launch.exit_report import JobExit, recorded
from hvd_kernel.launch.forwarding import forwarded
from hvd_kernel.launch.launchers import mpi
from hvd_kernel.launch.launchers.cluster_engine import Engine, EngineRun, Invitation, by_hosts
from hvd_kernel.launch.launchers.mpi import Mpiexec
from hvd_kernel.launch.line_output import OutputStream, folder_of, prefixes, standard
from hvd_kernel.launch.monitor import JobMonitor, RankMonitor, on_sigquit
from hvd_kernel.launch.outcome import Outcome, shell_status
from hvd_kernel.launch.output_sinks import OutputLoss, RankFile, Write, report_loss, writer
from hvd_kernel.launch.placement import (
    Host,
    Part,
    carried,
    common_variables,
    is_local,
    job_hosts,
    places,
    rank_variables,
    rendezvous_address,
)
from hvd_kernel.processes import rank_agent
from hvd_kernel.processes.channel.authentication import ADDRESS_VARIABLE
from hvd_kernel.processes.channel.messages import MPIEXEC, RankPlan, StartRanks
from hvd_kernel.processes.limits import Limits
from hvd_kernel.processes.mps import decision
from hvd_kernel.processes.node_environment import is_of_node
from hvd_kernel.protocol.messages import MetricsSample, RankLeft
from hvd_kernel.settings import lookup, torchrun
from hvd_kernel.settings.lookup import without_launchers
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
    exit_report: str | None = None  # a JSON file that gets the exits of all ranks
    output_max_bytes: int = 0  # of each of these files, which is then rotated; 0: no limit
    start_timeout_s: float | None = None  # for hosts to answer; None: HOROVOD_START_TIMEOUT, else 30
    timeout_s: float | None = None  # of the whole job
    grace: GracePeriod | None = None  # for ranks that have to be stopped; None: the user's, else the platform's
    prefix: bool = True  # "[rank]<stdout>:" before every line
    timestamp: bool = False  # and the time before that
    stdin: int = -1  # descriptor that rank 0 reads from; below 0: none
    use_mpi: bool = False  # mpiexec starts the ranks
    mpi_args: tuple[str, ...] = ()
    part: Part | None = None  # of a job with several launchers, on this host
    via: str = ""  # srun or jsrun: an allocation's own launcher, which starts the agents instead of ssh
    engine: Engine | None = None  # of a cluster: starts the ranks' processes, in their own environment plus ``env``
    call: bytes = b""  # function call of each rank (``pack_call``): the command gets the path of a folder with it
    on_logged: Callable[[bytes], None] | None = None  # receives the values that ranks of an elastic job log
    on_sample: Callable[[MetricsSample | RankLeft], None] | None = None  # receives telemetry of ranks with a call
    cores: Mapping[str, int] = field(default_factory=dict)  # allocated on each host; without an entry: unknown
    limits: tuple[Limits, ...] = ()  # of each rank; (): none
    verbose: bool = False  # log on stderr what is started where
    quiet: bool = False  # write neither tracebacks of failed ranks nor the verdict: the caller reports them

    def __post_init__(self) -> None:
        if self.np < 1:
            raise ConfigError(f"np={self.np}: a job has 1 rank or more, e.g. np=4.")
        if not self.command:
            raise ConfigError("there is no command to run: e.g. hvdrun -np 4 python train.py.")
        if self.limits and len(self.limits) != self.np:
            raise ConfigError(f"limits are for {plural(len(self.limits), 'rank')}, but np={self.np}.")
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
    JobCancelled
        A signal to hvdrun or to an agent has cancelled the job.
    """
    env = without_launchers(os.environ) | (job.env or {})
    job = replace(job, env=(job.env or {}) | tracking.rank_environment(env))
    default_out, default_err = standard()
    with recorded(job.exit_report) as record:
        out = writer(stdout, default_out, record.loss, "stdout")
        err = writer(stderr, default_err, record.loss, "stderr")
        outcome = record.outcome = _run(job, env, out, err, record)
    return outcome


def _run(job: Job, env: Mapping[str, str], out: Write, err: Write, record: JobExit) -> Outcome:
    """Start the ranks, forward their output and wait for their exit."""
    grace = job.grace or here.grace(env)
    job = replace(job, grace=grace)
    patience = job.start_timeout_s or lookup.start_timeout(env)
    agents = Agents(err)
    with SignalHandlers(agents.loop) as handlers, ExitStack() as at_end:
        start = time.monotonic()
        starter = _starter(job, agents, patience, err)
        at_end.callback(report_loss, record.loss, err)
        at_end.callback(starter.close)
        at_end.callback(agents.end)
        at_end.callback(handlers.ignore)
        rank_agents = _start(job, starter)
        outputs = _outputs(job, out, err, record.loss)
        for output in (output for pair in outputs for output in pair):
            at_end.callback(output.close)
        watches = lookup.engine_options(env).get("stall_warning_s") != "0"
        monitor = RankMonitor(rank_agents, job.first, job.size, err, watches=watches)
        running = JobMonitor(
            agents,
            outputs,
            rank_agents,
            grace,
            starter.mpiexec,
            monitor=monitor,
            on_sample=job.on_sample or _ignore,
        )
        record.ranks = partial(running.exits, job.first)
        handlers.pass_to(running.cancellation.on_signal)
        remaining = None if job.timeout_s is None else start + job.timeout_s - time.monotonic()
        try:
            with forwarded(agents), on_sigquit(monitor.request_report):
                running.run(job.stdin, remaining)
        except KeyboardInterrupt:
            running.stop()
            running.run(-1, None)
            raise
        outcome = _outcome(job, running, err)
        if outcome.failed is not None:
            record.first_cause = running.exit_of(outcome.failed, job.first)
        return outcome


def _ignore(_sample: MetricsSample) -> None:
    """Drop telemetry."""


class RankStarter(Protocol):
    """Starts the agents of a job, numbers its ranks, and owns the variables of each: this package, MPI or an engine."""

    @property
    def mpiexec(self) -> Mpiexec | None:
        """The output of mpiexec, if that starts the agents."""

    def connect(self) -> list[AgentHandle]:
        """Start the agents; return the agent of each rank, in the order of the ranks."""

    def variables(self, rank_agents: Sequence[AgentHandle]) -> list[dict[str, str]]:
        """Return the variables of each rank alone."""

    def order(self, agent: AgentHandle, ranks: Sequence[int]) -> dict[str, Any]:
        """Return the fields of the order to start these ranks, besides those of every job."""

    def close(self) -> None:
        """Wait for the processes that have started the agents, which have exited."""


def _starter(job: Job, agents: Agents, patience: float, write: Write) -> RankStarter:
    log = write if job.verbose else None
    if job.mpi_launcher:
        return _StartByMpi(job, agents, patience, log, Mpiexec(write, job.mpi_launcher))
    if job.engine is not None:
        return _StartByEngine(job, job.engine, agents, patience)
    return _StartByHosts(job, agents, patience, log)


def _start(job: Job, starter: RankStarter) -> list[AgentHandle]:
    """Start the ranks; return the agent of each."""
    rank_agents = starter.connect()
    variables = starter.variables(rank_agents)
    ranks_of: dict[AgentHandle, list[int]] = {}
    for rank, agent in enumerate(rank_agents):
        ranks_of.setdefault(agent, []).append(rank)
    for agent, ranks in ranks_of.items():
        plans = [_rank_plan(job, rank, variables[rank]) for rank in ranks]
        agent.send(_order(job, plans, **starter.order(agent, ranks)))
    return rank_agents


class _StartByHosts:
    """One agent on each host, which the launcher starts here, through ssh, or by the launcher of an allocation."""

    mpiexec = None

    def __init__(self, job: Job, agents: Agents, patience: float, log: Write | None) -> None:
        self._job, self._agents, self._patience, self._log = job, agents, patience, log
        self._common: dict[str, str] = {}

    def connect(self) -> list[AgentHandle]:
        """Start an agent on every host; ranks fill one host after another."""
        job = self._job
        hosts = job_hosts(job.hosts, job.hostfile, job.np)
        host_of = places(hosts, job.np)
        used = hosts[: host_of[-1] + 1]
        self._agents.start(used, job.ssh_port, job.ssh_identity_file, self._patience, job.via)
        return [self._agents.every[host] for host in host_of]

    def variables(self, rank_agents: Sequence[AgentHandle]) -> list[dict[str, str]]:
        """Return the variables that number the ranks; hosts have the names that the user has given them."""
        job, agents = self._job, self._agents.every
        if job.part is not None:
            rendezvous, secret, torch_port = job.part.rendezvous, job.part.secret, job.part.torch_port
            variables = job.part.rank_variables(job.np, agents[0].hello["name"])
        else:
            hellos, remote = [agent.hello for agent in agents], [agent.remote for agent in agents]
            rendezvous, secret = rendezvous_address(hellos, remote, job.network_interface), secrets.token_hex(32)
            torch_port = hellos[0]["torch_port"]
            variables = rank_variables(
                [agent.hello["host"] for agent in rank_agents], [agent.host.name for agent in rank_agents]
            )
        self._common = common_variables(job.size, rendezvous, secret, torch_port)
        if self._log is not None:
            self._log(_placement_text(agents, rank_agents, rendezvous).encode())
        return variables

    def order(self, agent: AgentHandle, ranks: Sequence[int]) -> dict[str, Any]:
        """Return the environment of the ranks: the launcher's, of which another host gets what makes sense there."""
        env = without_launchers(os.environ)
        env = _for_ranks(self._job, (carried(env) if agent.remote else env) | self._common)
        if self._log is not None and not agent.remote:
            self._log(_mps_text(agent, len(ranks), env))
        return {
            "env": env,
            "inherit_env": agent.remote,
            "chosen_env": chosen_variables(self._job),
            "allocated_cores": self._job.cores.get(agent.host.name, 0),
            "is_step": bool(self._job.via),
            "ranks_on_host": len(ranks),
            "mps_ranks": len(ranks),
        } | ({"grace_s": self._job.grace.cancelled_s} if self._job.grace else {})

    def close(self) -> None:
        """Do nothing: the agents were children of this process."""


class _StartByMpi:
    """One agent per rank below mpiexec, which is the only child of an agent here that stops it. MPI numbers the ranks.

    A launcher such as jsrun sets only rank and size: the ranks then get their places and rendezvous from this process.
    """

    def __init__(self, job: Job, agents: Agents, patience: float, log: Write | None, mpiexec: Mpiexec) -> None:
        self._job, self._agents, self._patience, self._log = job, agents, patience, log
        self.mpiexec = mpiexec
        self._far = False  # ranks may be on other hosts
        self._plan: mpi.MpiexecPlan | None = None
        self._mps: list[dict[str, Any]] = [{}] * job.np

    def connect(self) -> list[AgentHandle]:
        """Start mpiexec, and wait until the agent of every rank has connected."""
        job, log = self._job, self._log
        hosts = job_hosts(job.hosts, job.hostfile, job.np)
        self._far = not all(is_local(host.name) for host in hosts)
        self._agents.start([Host("localhost", 1)], None, None, self._patience)
        holder = self._agents.every[0]
        holder.holds_ranks = False
        env = without_launchers(os.environ) | {"PYTHONUNBUFFERED": "1", "HVD_SECRET_KEY": secrets.token_hex(32)}
        env = _for_ranks(job, env)
        reachable = _reachable(holder, job.network_interface) if self._far else []
        with AgentListener(self._agents, env["HVD_SECRET_KEY"], reachable) as listener:
            plan = self._plan = mpi.plan(
                mpi.Order(
                    command=[sys.executable, "-P", "-m", "hvd_kernel.processes.rank_agent", rank_agent.MPI],
                    np=job.np,
                    hosts=hosts,
                    env=env | {ADDRESS_VARIABLE: listener.address},
                    args=job.mpi_args,
                    ssh_port=job.ssh_port,
                    ssh_identity_file=job.ssh_identity_file,
                    interface=job.network_interface,
                    via=job.via if job.mpi_launcher == JSRUN else "",
                    chosen=chosen_variables(job),
                )
            )
            if log is not None:
                log(f"hvdrun: {shlex.join(plan.command)}: {shlex.join(job.command)}\n".encode())
            mps_ranks = 0 if self._far else job.np
            if log is not None and mps_ranks:
                log(_mps_text(holder, mps_ranks, plan.env))
            fields = {"command": plan.command, "env": plan.env, "folders": plan.folders, "mps_ranks": mps_ranks}
            holder.send(_order(job, [_rank_plan(job, MPIEXEC, {})], **fields, call=b""))
            rank_agents = listener.wait(self.mpiexec, job.np, self._patience)
        self.mpiexec.up()
        return [*rank_agents]

    def variables(self, rank_agents: Sequence[AgentHandle]) -> list[dict[str, str]]:
        """Return the variables of MPI's network, or the places of ranks whose launcher sets only rank and size."""
        assert self._plan is not None
        hellos = [agent.hello for agent in rank_agents]
        if self._far:
            self._mps = _mps_by_hosts(hellos)
        if self._plan.needs_placement:
            return _placements(self._job, hellos)
        host, _ = rendezvous_address(hellos, [True] * self._job.np, self._job.network_interface)
        address = {torchrun.ADDRESS: torchrun.address_text(host, hellos[0]["torch_port"])}
        return [self._plan.network_variables(hellos) | address] * self._job.np

    def order(self, agent: AgentHandle, ranks: Sequence[int]) -> dict[str, Any]:
        """Return no environment: MPI has passed it on."""
        assert self._plan is not None
        fields = {"is_step": self._plan.needs_placement, "ranks_on_host": agent.hello["beside"]}
        return {"env": {}, "inherit_env": True} | fields | self._mps[ranks[0]]

    def close(self) -> None:
        """Write the pending output of mpiexec."""
        self.mpiexec.close()


class _StartByEngine:
    """One agent per rank in the processes that a cluster engine starts; hosts are contiguous ranks."""

    mpiexec = None

    def __init__(self, job: Job, engine: Engine, agents: Agents, patience: float) -> None:
        self._job, self._engine, self._agents, self._patience = job, engine, agents, patience
        self._run: EngineRun | None = None
        self._ranks_on_host: Counter[str] = Counter()
        self._mps: list[dict[str, Any]] = []

    def connect(self) -> list[AgentHandle]:
        """Start the engine, and wait until the agent of every rank has connected."""
        job, engine, secret = self._job, self._engine, secrets.token_hex(32)
        with AgentListener(self._agents, secret, [*engine.addresses]) as listener:
            run = self._run = EngineRun(engine, Invitation(listener.address, secret, job.env or {}, engine.hidden))
            run.watch(self._agents.loop, lambda: run.fail(listener.ready, job.np))
            rank_agents = by_hosts(listener.wait(run, job.np, self._patience))
        run.unwatch(self._agents.loop)
        run.up()
        return rank_agents

    def variables(self, rank_agents: Sequence[AgentHandle]) -> list[dict[str, str]]:
        """Return the places of the ranks."""
        hellos = [agent.hello for agent in rank_agents]
        self._ranks_on_host = Counter(hello["host"] for hello in hellos)
        self._mps = _mps_by_hosts(hellos)
        return _placements(self._job, hellos)

    def order(self, agent: AgentHandle, ranks: Sequence[int]) -> dict[str, Any]:
        """Return the interpreter and folder of the engine's process, unless the job has others."""
        job, hello = self._job, agent.hello
        return {
            "command": job.command if job.command[0] else [hello["python"], *job.command[1:]],
            "cwd": job.cwd or hello["cwd"],
            "env": {"PYTHONFAULTHANDLER": "1"},
            "inherit_env": True,
            "ranks_on_host": self._ranks_on_host[hello["host"]],
        } | self._mps[ranks[0]]

    def close(self) -> None:
        """Wait for the engine's end."""
        if self._run is not None:
            self._run.close(_ENGINE_CLOSE_S)


def _for_ranks(job: Job, env: dict[str, str]) -> dict[str, str]:
    """Return these variables with the user's, and with those that make `import horovod` import hvd_kernel."""
    env = {"PYTHONFAULTHANDLER": "1"} | env | (job.env or {})  # a rank that crashes in C prints its Python stack
    return env | rank_environment(env)


def chosen_variables(job: Job) -> list[str]:
    """Return the variables of the job's own environment that win over those of another node."""
    return [name for name in job.env or {} if is_of_node(name)]


def _placements(job: Job, hellos: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Return all variables of ranks whose launcher sets only rank and size."""
    address = rendezvous_address(hellos, [True] * job.np, job.network_interface)
    common = common_variables(job.np, address, secrets.token_hex(32), hellos[0]["torch_port"])
    variables = rank_variables([hello["host"] for hello in hellos], [hello["name"] for hello in hellos])
    return [common | of_rank for of_rank in variables]


def _mps_by_hosts(hellos: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the MPS fields of each rank's order: the number of ranks that share its devices, and their run's id."""
    run = secrets.token_hex(16)
    return [{"mps_ranks": decision.sharing(hello, hellos), "mps_run": run} for hello in hellos]


def _rank_plan(job: Job, rank: int, variables: dict[str, str]) -> RankPlan:
    """Return the plan of one rank; its slot, by which it gets its cores, is its number on its host if that is known."""
    limits = job.limits[rank] if job.limits and rank != MPIEXEC else Limits()
    slot = int(variables.get("HOROVOD_LOCAL_RANK", max(rank, 0)))
    return RankPlan(rank, slot, variables, reads_stdin=rank == 0 and job.stdin >= 0, limits=limits)


def _reachable(holder: AgentHandle, interface: str) -> list[str]:
    """Return the addresses at which other hosts may reach this one."""
    by_interface = addresses(holder.hello)
    external = [address for address in by_interface.values() if not address.startswith("127.")]
    return [by_interface[interface]] if interface in by_interface else external or list(by_interface.values())


def _order(job: Job, ranks: list[RankPlan], **fields: Any) -> StartRanks:
    """Return an agent's order to start ranks."""
    defaults: dict[str, Any] = {"command": job.command, "cwd": job.folder, "call": job.call}
    return StartRanks(ranks=ranks, **defaults | fields)


def _placement_text(
    agents: Sequence[AgentHandle], rank_agents: Sequence[AgentHandle], rendezvous: tuple[str, int]
) -> str:
    lines = [
        f"hvdrun: {agent.host.name}: {rank_list(rank for rank, other in enumerate(rank_agents) if other is agent)}\n"
        for agent in agents
    ]
    return "".join([*lines, f"hvdrun: rendezvous at {rendezvous[0]}:{rendezvous[1]}\n"])


def _mps_text(agent: AgentHandle, ranks: int, env: Mapping[str, str]) -> bytes:
    return f"hvdrun: {agent.host.name}: MPS: {decision.inspect(ranks, env).sentence}\n".encode()


def _outputs(job: Job, out: Write, err: Write, loss: OutputLoss) -> list[tuple[OutputStream, OutputStream]]:
    outputs = []
    for rank in range(job.first, job.first + job.np):
        folder = folder_of(job.output_filename, rank, job.size) if job.output_filename else None
        pair = [
            OutputStream(
                write,
                prefixes(rank, name, prefix=job.prefix, timestamp=job.timestamp),
                RankFile(folder / name, loss, job.output_filename or "", job.output_max_bytes) if folder else None,
                holds=name == "stderr",
            )
            for name, write in (("stdout", out), ("stderr", err))
        ]
        outputs.append((pair[0], pair[1]))
    return outputs


def _outcome(job: Job, monitor: JobMonitor, write: Write) -> Outcome:
    if cancelled := monitor.cancelled_error(job.first):
        raise cancelled
    codes = tuple(monitor.codes[rank] for rank in range(job.np))
    cause = monitor.report_failure(write, quiet=job.quiet, first=job.first)
    if cause is None:
        return Outcome(codes, answers=monitor.answers)
    status = shell_status(cause.code)
    return Outcome(codes, cause.rank, cause.tail, status, cause.reason, answers=monitor.answers)
