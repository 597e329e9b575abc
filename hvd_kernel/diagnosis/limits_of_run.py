"""What limits a run: from each rank's counters to sentences, and at most one sentence of advice. Pure.

Terms.
  exposed   communication that no computation hides: the time for which the rank that waits least stands still
  waiting   what the others stand still beyond that: for the slowest rank
  queued    time in which a rank could have run, but others had its core
  idle      time in which a rank neither ran, nor could have, nor waited for an operation: for its data, a file, a lock
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hvd_kernel.diagnosis.stragglers import Slow
from hvd_kernel.formatting import units
from hvd_kernel.protocol.messages import COMPRESSION, DATA_WORKERS

LEAST = 0.1
"""Share of the time from which something limits a run."""

CAUSE = 0.05
"""So much more of its time than the others must go in it, for it to be why a rank is slow."""

LARGE = 1 << 20
"""Bytes of an operation whose time goes with its bytes: half the bytes take half the time."""

MOVES = 0.5
"""Share of the bus bandwidth that is possible from which the bytes are what takes the time."""

_PAIR = 2


@dataclass(frozen=True)
class Figures:
    """What one rank did in a while: growth of its counters."""

    seconds: float
    waited: float = 0.0  # seconds in which its code stood still for operations
    communicated: float = 0.0  # seconds in which the core carried them out
    bytes: int = 0
    operations: int = 0
    ran: float | None = None  # processor seconds of its main thread; None: not known
    queued: float | None = None  # seconds in which that thread was ready, and others had the processor
    options: tuple[str, ...] = ()  # that it uses already (protocol.messages.OPTIONS)

    @property
    def wait(self) -> float:
        """Share of its time."""
        return min(1.0, self.waited / self.seconds)


@dataclass(frozen=True)
class Bottleneck:
    """What limits the run, in words; empty where there is nothing to say."""

    sentences: tuple[str, ...] = ()
    advice: str = ""

    @property
    def lines(self) -> list[str]:
        """All of it."""
        return [*self.sentences, *([self.advice] if self.advice else [])]


Possible = Callable[[float], float | None]
"""Bus bandwidth in bytes per second that this machine gave in operations of about so many bytes; None: unknown."""


def bottleneck(
    ranks: Mapping[int, Figures], slow: Mapping[int, Slow], possible: Possible = lambda _bytes: None, cores: int = 0
) -> Bottleneck:
    """Say what limits a run.

    Parameters
    ----------
    ranks
        At least half a second of each rank that is in the cell.
    slow
        The stragglers (``Stragglers.slow``).
    possible
        What ``hvd.bench()`` has measured.
    cores
        That the ranks share, all on one host; 0: not known.

    Examples
    --------
    >>> two = {rank: Figures(10.0, waited=0.2, communicated=0.3, bytes=10**6, operations=50) for rank in range(2)}
    >>> bottleneck(two, {}).sentences[0]
    'limited by its own computation: communication that it does not hide takes 2 % of the time'
    """
    if len(ranks) < _PAIR or not any(each.operations for each in ranks.values()):
        return Bottleneck()
    exposed = min(each.wait for each in ranks.values())
    late = [rank for rank in slow if rank in ranks and slow[rank].share >= LEAST]
    worst = max(late, key=lambda rank: slow[rank].share) if late else None
    sentences, advice = [], ""
    if worst is not None and slow[worst].share >= exposed:
        cause, advice = _cause(worst, ranks, slow[worst], cores)
        sentences.append(f"limited by rank {worst}, {slow[worst]}: {cause}")
    sentences.append(_communication(ranks, exposed, first=not sentences))
    if bus := _bus(ranks, possible):
        sentences.append(bus)
    if worst is None or slow[worst].share < exposed:
        if worst is not None:
            cause, _ = _cause(worst, ranks, slow[worst], cores)
            sentences.append(f"slowest rank: {worst}, {slow[worst]}: {cause}")
        advice = _smaller(ranks, exposed, possible)
    return Bottleneck(tuple(sentences), advice)


def _communication(ranks: Mapping[int, Figures], exposed: float, *, first: bool) -> str:
    whole = statistics.mean(min(1.0, each.communicated / each.seconds) for each in ranks.values())
    if first and exposed >= LEAST:
        hidden = f", of {units.percent(whole)} in all" if whole > exposed + CAUSE else ""
        return f"limited by communication: {units.percent(exposed)} of the time is not hidden by computation{hidden}"
    share = f"{units.percent(exposed)} of the time"
    if first:
        return f"limited by its own computation: communication that it does not hide takes {share}"
    return f"communication that computation does not hide: {share}"


def _bus(ranks: Mapping[int, Figures], possible: Possible) -> str:
    """Say how fast it was, beside what this machine has given."""
    achieved, size = _achieved(ranks)
    if not achieved:
        return ""
    said = f"bus bandwidth {units.number(achieved / 1e9)} GB/s in operations of {units.size_of(round(size))}"
    best = possible(size)
    if best is None:
        return said
    return f"{said}; %hvd bench had {units.number(best / 1e9)} GB/s here"


def _achieved(ranks: Mapping[int, Figures]) -> tuple[float, float]:
    """Return bytes per second of the bus, and bytes per operation."""
    moved, operations = sum(each.bytes for each in ranks.values()), sum(each.operations for each in ranks.values())
    seconds = sum(each.communicated for each in ranks.values())
    if not seconds or not moved:
        return 0.0, 0.0
    return 2 * (len(ranks) - 1) / len(ranks) * moved / seconds, moved / operations


def _cause(rank: int, ranks: Mapping[int, Figures], slow: Slow, cores: int) -> tuple[str, str]:
    """Say why a rank is slow, and what would help."""
    one = ranks[rank]
    if one.ran is None or one.queued is None:
        return "its own part of a step takes longer", ""
    shares = {each: _shares(figures) for each, figures in ranks.items()}
    others = [shares[each] for each in shares if each != rank]
    queued, idle = (shares[rank][i] - statistics.median(each[i] for each in others) for i in range(2))
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
        more = "more processes that load its data" if DATA_WORKERS in one.options else "num_workers of its DataLoader"
        save = f"up to {units.percent(slow.share)} of the others' time"
        return cause, f"{more}, or a cache of what it reads, would save {save}"
    return "its own computation takes longer", ""


def _shares(one: Figures) -> tuple[float, float]:
    """Return shares of the time outside of operations: queued, and idle."""
    ran, queued = one.ran or 0.0, one.queued or 0.0
    idle = max(0.0, one.seconds - one.waited - ran - queued)
    return queued / one.seconds, idle / one.seconds


def _smaller(ranks: Mapping[int, Figures], exposed: float, possible: Possible) -> str:
    """Advise smaller elements where the bytes are known to be what takes the time, and none are smaller yet."""
    achieved, size = _achieved(ranks)
    best = possible(size)
    if any(COMPRESSION in each.options for each in ranks.values()):
        return ""
    if exposed < LEAST or size < LARGE or best is None or achieved < MOVES * best:
        return ""
    return f"compression=hvd.Compression.fp16 would halve what float32 takes of these {units.percent(exposed)}"
