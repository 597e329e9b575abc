"""Events and actions of the elastic driver, as values: its input and its output.

The driver (driver.py) is a pure state machine: ``step(event, now) -> [action]``. The job that executes the actions
(job.py) has agents, pipes and clocks; the simulator of the tests has none.

Terms.
  worker  one process for its whole life, by a number that no other process of the job ever has (from 0)
  slot    room for one worker on a host
  ticket  the number of a timer, which its TimerFired carries
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
    """Discovery has returned these hosts with their slots, in this order."""

    hosts: tuple[Host, ...]
    stderr: str = ""  # of the script


class DiscoveryFailed(Struct, frozen=True):
    """Discovery has failed, for this reason (its exit status, the end of its stderr)."""

    reason: str


class WorkerMessage(Struct, frozen=True):
    """A worker has sent a message."""

    worker: int
    message: FromWorker


class WorkerExited(Struct, frozen=True):
    """A worker's process has exited; a status below 0 is a signal's number."""

    worker: int
    status: int
    reason: str = ""  # a limit that it has exceeded, or why it could not be started
    consequence: bool = False  # its stderr reports nothing but another worker's failure (launch/outcome.py)


class WorkerHung(Struct, frozen=True):
    """A worker has been stopped, or has been missing in a reset, for so long that it counts as failed."""

    worker: int
    reason: str


class HostLost(Struct, frozen=True):
    """The agent of a host is lost with all workers there; these get no WorkerExited of their own."""

    host: str
    reason: str
    silent: bool = True  # no answer came: the network may be partitioned; False: its connection was closed


class EndRequested(Struct, frozen=True):
    """The user or a time limit stops the job (Ctrl-C, SIGTERM)."""

    reason: str


Event = (
    HostsFound | DiscoveryFailed | WorkerMessage | WorkerExited | WorkerHung | HostLost | TimerFired[int] | EndRequested
)

# Actions.


class StartWorker(Struct, frozen=True):
    """Start a process in a slot of a host; start the host's agent first if it has none.

    ``assigned`` and ``size`` are its rank and size in the planned generation. The process has them in its environment
    until it gets its place; hosts may change before that.
    """

    worker: int
    host: str
    slot: int
    assigned: Assigned
    size: int


class SendTo(Struct, frozen=True):
    """Send a message to a worker. In a Place the job fills in ``address`` and ``secret``: it knows the networks.

    Places of one generation come together, that of rank 0 first.
    """

    worker: int
    message: ToWorker


class EndWorker(Struct, frozen=True):
    """Stop a worker's process: SIGTERM, then SIGKILL after ``grace`` seconds."""

    worker: int
    grace: float


class ReleaseHost(Struct, frozen=True):
    """Release a host's agent when its workers have exited: no worker is to run there any more."""

    host: str


class Say(Struct, frozen=True):
    """Print a line to the user, on stderr."""

    text: str


class EndJob(Struct, frozen=True):
    """End the job; workers that still run are stopped first."""

    verdict: Literal["done", "failed"]
    reason: str = ""
    worker: int | None = None  # the first one that failed for a reason of its own


Action = StartWorker | SendTo | EndWorker | ReleaseHost | SetTimer[int] | Say | EndJob
