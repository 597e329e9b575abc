"""Events and actions of a cluster's membership: what it is told, and what it wants to be done, as values.

Messages of the supervisor (processes/channel/messages.py) are events as they are.

Words.
  request  the number of somebody who waits: each gets one answer, Done or Failed
  ticket   the number of a timer or of a question to ranks, by which what comes of it is known
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hvd_kernel.cluster.ranks.status import RankStatus
from hvd_kernel.processes.channel.messages import Keep, Message

Ticket = tuple[int, int]

# Events: what somebody asks for.


@dataclass(frozen=True)
class StartRequested:
    """Processes have been started: say when they are ranks that answer on every channel."""

    request: int


@dataclass(frozen=True)
class AttachRequested:
    """The ranks are an earlier kernel's: find out who lives. Answer: the ranks that live and do not answer."""

    request: int


@dataclass(frozen=True)
class ReplaceRequested:
    """Replace these ranks, or those that are dead. Answer: ``Respawned``."""

    request: int
    ranks: frozenset[int] | None
    force: bool = False
    restore: tuple[str, ...] = ()


@dataclass(frozen=True)
class KeepRequested:
    """Have the cluster outlive this kernel."""

    request: int
    wish: Keep
    supervisor: int  # its process id


Request = StartRequested | AttachRequested | ReplaceRequested | KeepRequested


@dataclass(frozen=True)
class Cancelled:
    """Nobody waits for this request any more."""

    request: int


@dataclass(frozen=True)
class StopRequested:
    """The cluster ends, or this kernel lets go of it."""


@dataclass(frozen=True)
class Stopped:
    """It has ended."""


# Events: what has happened.


@dataclass(frozen=True)
class EngineRegistered:
    """The controller knows the rank's engine: it can be asked."""

    rank: int


@dataclass(frozen=True)
class RankDied:
    """A rank's process has ended; ``pid`` where it is known whose, for who was replaced meanwhile is another."""

    rank: int
    pid: int = 0


@dataclass(frozen=True)
class RankAnswered:
    """A rank has answered a question, or a greeting on all channels."""

    ticket: Ticket
    rank: int
    content: Mapping[str, Any]


@dataclass(frozen=True)
class CellEnded:
    """No rank runs a cell."""

    ticket: Ticket


@dataclass(frozen=True)
class TimerFired:
    """A timer's time is over."""

    ticket: Ticket


Happening = EngineRegistered | RankDied | RankAnswered | CellEnded | TimerFired | Message
Event = Request | Cancelled | StopRequested | Stopped | Happening

# Actions: answers.


@dataclass(frozen=True)
class Tell:
    """Say how far it is."""

    request: int
    text: str


@dataclass(frozen=True)
class Done:
    """The request has been fulfilled."""

    request: int
    value: Any = None


@dataclass(frozen=True)
class Failed:
    """The request cannot be fulfilled, and why; the end of the ranks' log may say more."""

    request: int
    why: str
    with_log: bool = False


# Actions: what is to be done.


@dataclass(frozen=True)
class SetTimer:
    """Answer ``TimerFired`` in a while."""

    ticket: Ticket
    seconds: float


@dataclass(frozen=True)
class Send:
    """Tell the supervisor."""

    message: Message


@dataclass(frozen=True)
class Watch:
    """Say ``RankDied`` when this process of this host ends; keep it to its limits."""

    rank: int
    pid: int


@dataclass(frozen=True)
class Examine:
    """Find out why a rank died, and tell whoever waits for it."""

    rank: int
    who: RankStatus | None
    by_launcher: bool


@dataclass(frozen=True)
class Forget:
    """Nobody is to wait for the processes that have been these ranks so far."""

    ranks: frozenset[int]


@dataclass(frozen=True)
class Greet:
    """Say hello on these channels, again where it was not heard; each rank answers who it is."""

    ticket: Ticket
    ranks: frozenset[int]
    channels: tuple[str, ...]


@dataclass(frozen=True)
class Ask:
    """Put a question to ranks; urgent ones are answered while a cell runs."""

    ticket: Ticket
    verb: str
    ranks: frozenset[int]
    content: Mapping[str, Any]
    urgent: bool = False


@dataclass(frozen=True)
class Meet:
    """Have these ranks, and nobody else, meet as a new communicator: each is told its number, the size, its peers."""

    ticket: Ticket
    generation: int
    members: Mapping[int, RankStatus]
    fresh: frozenset[int]
    place: Mapping[str, Any]


@dataclass(frozen=True)
class Met:
    """Communication works: take note."""

    generation: int


@dataclass(frozen=True)
class Kill:
    """End processes of this host at once."""

    pids: frozenset[int]


@dataclass(frozen=True)
class AwaitCell:
    """Answer ``CellEnded`` when no rank runs a cell."""

    ticket: Ticket


@dataclass(frozen=True)
class Remember:
    """Have the supervisor know what the next kernel has to know."""


Answer = Tell | Done | Failed
Action = Answer | SetTimer | Send | Watch | Examine | Forget | Greet | Ask | Meet | Met | Kill | AwaitCell | Remember
