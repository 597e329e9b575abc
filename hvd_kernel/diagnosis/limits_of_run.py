"""Bottlenecks of a run: turns each rank's counters into sentences and at most one sentence of advice. Pure.

Terms.
  exposed     communication that no computation hides: the time for which the rank that waits least is blocked
  overlapped  communication during which the code of a rank continues
  waiting     the additional time for which all other ranks are blocked: they wait for the slowest rank
  queued      time in which a rank was ready to run, but other processes had its core
  idle        time in which a rank neither ran, nor was ready, nor waited for an operation: for its data, a file, a lock
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hvd_kernel.diagnosis.stragglers import Slow
from hvd_kernel.formatting import units
from hvd_kernel.processes.bandwidth import bus_factor
from hvd_kernel.protocol.messages import COMPRESSION, DATA_WORKERS

LEAST = 0.1
"""Smallest share of the time that counts as a limit of a run."""

CAUSE = 0.05
"""Excess share of its time, over that of the other ranks, that makes an activity the cause of a slow rank."""

LARGE = 1 << 20
"""Bytes of an operation whose duration is proportional to its size."""

MOVES = 0.5
"""Share of the possible bus bandwidth from which the transfer of bytes is the bottleneck."""

IDLE = (
    "limited by waiting: for {} of the time the ranks neither compute nor communicate, as when they wait for data or a "
    "disk, or sleep"
)

_PAIR = 2


@dataclass(frozen=True)
class Figures:
    """Growth of one rank's counters over an interval."""

    seconds: float
    waited: float = 0.0  # seconds in which its code was blocked in operations
    communicated: float = 0.0  # seconds in which the core executed them
    bytes: int = 0
    operations: int = 0
    ran: float | None = None  # processor seconds of its main thread; None: not known
    queued: float | None = None  # seconds in which that thread was ready, but others had the processor
    processor: float = 0.0  # processor seconds of all its threads, as a framework may compute on others
    on_device: bool = False  # a GPU may compute while its threads rest
    options: tuple[str, ...] = ()  # that it uses already (protocol.messages.OPTIONS)

    @property
    def wait(self) -> float:
        """Share of its time that it waited."""
        return min(1.0, self.waited / self.seconds)

    @property
    def overlap(self) -> float:
        """Share of its time that operations ran while its code continued."""
        return max(0.0, min(1.0, self.communicated / self.seconds) - self.wait)


@dataclass(frozen=True)
class Communication:
    """The communication of a run: the figures that its sentences and the panel's head show; None: no operations."""

    exposed: float | None = None  # share of the time
    overlapped: float | None = None  # share of the time, mean of the ranks
    bus: float | None = None  # bus bandwidth in bytes per second


@dataclass(frozen=True)
class Bottleneck:
    """The limits of a run as text; empty if there are none to report."""

    sentences: tuple[str, ...] = ()
    advice: str = ""

    @property
    def lines(self) -> list[str]:
        """The sentences and the advice."""
        return [*self.sentences, *([self.advice] if self.advice else [])]


Possible = Callable[[float], float | None]
"""Bus bandwidth in bytes per second that was measured on this machine for operations of that size; None: unknown."""


def bottleneck(
    ranks: Mapping[int, Figures], slow: Mapping[int, Slow], possible: Possible = lambda _bytes: None, cores: int = 0
) -> Bottleneck:
    """Describe what limits a run.

    Parameters
    ----------
    ranks
        At least half a second of each rank that is in the cell.
    slow
        The stragglers (``Stragglers.slow``).
    possible
        The bandwidth that ``hvd.bench()`` has measured.
    cores
        Number of cores that the ranks share, all on one host; 0: not known.

    Examples
    --------
    >>> two = {rank: Figures(10.0, waited=0.2, communicated=0.3, bytes=10**6, operations=50) for rank in range(2)}
    >>> bottleneck(two, {}).sentences[0]
    'limited by its own computation: communication that it does not hide takes 2 % of the time'
    """
    shares = communication(ranks)
    exposed = shares.exposed
    if exposed is None:
        return Bottleneck()
    late = [rank for rank in slow if rank in ranks and slow[rank].share >= LEAST]
    worst = max(late, key=lambda rank: slow[rank].share) if late else None
    sentences, advice = [], ""
    if worst is not None and slow[worst].share >= exposed:
        cause, advice = _cause(worst, ranks, slow[worst], cores)
        sentences.append(f"limited by rank {worst}, {slow[worst]}: {cause}")
    elif (idle := _idle(ranks)) >= max(LEAST, exposed):
        sentences.append(IDLE.format(units.percent(idle)))
    sentences.append(_communication(exposed, shares.overlapped or 0.0, first=not sentences))
    if bus := _bus(ranks, shares.bus, possible):
        sentences.append(bus)
    if worst is None or slow[worst].share < exposed:
        if worst is not None:
            cause, _ = _cause(worst, ranks, slow[worst], cores)
            sentences.append(f"slowest rank: {worst}, {slow[worst]}: {cause}")
        advice = _smaller(ranks, shares, possible)
    return Bottleneck(tuple(sentences), advice)


def communication(ranks: Mapping[int, Figures]) -> Communication:
    """Return the figures of the communication of two or more ranks.

    The bus bandwidth is that of ranks whose operations are all allreduces: bytes are not counted by operation.

    Examples
    --------
    >>> two = {rank: Figures(10.0, waited=1.0, communicated=3.0, bytes=6 * 10**9, operations=50) for rank in range(2)}
    >>> communication(two)
    Communication(exposed=0.1, overlapped=0.2, bus=2000000000.0)
    """
    operations = sum(figures.operations for figures in ranks.values())
    if len(ranks) < _PAIR or not operations:
        return Communication()
    moved = sum(figures.bytes for figures in ranks.values())
    seconds = sum(figures.communicated for figures in ranks.values())
    return Communication(
        min(figures.wait for figures in ranks.values()),
        statistics.mean(figures.overlap for figures in ranks.values()),
        bus_factor(len(ranks)) * moved / seconds if seconds and moved else None,
    )


def _communication(exposed: float, overlapped: float, *, first: bool) -> str:
    if first and exposed >= LEAST:
        hidden = f", another {units.percent(overlapped)} overlaps with it" if overlapped > CAUSE else ""
        return f"limited by communication: {units.percent(exposed)} of the time is not hidden by computation{hidden}"
    share = f"{units.percent(exposed)} of the time"
    if first:
        return f"limited by its own computation: communication that it does not hide takes {share}"
    return f"communication that computation does not hide: {share}"


def _bus(ranks: Mapping[int, Figures], achieved: float | None, possible: Possible) -> str:
    """Describe the achieved bus bandwidth, and the measured one if it is known."""
    if not achieved:
        return ""
    size = _size(ranks)
    bandwidth = f"bus bandwidth {units.number(achieved / 1e9)} GB/s in operations of {units.decimal_size(round(size))}"
    best = possible(size)
    if best is None:
        return bandwidth
    return f"{bandwidth}; %hvd bench had {units.number(best / 1e9)} GB/s here"


def _size(ranks: Mapping[int, Figures]) -> float:
    """Return the mean bytes per operation."""
    moved = sum(figures.bytes for figures in ranks.values())
    return moved / sum(figures.operations for figures in ranks.values())


def _cause(rank: int, ranks: Mapping[int, Figures], slow: Slow, cores: int) -> tuple[str, str]:
    """Return why a rank is slow, and advice."""
    slowest = ranks[rank]
    if slowest.ran is None or slowest.queued is None:
        return "its own part of a step takes longer", ""
    shares = {number: _shares(figures) for number, figures in ranks.items()}
    others = [share for number, share in shares.items() if number != rank]
    queued, idle = (shares[rank][i] - statistics.median(share[i] for share in others) for i in range(2))
    if queued >= max(CAUSE, idle):
        share = units.percent(shares[rank][0])
        cause = f"its core is shared, for {share} of its time other processes had it"
        save = f"up to {units.percent(slow.share)} of the others' time"
        few = f"-np {cores} would give each rank a core of its own, and save {save}"
        return cause, few if 0 < cores < len(ranks) else ""
    if idle >= CAUSE:
        cause = (
            f"for {units.percent(shares[rank][1])} of its time it does not compute, as when it waits for data or a file"
        )
        uses_workers = DATA_WORKERS in slowest.options
        more = "more processes that load its data" if uses_workers else "num_workers of its DataLoader"
        save = f"up to {units.percent(slow.share)} of the others' time"
        return cause, f"{more}, or a cache of what it reads, would save {save}"
    return "its own computation takes longer", ""


def _idle(ranks: Mapping[int, Figures]) -> float:
    """Return the share of the time for which the rank that is idle least is idle; 0 if it is not known."""
    if any(figures.ran is None or figures.queued is None or figures.on_device for figures in ranks.values()):
        return 0.0
    return min(_shares(figures)[1] for figures in ranks.values())


def _shares(figures: Figures) -> tuple[float, float]:
    """Return the shares of the time outside operations: queued, and idle."""
    ran, queued = max(figures.ran or 0.0, figures.processor), figures.queued or 0.0
    idle = max(0.0, figures.seconds - figures.waited - ran - queued)
    return queued / figures.seconds, idle / figures.seconds


def _smaller(ranks: Mapping[int, Figures], shares: Communication, possible: Possible) -> str:
    """Advise compression if the transfer of bytes is the bottleneck and no rank compresses yet."""
    exposed, achieved, size = shares.exposed or 0.0, shares.bus or 0.0, _size(ranks)
    best = possible(size)
    if any(COMPRESSION in figures.options for figures in ranks.values()):
        return ""
    if exposed < LEAST or size < LARGE or best is None or achieved < MOVES * best:
        return ""
    return f"compression=hvd.Compression.fp16 would halve what float32 takes of these {units.percent(exposed)}"
