"""Messages of the control channel, each a type: what an agent and its controller tell each other.

Terms.
  agent       the process that starts one host's ranks and ends with them or for them (agent.py)
  controller  who tells it what to do: hvdrun's launcher, or the kernel of a notebook
"""

from __future__ import annotations

import signal
from typing import Any, Literal

from msgspec import Struct, field

from hvd_kernel.processes.resources.limits import Limits

MPIEXEC = -1
"""Stands for mpiexec where a rank is named: an agent's process as the ranks are."""


FORWARDED = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT, signal.SIGWINCH)
"""Signals to hvdrun or to an agent that are for the ranks, as with Open MPI's mpirun."""


class Message(Struct, frozen=True, tag=True):
    """Base of all of them. On the wire it is a map with its type's name; fields unknown to a reader are ignored."""


# From every agent, or to it.


class RankExited(Message, frozen=True):
    """A process has ended; a status below 0 is a signal's number, as in ``subprocess``."""

    rank: int
    status: int


class Stop(Message, frozen=True):
    """End the ranks: SIGTERM now, SIGKILL after ``grace`` seconds."""

    grace: float


class SignalRanks(Message, frozen=True):
    """Send a signal to the ranks and the processes that they have started: one of ``FORWARDED``."""

    number: int


class StopRank(Message, frozen=True):
    """End one rank: SIGTERM now, SIGKILL after ``grace`` seconds; the others go on."""

    rank: int
    grace: float


class ChannelClosed(Message, frozen=True):
    """The other end is gone. Never sent: ``ControlChannel.receive`` gives it last."""


# Between hvdrun and the agent of a host.


class Hello(Message, frozen=True):
    """An agent's first message: how its host can be reached (``Card`` of settings.network, and more)."""

    card: dict[str, Any]


class RankPlan(Struct, frozen=True):
    """One rank that is to be started."""

    rank: int
    slot: int = 0  # which one it is on its host, for cores of its own
    env: dict[str, str] = field(default_factory=dict)
    reads_stdin: bool = False
    limits: Limits = Limits()


class StartRanks(Message, frozen=True):
    """Start ranks, all with this command."""

    command: list[str]
    cwd: str
    env: dict[str, str]
    ranks: list[RankPlan]
    folders: list[str] = field(default_factory=list)  # to remove at the end
    inherit_env: bool = False  # the agent's own environment is their base
    is_step: bool = False  # srun or jsrun has started the agent: what it says of its own task is not theirs
    ranks_on_host: int = 0  # they share its cores and devices; 0: this is mpiexec, which hands all of them on
    mps_ranks: int = 0  # how many share these ranks' devices, for a private MPS daemon; 0: none, whoever shares them
    mps_run: str = ""  # by which the agents of a host share one daemon; empty: this agent holds all of its host's ranks
    stays: bool = False  # more of them may follow, in place of some that fail: the agent waits for its controller
    call: bytes = b""  # what each carries out, in a private folder whose path is the last word of the command
    spares: int = 0  # processes that are to wait for that, their imports done


class StartFailed(Message, frozen=True):
    """The ranks cannot be started, and why."""

    rank: int
    why: str


class Output(Message, frozen=True):
    """Bytes that a rank wrote."""

    rank: int
    stream: Literal["stdout", "stderr"]
    data: bytes


class Input(Message, frozen=True):
    """Bytes for a rank's stdin; none: its end."""

    rank: int
    data: bytes


class InputTaken(Message, frozen=True):
    """The rank has taken its input: send more."""

    rank: int


class Answered(Message, frozen=True):
    """What a rank has left as its answer to the call; its end follows."""

    rank: int
    data: bytes


class RankKilled(Message, frozen=True):
    """A rank was killed for a limit, by the agent or by the kernel, and why; its end follows."""

    rank: int
    why: str


class AskRank(Message, frozen=True):
    """Where is the rank? One that has not answered within ``patience`` seconds is looked at from outside; None: not.

    ``glance``: it is not asked, and only one that is stopped is told of.
    """

    rank: int
    patience: float | None = None
    glance: bool = False


class RankState(Message, frozen=True):
    """What is known of a rank that was asked (rank_channel.py), in MessagePack."""

    rank: int
    state: bytes


class RankSaid(Message, frozen=True):
    """A rank has something for the controller (protocol/elastic.py), which the agent passes on as it is."""

    rank: int
    data: bytes


class TellRank(Message, frozen=True):
    """The controller has something for a rank; nothing happens where the rank is gone."""

    rank: int
    data: bytes


class SparesReady(Message, frozen=True):
    """So many spares could become a rank at once. That of a notebook's cluster, too."""

    count: int


class SparesFailed(Message, frozen=True):
    """There are fewer spares than are wanted, and why."""

    why: str


class Notice(Message, frozen=True):
    """Something that the user should know; the ranks go on. The supervisor of a notebook's cluster sends it, too."""

    text: str


class Terminated(Message, frozen=True):
    """Somebody else than the controller has this agent end its ranks."""


class Flush(Message, frozen=True):
    """Send all output there is so far, then ``Flushed``."""


class Flushed(Message, frozen=True):
    """Everything that was written before ``Flush`` has been sent."""


# Between a notebook's kernel and the supervisor of its cluster.


class Connected(Message, frozen=True):
    """ipyparallel's controller is up: how its clients reach it, with its keys."""

    client: dict[str, Any]


class SetSpares(Message, frozen=True):
    """Keep that many spare processes."""

    count: int


class ReplaceRanks(Message, frozen=True):
    """Start processes in the places of these ranks."""

    ranks: list[int]


class RanksJoining(Message, frozen=True):
    """The process ids of replacements."""

    pids: dict[int, int]


class Resized(Message, frozen=True):
    """There are n ranks from here on; those that stay have these numbers, before -> now."""

    n: int
    numbers: dict[int, int]


class LimitRank(Message, frozen=True):
    """Keep a process to the limits of its rank from here on."""

    pid: int
    slot: int
    limits: Limits


class Remember(Message, frozen=True):
    """What the next kernel of a detached cluster has to know."""

    state: dict[str, Any]


class Detach(Message, frozen=True):
    """Detach the cluster: let it outlive this kernel."""

    name: str
    place: str  # the notebook's folder
    n: int
    hours: float  # that it may wait for the next kernel


class Detached(Message, frozen=True):
    """It is detached."""

    name: str


class DetachFailed(Message, frozen=True):
    """It cannot be detached, and why."""

    why: str


class Attached(Message, frozen=True):
    """A kernel that has connected to a detached cluster controls it from here on."""

    client: dict[str, Any]
    remembered: dict[str, Any]
    folders: list[str]
    spares: int


class Refused(Message, frozen=True):
    """Another kernel has the cluster: the process id of that."""

    kernel: int


class MoveIn(Message, frozen=True):
    """A kernel has just taken warm ranks: be in its notebook's folder, with its front end's variables."""

    folder: str
    variables: dict[str, str]


# Where a cluster's engine (Ray, Spark) has a notebook's ranks started: between kernel, supervisor and agents.


class Inviting(Message, frozen=True):
    """The supervisor waits for agents: where, and the secret that they prove to have."""

    address: str
    secret: str


class EngineEnded(Message, frozen=True):
    """The engine starts nothing any more, and why; agents that are there go on."""

    why: str


class CallBack(Message, frozen=True):
    """Call the launcher back, as the agent of one rank: where, with which secret, and what more the card says."""

    address: str
    secret: str
    card: dict[str, Any]


class Introduce(Message, frozen=True):
    """Tell a rank that waits for it who it is, and where the controller is; the agent adds the key."""

    rank: int
    size: int
    connection: dict[str, Any]


# To a process that is to be a rank, and waits.


class EngineConnection(Message, frozen=True):
    """How engines reach ipyparallel's controller, with its keys: for ranks that MPI numbers."""

    connection: dict[str, Any]


class Preload(Message, frozen=True):
    """What a spare is to import, and variables that it sets before."""

    modules: list[str]
    variables: dict[str, str]


class Preloaded(Message, frozen=True):
    """The spare has imported, and could become a rank at once."""


class RunProgram(Message, frozen=True):
    """Become a rank of a job: run its program in this environment."""

    env: dict[str, str]
    command: list[str]


ALL = (
    *(RankExited, Stop, SignalRanks, StopRank, ChannelClosed),
    *(Hello, StartRanks, StartFailed, Output, Input, InputTaken, Answered, RankKilled, Terminated, Flush, Flushed),
    *(AskRank, RankState, RankSaid, TellRank, SparesReady, SparesFailed, Notice),
    *(Connected, SetSpares, ReplaceRanks, RanksJoining, Resized, LimitRank),
    *(Remember, Detach, Detached, DetachFailed, Attached, Refused, MoveIn),
    *(Inviting, EngineEnded, CallBack, Introduce),
    *(EngineConnection, Preload, Preloaded, RunProgram),
)
