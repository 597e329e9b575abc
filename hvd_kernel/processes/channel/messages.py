"""Messages of the control channel between an agent and its controller, one type each.

Terms.
  agent       the process that starts one host's ranks and ends with them or for them (agent.py)
  controller  the process that controls an agent: hvdrun's launcher, or the kernel of a notebook
"""

from __future__ import annotations

import signal
from typing import Any, Literal

from msgspec import Struct, field

from hvd_kernel.processes.limits import Limits

MPIEXEC = -1
"""Stands for mpiexec in place of a rank: it is a process of the agent like the ranks."""


FORWARDED = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT, signal.SIGWINCH)
"""Signals to hvdrun or to an agent that are for the ranks, as with Open MPI's mpirun."""

_ONE_ORDER_S = 1.0


def is_repeated(number: int, seconds: float) -> bool:
    """Return whether a signal, ``seconds`` after the first one, is the same order on another path.

    A batch system signals the processes of a job, and so do its own launchers. SIGINT comes from a terminal, each time
    that the user presses Ctrl-C.
    """
    return number != signal.SIGINT and seconds < _ONE_ORDER_S


class Message(Struct, frozen=True, tag=True):
    """Base of all messages. On the wire a message is a map with its type's name; a reader ignores unknown fields."""


# From and to every agent.


class RankExited(Message, frozen=True):
    """A process has exited; a negative status is a signal's number, as in ``subprocess``."""

    rank: int
    status: int


class Stop(Message, frozen=True):
    """Stop the ranks: SIGTERM now, SIGKILL after ``grace`` seconds."""

    grace: float


class SignalRanks(Message, frozen=True):
    """Send a signal to the ranks and the processes that they have started: one of ``FORWARDED``."""

    number: int


class StopRank(Message, frozen=True):
    """Stop one rank: SIGTERM now, SIGKILL after ``grace`` seconds."""

    rank: int
    grace: float


class ChannelClosed(Message, frozen=True):
    """The other end is gone. Never sent: ``ControlChannel.receive`` returns it last."""


# Between hvdrun and the agent of a host.


class Hello(Message, frozen=True):
    """An agent's first message: the addresses and identity of its host (``Card`` of settings.network, and more)."""

    card: dict[str, Any]


class RankPlan(Struct, frozen=True):
    """One rank to start."""

    rank: int
    slot: int = 0  # its number on its host, which determines its cores
    env: dict[str, str] = field(default_factory=dict)
    reads_stdin: bool = False
    limits: Limits = Limits()


class StartRanks(Message, frozen=True):
    """Start ranks, all with the same command."""

    command: list[str]
    cwd: str
    env: dict[str, str]
    ranks: list[RankPlan]
    folders: list[str] = field(default_factory=list)  # to remove at the end
    inherit_env: bool = False  # their environment is based on the agent's
    chosen_env: list[str] = field(default_factory=list)  # variables of ``env`` that win over the agent's
    allocated_cores: int = 0  # of the host, for the threads of its ranks; 0: unknown
    is_step: bool = False  # srun or jsrun has started the agent: its variables of a task do not apply to the ranks
    ranks_on_host: int = 0  # number of ranks that share its cores and devices; 0: for mpiexec, which passes them on
    mps_ranks: int = 0  # number of ranks that share these ranks' devices, for a private MPS daemon; 0: no daemon
    mps_run: str = (
        ""  # identifies the daemon that the agents of a host share; "": this agent holds all ranks of its host
    )
    stays: bool = False  # more ranks may follow, to replace failed ones: the agent waits for its controller
    call: bytes = b""  # the call that each rank runs; its private folder is the last argument of the command
    spares: int = 0  # number of processes that wait for that with their imports done
    grace_s: float = 0.5  # between SIGTERM and SIGKILL for the ranks, if a signal to the agent ends them


class RankStarted(Message, frozen=True):
    """A rank has started, with this process id."""

    rank: int
    pid: int


class StartFailed(Message, frozen=True):
    """The ranks cannot be started."""

    rank: int
    reason: str


class Output(Message, frozen=True):
    """Bytes that a rank has written."""

    rank: int
    stream: Literal["stdout", "stderr"]
    data: bytes


class Input(Message, frozen=True):
    """Bytes for a rank's stdin; no bytes: close it."""

    rank: int
    data: bytes


class InputTaken(Message, frozen=True):
    """The rank has read its input: send more."""

    rank: int


class Answered(Message, frozen=True):
    """The answer of a rank to the call; its exit follows."""

    rank: int
    data: bytes


class RankKilled(Message, frozen=True):
    """A rank was killed for exceeding a limit, by the agent or by Linux; its exit follows."""

    rank: int
    reason: str


class QueryRank(Message, frozen=True):
    """Query the position of a rank; inspect it from outside after ``patience`` seconds without an answer (None: never).

    ``glance``: do not query it, and report only whether it is stopped.
    """

    rank: int
    patience: float | None = None
    glance: bool = False


class RankState(Message, frozen=True):
    """The report on a queried rank (rank_channel.py), in MessagePack."""

    rank: int
    state: bytes


class FromRank(Message, frozen=True):
    """A message from a rank to the controller (protocol/elastic.py), which the agent forwards unchanged."""

    rank: int
    data: bytes


class ToRank(Message, frozen=True):
    """A message from the controller to a rank; dropped if the rank is gone."""

    rank: int
    data: bytes


class SparesReady(Message, frozen=True):
    """The number of spares that could become a rank at once; also sent by the supervisor of a notebook's cluster."""

    count: int


class SparesFailed(Message, frozen=True):
    """There are fewer spares than requested."""

    reason: str


class Notice(Message, frozen=True):
    """A notice for the user; the ranks continue. Also sent by the supervisor of a notebook's cluster."""

    text: str


class Terminated(Message, frozen=True):
    """A signal to this agent makes it stop its ranks: the controller has not requested that."""

    number: int = signal.SIGTERM
    again: bool = False  # a later signal, which kills them


class Flush(Message, frozen=True):
    """Send all output written so far, then ``Flushed``."""


class Flushed(Message, frozen=True):
    """All output written before ``Flush`` has been sent."""


# Between a notebook's kernel and the supervisor of its cluster.


class Connected(Message, frozen=True):
    """ipyparallel's controller is running: connection information for its clients, with its keys."""

    client: dict[str, Any]


class SetSpares(Message, frozen=True):
    """Keep this number of spare processes."""

    count: int


class ReplaceRanks(Message, frozen=True):
    """Start processes that replace these ranks."""

    ranks: list[int]


class RanksJoining(Message, frozen=True):
    """The process ids of replacements."""

    pids: dict[int, int]


class Resized(Message, frozen=True):
    """The new number of ranks, and the new numbers of the survivors (old -> new)."""

    n: int
    numbers: dict[int, int]


class LimitRank(Message, frozen=True):
    """Apply the limits of a rank to its process from now on."""

    pid: int
    slot: int
    limits: Limits


class Remember(Message, frozen=True):
    """The state that the next kernel of a detached cluster needs."""

    state: dict[str, Any]


class Detach(Message, frozen=True):
    """Detach the cluster: it is to outlive this kernel."""

    name: str
    place: str  # the notebook's folder
    n: int
    hours: float  # that it may wait for the next kernel


class Detached(Message, frozen=True):
    """The cluster is detached."""

    name: str


class DetachFailed(Message, frozen=True):
    """The cluster cannot be detached."""

    reason: str


class Attached(Message, frozen=True):
    """The receiver, a kernel that has connected to a detached cluster, controls it from now on."""

    client: dict[str, Any]
    remembered: dict[str, Any]
    folders: list[str]
    spares: int


class Refused(Message, frozen=True):
    """Another kernel uses the cluster; ``kernel`` is its process id."""

    kernel: int


class MoveIn(Message, frozen=True):
    """A kernel has just adopted warm ranks: change to its notebook's folder and its front end's variables."""

    folder: str
    variables: dict[str, str]


# Between kernel, supervisor and agents if an engine (Ray, Spark) starts a notebook's ranks.


class Inviting(Message, frozen=True):
    """The supervisor waits for agents at this address; they must prove that they know the secret."""

    address: str
    secret: str


class EngineEnded(Message, frozen=True):
    """The engine starts no more processes; connected agents continue."""

    reason: str


class CallBack(Message, frozen=True):
    """Connect back to the launcher as the agent of one rank: its address, the secret, and more fields of the card."""

    address: str
    secret: str
    card: dict[str, Any]


class Introduce(Message, frozen=True):
    """The number of a waiting rank, and how it reaches the controller; the agent adds the key."""

    rank: int
    size: int
    connection: dict[str, Any]


# To a process that waits to become a rank.


class EngineConnection(Message, frozen=True):
    """Connection information of ipyparallel's controller, with its keys, for ranks that MPI numbers."""

    connection: dict[str, Any]


class Preload(Message, frozen=True):
    """The modules that a spare is to import, and the variables to set before."""

    modules: list[str]
    variables: dict[str, str]


class Preloaded(Message, frozen=True):
    """The spare has imported its modules, and could become a rank at once."""


class RunProgram(Message, frozen=True):
    """Become a rank of a job: run this program in this environment."""

    env: dict[str, str]
    command: list[str]


ALL = (
    *(RankExited, Stop, SignalRanks, StopRank, ChannelClosed),
    *(Hello, StartRanks, RankStarted, StartFailed, Output, Input, InputTaken),
    *(Answered, RankKilled, Terminated, Flush, Flushed),
    *(QueryRank, RankState, FromRank, ToRank, SparesReady, SparesFailed, Notice),
    *(Connected, SetSpares, ReplaceRanks, RanksJoining, Resized, LimitRank),
    *(Remember, Detach, Detached, DetachFailed, Attached, Refused, MoveIn),
    *(Inviting, EngineEnded, CallBack, Introduce),
    *(EngineConnection, Preload, Preloaded, RunProgram),
)
