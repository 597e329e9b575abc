"""Stall report in one sentence, for cells and scripts: which operation waits for which rank, and where that is. Pure.

Terms.
  waits      a rank's code has been inside the same operation for ``WAIT_S`` or longer
  missing    ranks that have not submitted the operation: all other ranks wait for them
  silent     a rank that has sent no sample for ``SILENT_S``: it is stopped, or C code keeps Python's lock
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from hvd_kernel.formatting.rank_labels import label, rank_list
from hvd_kernel.protocol.messages import Frame, MetricsSample, Pending, Whereabouts

WAIT_S = 0.6
"""A wait of this length starts an inquiry: its result is on the screen within a second."""

SILENT_S = 0.7
"""Telemetry arrives every 0.2 s."""

MAX_TEXT = 60
MAX_NAME = 60

Places = Mapping[int, Whereabouts]

_STATES = {
    "idle": "{has} ended the cell",
    "stopped": "{is} stopped (SIGSTOP or a debugger)",
    "dead": "{is} dead",
    "ended": "{has} ended",
    "traceback": "{is} formatting the traceback of an error",
    "absent": "cannot be asked",
    "elsewhere": "another launcher has started",
}
_AT = {"silent": "in C code, called in", "prompt": "at a prompt in"}
_DOING = {
    "idle": "no cell runs",
    "stopped": "stopped (SIGSTOP or a debugger)",
    "dead": "dead",
    "prompt": "at a prompt",
    "silent": "in C code that keeps Python's lock",
    "ended": "has ended",
    "traceback": "formatting the traceback of an error",
    "absent": "cannot be asked: it has not called hvd.init(), or not with the hvd_kernel of its launcher",
    "elsewhere": "started by another launcher",
}
_WORDS = {"one": {"is": "is", "has": "has", "waits": "waits"}, "many": {"is": "are", "has": "have", "waits": "wait"}}


@dataclass
class _Latest:
    at: float
    since: float  # start of this operation, or of the time without one
    doing: tuple[str, int]


class Activity:
    """Tracks, from the samples of one run, which ranks wait and which are silent. Times are the reader's own."""

    def __init__(self, ranks: Iterable[int], now: float) -> None:
        self._latest = {rank: _Latest(now, now, ("", 0)) for rank in ranks}

    def observe(self, sample: MetricsSample, now: float) -> None:
        """Record a sample; the state "idle" marks a rank's last one."""
        if sample.rank not in self._latest:
            return
        if sample.state == "idle":
            del self._latest[sample.rank]
            return
        doing = (sample.waiting_for, sample.ops) if sample.state == "collective" else ("", 0)
        before = self._latest[sample.rank]
        since = before.since if before.doing == doing else now
        self._latest[sample.rank] = _Latest(now, since, doing)

    def begin_again(self, now: float) -> None:
        """Measure silence from now on: samples were not read in the meantime."""
        for latest in self._latest.values():
            latest.at = now

    def some_wait(self, now: float) -> bool:
        """Return whether a rank has been in one operation for ``WAIT_S``."""
        return any(latest.doing[0] and now - latest.since >= WAIT_S for latest in self._latest.values())

    def runs(self, rank: int) -> bool:
        """Return whether a rank of the run has not sent its last sample."""
        return rank in self._latest

    def silent(self, now: float) -> set[int]:
        """Return the ranks that have sent no sample for ``SILENT_S`` although their cell runs."""
        return {rank for rank, latest in self._latest.items() if now - latest.at >= SILENT_S}


def whereabouts(places: Places) -> str:
    """Describe where ranks are: ``rank 2 is in C code, called in cell:4``."""
    parts = (f"{rank_list(group)} {_fill(text, len(group))}" for text, group in _grouped(places, places).items())
    return "; ".join(parts)


def sentence(places: Places, ranks: Collection[int]) -> str:
    """Describe what the ranks of a run wait for; "" if no operation waits for a rank.

    Parameters
    ----------
    places
        Where ranks are; ranks whose place is unknown are absent.
    ranks
        The ranks of the run: the cell does not run on any other missing rank.
    """
    oldest = awaited_operation(places)
    if oldest is None:
        return ""
    missing = [rank for rank in oldest.missing if rank in places or rank not in ranks]
    groups = _grouped({rank: place for rank, place in places.items() if rank in ranks}, missing).items()
    parts = [f"{rank_list(group)}, which {_fill(text, len(group))}" for text, group in groups]
    return f"{operation(oldest.name)} waits for {' and for '.join(parts)}" if parts else ""


def awaited(places: Places) -> set[int]:
    """Return the ranks for which an operation waits."""
    oldest = awaited_operation(places)
    return set(oldest.missing) if oldest else set()


def awaited_operation(places: Places) -> Pending | None:
    """Return the operation that has waited longest for missing ranks; None if none has waited for ``WAIT_S``."""
    stalled = (
        pending
        for place in places.values()
        for pending in place.pending
        if pending.missing and pending.seconds >= WAIT_S
    )
    longest = max(stalled, key=lambda pending: pending.seconds, default=None)
    return longest or _guess(places)


def _grouped(places: Places, ranks: Iterable[int]) -> dict[str, list[int]]:
    where: dict[str, list[int]] = {}
    for rank in ranks:
        where.setdefault(_where(places.get(rank)), []).append(rank)
    return where


def _guess(places: Places) -> Pending | None:
    """Return the most likely awaited operation if the rank that would know it (usually 0) does not answer."""
    waiting = {rank: place.waiting_for for rank, place in places.items() if place.state == "collective"}
    mute = tuple(rank for rank, place in places.items() if place.state in ("silent", "stopped"))
    name = next(iter(waiting.values()), "")
    return Pending(name, 0.0, mute) if name and mute else None


def _where(place: Whereabouts | None) -> str:
    if place is None:
        return "the cell does not run on"
    if place.state in _STATES:
        return _STATES[place.state]
    spot = _literal(_spot(place.frames))
    if place.state == "collective":
        return f"{{waits}} in {_literal(operation(place.waiting_for))} at {spot or 'no line of its own'}"
    doing = _AT.get(place.state, "in")
    return f"{{is}} {doing} {spot}" if spot else "{is} busy outside Python"


def _spot(frames: Sequence[Frame]) -> str:
    """Return the innermost call of the user's own code: ``data.py:41 load(): time.sleep(60)``."""
    calls = [frame for frame in frames if frame.is_user_code] or list(frames)
    return line(calls[-1]) if calls else ""


def line(frame: Frame) -> str:
    """Return one call as one line."""
    function = f" {frame.function}()" if frame.function.isidentifier() else ""
    text = frame.text if len(frame.text) <= MAX_TEXT else frame.text[: MAX_TEXT - 1] + "…"
    return f"{frame.place}{function}" + (f": {text}" if text else "")


def operation(name: str) -> str:
    """Format the core's name of an operation for users: ``allreduce 'grad/conv1'``, ``barrier``."""
    kind, _, tensor = name.partition(".")
    short = tensor if len(tensor) <= MAX_NAME else tensor[: MAX_NAME - 1] + "…"
    return f"{kind} '{short}'" if tensor and not tensor.startswith("noname") else kind


def _literal(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def _fill(text: str, ranks: int) -> str:
    return text.format(**_WORDS["one" if ranks == 1 else "many"])


def report(places: Places, program: str = "the cell") -> str:
    """Return every rank's stack, one block for ranks at the same place; ends with a newline unless empty."""
    blocks: dict[tuple[str, tuple[str, ...]], list[int]] = {}
    for rank, place in sorted(places.items()):
        calls = (*map(line, place.frames), *(f"C: {function}" for function in place.native[::-1]))
        blocks.setdefault((_doing(place, program), calls), []).append(rank)
    return "".join(
        f"{label(ranks)} {doing}\n" + "".join(f"    {call}\n" for call in calls)
        for (doing, calls), ranks in blocks.items()
    )


def _doing(place: Whereabouts, program: str) -> str:
    if place.state == "collective":
        return f"waiting in {operation(place.waiting_for)}"
    return f"in {program}'s own code" if place.state == "compute" else _DOING[place.state]
