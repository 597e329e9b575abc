"""The messages between the notebook's kernel and its ranks, complete.

Both sides import this module. Messages are frozen Structs; as the content of a Jupyter message they are JSON-able dicts
(``to_content``, ``from_content``), never pickles.

Terms.
  cell       one ``%%hvdrun`` execution, known by the notebook's execution count
  rank       engine id == MPI rank == Horovod rank
  sample     one telemetry record of one rank
  failure    one rank's exception, as text and as frames, never as a live object
"""

from __future__ import annotations

import signal
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec import Struct

T = TypeVar("T", bound=Struct)

METRICS_TYPE = "hvd_metrics"
"""msg_type under which a rank's telemetry thread publishes a MetricsSample on its iopub."""

LEFT_OUT_TYPE = "hvd_left_out"
"""msg_type under which a rank reports how many displays of a cell it did not send."""

PROMPT_TYPE = "hvd_prompt"
"""msg_type under which a rank publishes a Prompt on its iopub."""

WAITING_TYPE = "hvd_waiting"
"""msg_type under which a rank publishes Waiting on its iopub."""

ELASTIC_TYPE = "hvd_elastic"
"""msg_type under which a rank reports on its iopub that its cell has reached ``elastic.run``."""

UNDONE_TYPE = "hvd_undone"
"""msg_type under which rank 0 reports on its iopub how many optimizer steps a failure has undone."""

RAISED_TYPE = "hvd_raised"
"""msg_type under which a rank publishes the error that ends its cell, before the traceback is formatted."""

BROKEN_TYPE = "hvd_broken"
"""msg_type under which a rank reports that communication has ended in a task that is not a cell of the notebook."""

READABLE = "hvd_readable"
"""Attribute of a comm: apart from state, a page sends only queries through it, which any thread may answer."""

HALF_OPEN_MS = 2000
"""How long a connection may stay open without having shown its key; a peer that was only slow connects again."""

REMEMBERED_MESSAGES = 256
"""Message signatures that a process keeps to refuse duplicates. Jupyter's 65,536 take 10 MB in a long session; between
notebook and ranks every connection is encrypted, which already excludes replayed messages."""

STACK_SIGNAL = signal.SIGURG
"""Signal at which a rank writes its main thread's stacks, without Python's lock. Other processes ignore it."""

STACK_END = b"end of stack\n"
"""Last line of the written stacks."""

STACK_PIPE = "stack-{rank}"
"""Name, in the ranks' private IPython folder, of the pipe that the stacks are written to."""


GPU_FIGURES = ("util", "memory", "power", "temperature", "nvlink_tx", "nvlink_rx", "pcie_tx", "pcie_rx")
"""Percent, bytes, watts, degrees Celsius, and bytes per second that the device sends and receives."""


OPTIONS = (COMPRESSION, DATA_WORKERS) = "compression", "data workers"
"""Options that the panel may advise; a rank reports the ones that it uses already."""


class ParameterDigest(NamedTuple):
    """The parameters of an optimizer after one of its steps, in two numbers."""

    step: int
    value: float | None  # a weighted sum over a sample of their elements; None: not finite, which JSON cannot hold
    scale: float | None  # the same over absolute values


class OptimizerSteps(NamedTuple):
    """The steps and exchanges of one optimizer of a rank in this run, for the guard against training apart."""

    number: int  # of the rank's optimizers in this run, by their first steps
    model: str  # describes optimizer and parameters: only equal ones are compared
    steps: int
    reduced: bool  # a DistributedOptimizer reduces all of its gradients over all ranks
    exchanged: bool  # since its first step
    shared_in_run: bool  # before its first step, in this run
    shared_ever: bool  # before its first step
    digests: tuple[ParameterDigest, ...] = ()


class NotFinite(Struct, frozen=True):
    """A logged value that is NaN or infinite, for which JSON has no numbers."""

    step: int  # at which the latest of such values in a row began
    value: str  # "nan", "inf" or "-inf"
    is_latest: bool  # False if the name has a finite value by now


class MetricsSample(Struct, frozen=True):
    """The current activity of one rank. Counters are monotonic since the rank's init; the reader computes rates."""

    rank: int
    time: float  # seconds, CLOCK_MONOTONIC of the rank's host
    state: str  # "idle" | "compute" | "waiting" (for data, a disk, in a sleep) | "collective" | "prompt"
    waiting_for: str = ""  # name of the oldest operation this rank waits in, "" when none
    step: int = 0  # optimizer steps taken
    samples: int = 0  # training samples seen (batch sizes summed)
    logged: dict[str, float] = {}  # latest value of each hvd.log(...) name, if it is finite
    bytes: int = 0  # bytes reduced, gathered or broadcast
    ops: int = 0
    comm_ns: int = 0  # time the core spent in collectives
    wait_ns: int = 0  # time user threads were blocked waiting for them
    cpu_s: float = 0.0  # process CPU time
    rss: int = 0  # resident bytes
    gpu: dict[str, float] = {}  # the GPU_FIGURES that the rank's device has
    ran_ns: int = 0  # processor time of the main thread, 0 if the system does not report it
    queued_ns: int = 0  # time in which that thread was ready to run, but other threads had the processor
    options: tuple[str, ...] = ()  # the OPTIONS that the rank has used
    optimizers: tuple[OptimizerSteps, ...] = ()  # that have taken a step in this run
    ranges: dict[
        str, tuple[float, float]
    ] = {}  # of logged: least and greatest value since the last sample, if they differ
    not_finite: dict[str, NotFinite] = {}  # of logged


class Failure(Struct, frozen=True):
    """One rank's exception."""

    rank: int
    ename: str
    evalue: str
    traceback: tuple[str, ...]  # IPython's coloured lines
    time: float  # CLOCK_MONOTONIC of the rank's host when it was raised
    secondary: bool = False  # raised because of another rank (RankFailed, RankDied, RankStalled)


class Frame(NamedTuple):
    """One call on a rank's stack."""

    place: str  # "cell 3:4", "cell 3 (earlier kernel):4", "data.py:41"
    function: str  # "" for a cell or a module itself
    text: str  # the line, "" if it is not known
    is_user_code: bool  # rather than a library's


class Pending(NamedTuple):
    """One operation that is not complete on a rank."""

    name: str
    seconds: float
    missing: tuple[int, ...]  # ranks that have not submitted it, as far as this rank knows


class Whereabouts(Struct, frozen=True):
    """The current position of one rank's main thread."""

    rank: int
    state: str  # "idle" | "compute" | "collective" | "prompt" | "traceback"; from outside: "stopped" | "silent" |
    # "dead"; of a script "connected" | "absent" (processes/rank_channel.py) | "ended" | "elsewhere"
    waiting_for: str = ""  # name of the operation in which it waits
    frames: tuple[Frame, ...] = ()  # outermost first, without IPython's and ours
    pending: tuple[Pending, ...] = ()  # oldest first
    native: tuple[str, ...] = ()  # C functions that the innermost frame is in, innermost first; from outside only
    ranks: tuple[int, ...] = ()  # that take part in what it waits for, if the core does not know the operation


class TextDelta(Struct, frozen=True):
    """New text of a rank's stdout or stderr; the deltas that are not live concatenate to the stored text."""

    rank: int
    stream: str  # "stdout" | "stderr"
    text: str
    live: bool = False  # a preview of a flood of output; the part that is stored follows at the cell's end
    skipped: tuple[int, int, int] = (0, 0, 0)  # omitted before it: rest of a line, lines, beginning of the next line


class RichOutput(Struct, frozen=True):
    """A display_data of a rank, or its cell's last expression (is_result)."""

    rank: int
    data: dict[str, Any]  # mime bundle
    metadata: dict[str, Any]
    is_result: bool = False
    display_id: str = ""  # key for updates
    update: bool = False  # replaces the output with that display_id


class Cleared(Struct, frozen=True):
    """A rank's clear_output: remove its output of this cell; with wait, once it shows something else."""

    rank: int
    wait: bool


class LeftOut(Struct, frozen=True):
    """Displays of a cell that a rank did not send, because there were too many."""

    rank: int
    displays: int


class Prompt(Struct, frozen=True):
    """A rank waits for a line from the user: input(), getpass(), or the debugger."""

    rank: int
    number: int  # of this rank's prompts, from 1
    text: str
    password: bool = False


class Waiting(Struct, frozen=True):
    """The rank waits in ``elastic.run`` until the notebook has arranged a new rendezvous of all ranks."""

    rank: int
    reason: str = ""  # of the failure that ended the communicator; "": a planned change
    commits: int = 0  # that its values have seen
    lost: int = 0  # optimizer steps that were undone


class RankLost(Struct, frozen=True):
    """The rank has died in the cell, and may be replaced in it."""

    rank: int
    failure: Failure


class InElastic(Struct, frozen=True):
    """The rank's cell has reached ``elastic.run``: it continues when ranks are added or removed."""

    rank: int


class StepsUndone(Struct, frozen=True):
    """A failure has undone optimizer steps; the ranks have formed a new communicator automatically."""

    rank: int
    steps: int


class RankJoined(Struct, frozen=True):
    """The rank is new in the cell."""

    rank: int


class RankLeft(Struct, frozen=True):
    """The rank has left the cell as planned."""

    rank: int


class RankRaised(Struct, frozen=True):
    """The rank has raised an error of its own that ends the cell there; RankDone brings the traceback."""

    rank: int
    ename: str
    evalue: str


class RankDone(Struct, frozen=True):
    """The rank has finished the cell."""

    rank: int
    failure: Failure | None = None


MembershipChange = InElastic | StepsUndone | RankJoined | RankLost | RankLeft | RankRaised | RankDone
Event = MetricsSample | TextDelta | RichOutput | Cleared | LeftOut | Waiting | Prompt | MembershipChange


def to_content(message: Struct) -> dict[str, Any]:
    """Return a message of a rank as the content of a Jupyter message."""
    content: dict[str, Any] = msgspec.to_builtins(message, enc_hook=_plain)
    return content


def from_content(kind: type[T], content: Any) -> T:
    """Rebuild a message, ignoring unknown keys.

    Raises
    ------
    TypeError
        If a required key is missing or a value has another type: the sender speaks another version.
    """
    try:
        return msgspec.convert(content, kind)
    except msgspec.ValidationError as error:
        raise TypeError(f"{kind.__name__}: {error}") from error


def _plain(value: object) -> object:
    """Return an object of a builtin type for one of a subclass of it, such as the text of a user's prompt."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, int):
        return int.__int__(value)
    raise TypeError(f"{type(value).__name__} cannot be part of a message")
