"""Events and actions of the elastic driver, as values: what it is told, and what it wants to be done.

The driver (driver.py) is a pure state machine: ``step(event, now) -> [action]``. What carries actions out (job.py) has
agents, pipes and clocks; the simulator of the tests has none.

Terms.
  worker  one process for its whole life, by a number that no other process of the job ever has (from 0)
  slot    room for one worker on a host
  ticket  the number of a timer, by which its end is known
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from hvd_kernel.launch.elastic.assignment import Assigned
from hvd_kernel.launch.placement import Host
from hvd_kernel.processes.event_loop import SetTimer, TimerFired
from hvd_kernel.protocol.elastic import FromWorker, ToWorker

# Events.


class HostsFound(Struct, frozen=True):
    """Discovery has answered: these hosts, in this order, with so many slots each."""

    hosts: tuple[Host, ...]
    said: str = ""  # what the script has written on stderr


class DiscoveryFailed(Struct, frozen=True):
    """Discovery has given no answer, and why (its exit status, the end of its stderr)."""

    why: str


class WorkerSaid(Struct, frozen=True):
    """A worker has sent a message."""

    worker: int
    message: FromWorker


class WorkerExited(Struct, frozen=True):
    """A worker's process has ended; a status below 0 is a signal's number."""

    worker: int
    status: int
    why: str = ""  # a limit that it has passed, or why it could not be started
    consequence: bool = False  # its stderr tells of nothing but another worker's failure (launch/outcome.py)


class WorkerHung(Struct, frozen=True):
    """A worker has been stopped, or has not come to the others' reset, for so long that it counts as failed."""

    worker: int
    why: str


class HostLost(Struct, frozen=True):
    """The agent of a host is gone, with all workers there: none of them needs a WorkerExited of its own."""

    host: str
    why: str
    silent: bool = True  # it only does not answer: it may live behind a cut; False: its connection was closed


class EndRequested(Struct, frozen=True):
    """Somebody wants the job ended (Ctrl-C, SIGTERM, its time limit)."""

    why: str


Event = (
    HostsFound | DiscoveryFailed | WorkerSaid | WorkerExited | WorkerHung | HostLost | TimerFired[int] | EndRequested
)

# Actions.


class StartWorker(Struct, frozen=True):
    """Start a process in a slot of a host; a host without an agent gets one first.

    ``assigned`` of ``size``: its rank in the generation that is planned. The process has it in its environment until it
    gets its place; hosts may change before that.
    """

    worker: int
    host: str
    slot: int
    assigned: Assigned
    size: int


class SendTo(Struct, frozen=True):
    """Tell a worker. Of a Place ``address`` and ``secret`` are empty: job.py knows the hosts' networks.

    Places of one generation come together, that of rank 0 first.
    """

    worker: int
    message: ToWorker


class EndWorker(Struct, frozen=True):
    """End a worker's process: SIGTERM, then SIGKILL after ``grace`` seconds."""

    worker: int
    grace: float


class ReleaseHost(Struct, frozen=True):
    """No worker is to run on this host any more: let its agent go when its workers have ended."""

    host: str


class Say(Struct, frozen=True):
    """Tell the user, on stderr."""

    text: str


class EndJob(Struct, frozen=True):
    """The job is over; all workers that still run are ended first."""

    verdict: Literal["done", "failed"]
    why: str = ""
    worker: int | None = None  # the one that failed first, for a reason of its own


Action = StartWorker | SendTo | EndWorker | ReleaseHost | SetTimer[int] | Say | EndJob
