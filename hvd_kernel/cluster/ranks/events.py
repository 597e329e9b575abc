"""Events and actions of a cluster's membership: what it is told, and what it wants to be done, as values.

Messages of the supervisor (processes/channel/messages.py) are events as they are.

Terms.
  request  the number of somebody who waits: each gets one answer, Done or Failed
  ticket   the number of a timer or of a question to ranks, by which what comes of it is known
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from hvd_kernel.cluster.ranks.status import RankStatus
from hvd_kernel.processes.channel.messages import Detach, Message
from hvd_kernel.processes.event_loop import SetTimer, TimerFired

Ticket = tuple[int, int]

# Events: what somebody asks for.


class StartRequested(Struct, frozen=True):
    """Processes have been started: say when they are ranks that answer on every channel."""

    request: int


class AttachRequested(Struct, frozen=True):
    """The ranks are an earlier kernel's: find out who lives. Answer: the ranks that live and do not answer."""

    request: int


class ReplaceRequested(Struct, frozen=True):
    """Replace these ranks, or those that are dead. Answer: ``Respawned``."""

    request: int
    ranks: frozenset[int] | None
    force: bool = False
    restore: tuple[str, ...] = ()
    in_cell: bool = False  # the others wait for it within a cell; they are to meet again, whether or not any is dead


class ResizeRequested(Struct, frozen=True):
    """Have n ranks: the youngest leave, or those that are named; fresh ones come. Answer: ``ResizeOutcome``."""

    request: int
    n: int
    drop: frozenset[int] = frozenset()
    restore: tuple[str, ...] = ()
    in_cell: bool = False  # the others wait for it within a cell: the highest numbers leave, nobody gets another one


class DetachRequested(Struct, frozen=True):
    """Have the cluster outlive this kernel."""

    request: int
    wish: Detach
    supervisor: int  # its process id


Request = StartRequested | AttachRequested | ReplaceRequested | ResizeRequested | DetachRequested


class Cancelled(Struct, frozen=True):
    """Nobody waits for this request any more."""

    request: int


class StopRequested(Struct, frozen=True):
    """The cluster ends, or this kernel lets go of it."""


class Stopped(Struct, frozen=True):
    """It has ended."""


# Events: what has happened.


class EngineRegistered(Struct, frozen=True):
    """The controller knows the rank's engine: it can be asked."""

    rank: int


class RankProcessEnded(Struct, frozen=True):
    """A rank's process has ended; ``pid`` where it is known whose, for who was replaced meanwhile is another."""

    rank: int
    pid: int = 0


class RankAnswered(Struct, frozen=True):
    """A rank has answered a question, or a greeting on all channels."""

    ticket: Ticket
    rank: int
    content: Mapping[str, Any]


class CellEnded(Struct, frozen=True):
    """No rank runs a cell."""

    ticket: Ticket


Happening = EngineRegistered | RankProcessEnded | RankAnswered | CellEnded | TimerFired[Ticket] | Message
Event = Request | Cancelled | StopRequested | Stopped | Happening

# Actions: answers.


class Tell(Struct, frozen=True):
    """Say how far it is."""

    request: int
    text: str


class Done(Struct, frozen=True):
    """The request has been fulfilled."""

    request: int
    value: Any = None


class Failed(Struct, frozen=True):
    """The request cannot be fulfilled, and why; the end of the ranks' log may say more."""

    request: int
    why: str
    with_log: bool = False


# Actions: what is to be done.


class Send(Struct, frozen=True):
    """Tell the supervisor."""

    message: Message


class WatchRank(Struct, frozen=True):
    """Say ``RankProcessEnded`` when this process of this host ends; keep it to its limits."""

    rank: int
    pid: int


class Examine(Struct, frozen=True):
    """Find out why a rank died, and tell whoever waits for it."""

    rank: int
    who: RankStatus | None
    by_launcher: bool


class Forget(Struct, frozen=True):
    """Nobody is to wait for the processes that have been these ranks so far."""

    ranks: frozenset[int]


class Renumber(Struct, frozen=True):
    """There are n ranks from here on; those that stay have these numbers, before -> now. Others have ended."""

    n: int
    numbers: Mapping[int, int]


class Greet(Struct, frozen=True):
    """Say hello on these channels, again where it was not heard; each rank answers who it is."""

    ticket: Ticket
    ranks: frozenset[int]
    channels: tuple[str, ...]


class Ask(Struct, frozen=True):
    """Put a question to ranks; urgent ones are answered while a cell runs."""

    ticket: Ticket
    handler: str
    ranks: frozenset[int]
    content: Mapping[str, Any]
    urgent: bool = False


class FormCommunicator(Struct, frozen=True):
    """Form a new communicator of exactly these ranks: each is told its number, the size and its peers."""

    ticket: Ticket
    generation: int
    members: Mapping[int, RankStatus]
    fresh: frozenset[int]
    place: Mapping[str, Any]


class CommunicatorReady(Struct, frozen=True):
    """The ranks have formed their communicator: collectives work."""

    generation: int


class Kill(Struct, frozen=True):
    """End processes of this host at once."""

    pids: frozenset[int]


class AwaitCell(Struct, frozen=True):
    """Answer ``CellEnded`` when no rank runs a cell."""

    ticket: Ticket


class SaveForNextKernel(Struct, frozen=True):
    """Have the supervisor know what the next kernel has to know."""


Answer = Tell | Done | Failed
OnRanks = WatchRank | Examine | Forget | Renumber | Greet | Ask | FormCommunicator | CommunicatorReady | Kill
Action = Answer | OnRanks | SetTimer[Ticket] | Send | AwaitCell | SaveForNextKernel
