"""Events and actions of a cluster's membership, as values: its input, and the actions that it requests.

Messages of the supervisor (processes/channel/messages.py) are events too.

Terms.
  request  number of a caller that waits for exactly one answer, Done or Failed
  ticket   number of a timer or of a query to ranks, repeated in the events that result from it
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from hvd_kernel.cluster.ranks.rank_table import RankStatus
from hvd_kernel.processes.channel.messages import Detach, Message
from hvd_kernel.processes.event_loop import SetTimer, TimerFired

Ticket = tuple[int, int]

# Events: requests.


class StartRequested(Struct, frozen=True):
    """Processes have been started: answer when they are ranks that can be reached on every channel."""

    request: int


class AttachRequested(Struct, frozen=True):
    """The ranks are an earlier kernel's: find the living ones. Answer: the living ranks that are silent."""

    request: int


class ReplaceRequested(Struct, frozen=True):
    """Replace these ranks, or all dead ones. Answer: ``Respawned``."""

    request: int
    ranks: frozenset[int] | None
    force: bool = False
    restore: tuple[str, ...] = ()
    in_cell: bool = False  # all other ranks wait in a cell: form a new communicator even if none is dead


class ResizeRequested(Struct, frozen=True):
    """Resize to n ranks: remove the newest or those in ``drop``, add fresh ones. Answer: ``ResizeOutcome``."""

    request: int
    n: int
    drop: frozenset[int] = frozenset()
    restore: tuple[str, ...] = ()
    in_cell: bool = False  # all other ranks wait in a cell: remove the highest numbers, renumber none


class DetachRequested(Struct, frozen=True):
    """Keep the cluster alive beyond this kernel."""

    request: int
    wish: Detach
    supervisor: int  # its process id


Request = StartRequested | AttachRequested | ReplaceRequested | ResizeRequested | DetachRequested


class Cancelled(Struct, frozen=True):
    """The caller no longer waits for this request."""

    request: int


class StopRequested(Struct, frozen=True):
    """The cluster is about to stop, or this kernel to leave it."""


class Stopped(Struct, frozen=True):
    """The cluster has stopped, or this kernel has left it."""


# Events: observations.


class EngineRegistered(Struct, frozen=True):
    """The rank's engine has registered with the controller: it can be queried."""

    rank: int


class RankProcessEnded(Struct, frozen=True):
    """A rank's process has exited; ``pid``, if known, tells it from a replacement with the same rank."""

    rank: int
    pid: int = 0


class RankAnswered(Struct, frozen=True):
    """A rank has answered a query, or a greeting on all channels."""

    ticket: Ticket
    rank: int
    content: Mapping[str, Any]


class CellEnded(Struct, frozen=True):
    """No rank runs a cell."""

    ticket: Ticket


Happening = EngineRegistered | RankProcessEnded | RankAnswered | CellEnded | TimerFired[Ticket] | Message
Event = Request | Cancelled | StopRequested | Stopped | Happening

# Actions: answers.


class ReportProgress(Struct, frozen=True):
    """Report the progress of a request."""

    request: int
    text: str


class Done(Struct, frozen=True):
    """Complete a request."""

    request: int
    value: Any = None


class Failed(Struct, frozen=True):
    """Fail a request; ``with_log``: the end of the ranks' log may explain it."""

    request: int
    reason: str
    with_log: bool = False


# Actions: everything else.


class Send(Struct, frozen=True):
    """Send a message to the supervisor."""

    message: Message


class WatchRank(Struct, frozen=True):
    """Deliver ``RankProcessEnded`` when this process of this host exits; apply its limits."""

    rank: int
    pid: int


class Examine(Struct, frozen=True):
    """Determine why a rank died, and fail all requests that wait for it."""

    rank: int
    process: RankStatus | None
    by_launcher: bool


class Forget(Struct, frozen=True):
    """Fail all requests that wait for the current processes of these ranks."""

    ranks: frozenset[int]


class Renumber(Struct, frozen=True):
    """Set the number of ranks to n, and renumber the survivors (old -> new). All others have exited."""

    n: int
    numbers: Mapping[int, int]


class Greet(Struct, frozen=True):
    """Send a hello on each channel that is not established; each rank answers with its identity."""

    ticket: Ticket
    ranks: frozenset[int]
    channels: tuple[str, ...]


class Query(Struct, frozen=True):
    """Send a query to ranks; they answer urgent ones while a cell runs."""

    ticket: Ticket
    handler: str
    ranks: frozenset[int]
    content: Mapping[str, Any]
    urgent: bool = False


class FormCommunicator(Struct, frozen=True):
    """Form a new communicator of exactly these ranks: send each its number, the size and its peers."""

    ticket: Ticket
    generation: int
    members: Mapping[int, RankStatus]
    fresh: frozenset[int]
    place: Mapping[str, Any]


class CommunicatorReady(Struct, frozen=True):
    """Report that the ranks have formed their communicator: collectives work."""

    generation: int


class Kill(Struct, frozen=True):
    """Kill processes of this host."""

    pids: frozenset[int]


class AwaitCell(Struct, frozen=True):
    """Deliver ``CellEnded`` when no rank runs a cell."""

    ticket: Ticket


class SaveForNextKernel(Struct, frozen=True):
    """Store the state that the next kernel needs with the supervisor."""


Answer = ReportProgress | Done | Failed
OnRanks = WatchRank | Examine | Forget | Renumber | Greet | Query | FormCommunicator | CommunicatorReady | Kill
Action = Answer | OnRanks | SetTimer[Ticket] | Send | AwaitCell | SaveForNextKernel
