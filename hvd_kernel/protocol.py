"""The letter-box: every message that crosses between the controller world and the engine world, and nothing else.

A shared leaf: standard library only. Messages are frozen dataclasses; on the wire they are JSON-able dicts
(``to_wire``, ``from_wire``), never pickles.

Words.
  cell       one ``%%hvdrun`` execution, numbered from 1 in each cluster
  rank       engine id == MPI rank == Horovod rank
  sample     one telemetry record of one rank
  failure    one rank's exception, as text and as frames, never as a live object
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any, TypeVar

T = TypeVar("T", "MetricsSample", "Failure")

METRICS_TYPE = "hvd_metrics"
"""msg_type under which a rank's telemetry thread publishes a MetricsSample on its iopub."""


@dataclass(frozen=True)
class MetricsSample:
    """What one rank is doing now. Counters are monotonic since the rank's init; rates are the reader's business."""

    rank: int
    time: float  # seconds, CLOCK_MONOTONIC of the rank's host
    state: str  # "idle" | "compute" | "collective"
    waiting_for: str = ""  # name of the oldest operation this rank waits in, "" when none
    step: int = 0  # optimizer steps taken
    samples: int = 0  # training samples seen (batch sizes summed)
    logged: dict[str, float] = field(default_factory=dict)  # last value of each hvd.log(...) name
    bytes: int = 0  # bytes reduced, gathered or broadcast
    ops: int = 0
    comm_ns: int = 0  # time the core spent in collectives
    wait_ns: int = 0  # time user threads were blocked waiting for them
    cpu_s: float = 0.0  # process CPU time
    rss: int = 0  # resident bytes
    gpu: dict[str, float] = field(default_factory=dict)  # {"util": %, "memory": bytes}; empty without a device


@dataclass(frozen=True)
class Failure:
    """One rank's exception."""

    rank: int
    ename: str
    evalue: str
    traceback: tuple[str, ...]  # IPython's coloured lines
    time: float  # CLOCK_MONOTONIC of the rank's host when it was raised
    secondary: bool = False  # raised because of another rank (RankFailed, RankDied, RankStalled)


@dataclass(frozen=True)
class TextDelta:
    """New text of a rank's stdout or stderr; deltas concatenate to the whole."""

    rank: int
    stream: str  # "stdout" | "stderr"
    text: str


@dataclass(frozen=True)
class RichOutput:
    """A display_data of a rank, or its cell's last expression (is_result)."""

    rank: int
    data: dict[str, Any]  # mime bundle
    metadata: dict[str, Any]
    is_result: bool = False


@dataclass(frozen=True)
class RankDone:
    """The rank has finished the cell."""

    rank: int
    failure: Failure | None = None


Event = MetricsSample | TextDelta | RichOutput | RankDone


def to_wire(message: MetricsSample | Failure) -> dict[str, Any]:
    """JSON-able form of a message that a rank sends."""
    return asdict(message)


def from_wire(kind: type[T], wire: dict[str, Any]) -> T:
    """Rebuild a message, ignoring unknown keys.

    Raises
    ------
    TypeError
        If a required key is missing: the sender speaks another version.
    """
    names = {f.name for f in fields(kind)}
    known: dict[str, Any] = {k: tuple(v) if k == "traceback" else v for k, v in wire.items() if k in names}
    return kind(**known)
