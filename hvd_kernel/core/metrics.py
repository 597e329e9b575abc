"""Training metrics of this process: steps, samples, the user's own values. Frontends write, telemetry reads.

One writer thread at a time is the rule (the training loop); readers see a value at most one step old.
The panel shows each rank's own values. If the run is tracked (``hvd_kernel.tracking``), ``log`` also reduces them over
the ranks with one small allreduce, and rank 0 writes the results.

Terms.
  table   a row for each rank: whether it takes part, a digest of its names and step, its values
"""

from __future__ import annotations

import math
import os
import threading
import warnings
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from hvd_kernel import tracking
from hvd_kernel.core import ops, session
from hvd_kernel.errors import Mismatch
from hvd_kernel.formatting.rank_labels import rank_list
from hvd_kernel.protocol.messages import NotFinite
from hvd_kernel.tracking.sink import FILE, MODEL

SAMPLES = "samples"
"""Argument of ``log`` that is no value: training samples."""

MAX_NAMES = 256
MAX_NAME = 100
"""A sample carries every name, five times a second."""

CALL = "hvd.log (every rank has to call it)"
"""Name of the allreduce, which reports of waiting ranks show."""

_HEAD = 2  # columns of the table before the values


class LoggedName:
    """The values of one name: the latest one, and the range of the finite ones since the last ``pop``."""

    def __init__(self) -> None:
        self.latest = math.nan
        self._low, self._high = math.inf, -math.inf
        self._since: int | None = None  # step from which on all values are not finite
        self._alarm: NotFinite | None = None  # the first one that is not finite since the last ``pop``

    def add(self, value: float, step: int | None) -> None:
        """Add a value, logged at a step; None: at the present one of the cell."""
        self.latest = value
        if math.isfinite(value):
            self._since = None
            self._low, self._high = min(self._low, value), max(self._high, value)
            return
        if self._since is None:
            self._since = _counts()[0] - _first_step if step is None else step
        if self._alarm is None:
            self._alarm = NotFinite(self._since, str(value), is_latest=False)

    def pop(self) -> tuple[tuple[float, float] | None, NotFinite | None]:
        """Return the range, if its ends differ, and the value that is not finite, and start again."""
        span = (self._low, self._high) if self._low < self._high else None
        alarm = self._alarm if self._since is None else NotFinite(self._since, str(self.latest), is_latest=True)
        self._low, self._high, self._alarm = math.inf, -math.inf, None
        return span, alarm


@dataclass(frozen=True)
class MetricsSnapshot:
    """Metrics at one moment; counters only grow."""

    step: int
    samples: int


@dataclass(frozen=True)
class LoggedValues:
    """Values logged since the last ``pop_logged``; see ``MetricsSample``."""

    latest: dict[str, float] = field(default_factory=dict)
    ranges: dict[str, tuple[float, float]] = field(default_factory=dict)
    not_finite: dict[str, NotFinite] = field(default_factory=dict)


Counter = Callable[[], tuple[int, int]]

_counters: list[Counter] = []
_steps = 0
_samples = 0
_logged: dict[str, LoggedName] = {}
_lock = threading.Lock()  # protects the values: telemetry takes them on its own thread
_first_step = 0  # of the cell
_read = 0  # samples of the latest snapshot
_samples_of_user: int | None = None  # what hvd.log(samples=n) replaces the count by, in this cell
_offset = 0  # of the count, after cells in which the user's own replaced it
_warned = False


def log(
    metrics: Mapping[str, Any] | None = None, /, *, step: Any = None, per_rank: bool = False, **values: Any
) -> None:
    """Show values in the panel, and track them: ``log(loss=loss, step=10)``, ``log({"train/loss": loss})``.

    Values are numbers, 0-dimensional tensors or arrays. The panel shows the last value of each rank and name, the range
    of its values over time, and at which step it became NaN or infinite, for the first 256 names of a cell with at most
    100 characters. In a tracked run (HVD_TRACK, ``%hvd track``) every rank calls this with the same names, and the mean
    over the ranks is written.

    Parameters
    ----------
    metrics, **values
        Values by name; by position if a name is not a Python identifier. ``samples`` is not logged as a value: it is
        the number of this rank's training samples since the last call, and replaces the automatic count in the rest
        of the cell.
    step
        The training's step, the same on every rank.
    per_rank
        Write every rank's value too, as ``loss/rank_0``.

    Raises
    ------
    ValueError
        A value is not a number.
    Mismatch
        On every rank: the names or steps of two ranks differ. The message shows both. Only in a tracked run.

    Examples
    --------
    >>> hvd.log(loss=torch.tensor(0.5), step=10)
    >>> hvd.log({"train/accuracy": 0.75}, step=10)
    >>> hvd.log(loss="high")
    Traceback (most recent call last):
    ValueError: log(loss=...) takes a number or a tensor of one element: could not convert string to float: 'high'
    """
    logged = values if metrics is None else {**metrics, **values}
    if SAMPLES in logged:
        logged = dict(logged)
        _count_samples(int(_checked(SAMPLES, logged.pop(SAMPLES))))
    tracker = tracking.tracker()
    at = None if step is None else int(_number(step))
    if tracker is None:
        _show(logged, at)
        return
    numbers = {name: _checked(name, value) for name, value in logged.items()}
    _show(numbers, at)
    rows = _gathered(numbers, at)
    if tracker.writes():
        tracker.log(
            tracking.Point(reduce_values(sorted(numbers), rows, per_rank=per_rank or tracker.choice.per_rank), at)
        )


def log_model(
    path: str | os.PathLike[str], name: str = "", *, framework: str = "", step: int | None = None, **summary: Any
) -> None:
    """Track a file or folder of rank 0 that holds a model; calls of other ranks do nothing.

    Parameters and errors as in ``log_artifact``.

    Parameters
    ----------
    framework
        Framework of the model, such as "torch"; part of its summary.

    Examples
    --------
    >>> torch.save({"weight": torch.ones(2)}, "model.pt")
    >>> hvd.log_model("model.pt", framework="torch", step=100)
    """
    _keep(path, name, MODEL, step, {"framework": framework, **summary} if framework else summary)


def log_artifact(
    path: str | os.PathLike[str], name: str = "", *, kind: str = FILE, step: int | None = None, **summary: Any
) -> None:
    """Track a file or folder of rank 0; calls of other ranks, or without a tracked run, do nothing.

    Parameters
    ----------
    path
        Path of the file or folder; a tracker that stores copies copies it.
    name
        Name of the artifact, by default the file name without its suffix.
    kind
        Kind of artifact: "file", or another kind that the tracker knows.
    step
        The training's step.
    **summary
        Further properties by name.

    Raises
    ------
    FileNotFoundError
        On rank 0: it does not exist. Only in a tracked run.

    Examples
    --------
    >>> import pathlib
    >>> pathlib.Path("scores.csv").write_text("epoch,loss")
    10
    >>> hvd.log_artifact("scores.csv", kind="csv", rows=1)
    """
    _keep(path, name, kind, step, summary)


def outputs_path(*parts: str | os.PathLike[str]) -> Path:
    """Return the run's folder for the user's files, or a path in it: the same on all initialised ranks.

    The folder exists when this returns.

    Parameters
    ----------
    *parts
        Folders and a file below it; these are not created.

    Raises
    ------
    OSError
        The folder cannot be created.
    ConfigError
        HVD_TRACK cannot be used.

    Examples
    --------
    >>> hvd.outputs_path("plots", "loss.png").name
    'loss.png'
    >>> hvd.outputs_path().is_dir()
    True
    """
    return tracking.outputs().joinpath(*parts)


def _count_samples(samples: int) -> None:
    """Count samples of the user's; from the first call on, the automatic count is ignored."""
    global _samples_of_user  # noqa: PLW0603 - as the counters
    _samples_of_user = (_read if _samples_of_user is None else _samples_of_user) + samples


def _keep(path: str | os.PathLike[str], name: str, kind: str, step: int | None, summary: dict[str, Any]) -> None:
    tracker = tracking.tracker()
    if tracker is None or not tracker.writes():
        return
    file = Path(path)
    if not file.exists():
        raise FileNotFoundError(f"log_{'model' if kind == MODEL else 'artifact'}: there is no {file.absolute()}")
    tracker.keep(tracking.Item(file.absolute(), name or file.stem, kind, step, summary))


def _show(values: Mapping[str, Any], step: int | None) -> None:
    for name, value in values.items():
        if name not in _logged and (len(_logged) >= MAX_NAMES or len(name) > MAX_NAME):
            _refuse(name)
            continue
        number = value if type(value) is float else _checked(name, value)
        with _lock:
            if name not in _logged:
                _logged[name] = LoggedName()
            _logged[name].add(number, step)


def _checked(name: str, value: Any) -> float:
    try:
        return _number(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"log({name}=...) takes a number or a tensor of one element: {error}") from error


def _number(value: Any) -> float:
    item = getattr(value, "item", None)  # of tensors and arrays: float() of a tensor that requires a gradient warns
    return float(value if item is None else item())


def _refuse(name: str) -> None:
    """Warn once per cell that a name is not shown, instead of raising, which would end the training."""
    global _warned  # noqa: PLW0603 - as the counters
    if not _warned:
        _warned = True
        shown = name if len(name) <= MAX_NAME else f"{name[:MAX_NAME]}…"
        most = f"{MAX_NAMES} names of {MAX_NAME} characters at most"
        warnings.warn(f"log: {shown!r} is not shown, nor are others: a cell has {most}", stacklevel=4)


def _gathered(numbers: Mapping[str, float], step: int | None) -> dict[int, Sequence[float]]:
    """Return the values of every rank that takes part, in the order of their names.

    Each rank adds its row to a table of zeros: a sum, unlike a gather, works when some ranks have joined.
    """
    names = sorted(numbers)
    values = [numbers[name] for name in names]
    if not session.is_initialized() or session.size() == 1:
        return {tracking.rank(): values}
    rank = session.rank()
    digest = zlib.crc32(repr((names, step)).encode())
    table = np.zeros((session.size(), _HEAD + len(names)))
    table[rank] = [1.0, digest, *values]
    try:
        table = ops.allreduce(table, CALL, ops.Sum)
    except Mismatch as mismatch:
        raise _differ(names, step) from mismatch
    rows = {int(member): table[member] for member in np.flatnonzero(table[:, 0])}
    if any(row[1] != digest for row in rows.values()):
        raise _differ(names, step)
    return {member: row[_HEAD:].tolist() for member, row in rows.items()}


def _differ(names: list[str], step: int | None) -> Mismatch:
    return Mismatch(names_difference(ops.allgather_object((names, step), "hvd.log.names")))


def begin_cell() -> None:
    """Forget the values that earlier cells of a notebook have logged; the counts of steps and samples continue."""
    global _warned, _first_step, _samples_of_user, _offset
    if _samples_of_user is not None:
        _offset, _samples_of_user = _samples_of_user - _counts()[1], None
    _warned, _first_step = False, _counts()[0]
    with _lock:
        _logged.clear()


def step(samples: int = 0, steps: int = 1) -> None:
    """Count one optimizer step and its training samples; ``steps=0``: further samples of the latest one."""
    global _steps, _samples  # noqa: PLW0603 - counters of the process
    _steps += steps
    _samples += samples


def count_by(counter: Counter) -> None:
    """Add a framework's own count of steps and samples, as of a graph, where no Python runs; called on any thread."""
    _counters.append(counter)


def snapshot() -> MetricsSnapshot:
    """Return the counts so far."""
    global _read  # noqa: PLW0603 - as the counters
    steps, counted = _counts()
    _read = counted + _offset if _samples_of_user is None else _samples_of_user
    return MetricsSnapshot(steps, _read)


def pop_logged() -> LoggedValues:
    """Return what has been logged since the last call; for one reader."""
    ranges, not_finite = {}, {}
    with _lock:
        for name, values in _logged.items():
            span, alarm = values.pop()
            if span is not None:
                ranges[name] = span
            if alarm is not None:
                not_finite[name] = alarm
        latest = {name: values.latest for name, values in _logged.items() if math.isfinite(values.latest)}
        return LoggedValues(latest, ranges, not_finite)


def _counts() -> tuple[int, int]:
    """Return the numbers of steps and samples."""
    counted = [(_steps, _samples), *(counter() for counter in _counters)]
    return sum(steps for steps, _ in counted), sum(samples for _, samples in counted)


def reset() -> None:
    """Forget everything: for tests."""
    global _steps, _samples, _samples_of_user, _read, _offset  # noqa: PLW0603 - counters of the process
    _counters.clear()
    _samples_of_user = None
    _steps = _samples = _read = _offset = 0
    begin_cell()


tracking.know_rank(lambda: session.rank() if session.is_initialized() else tracking.rank_of(os.environ))


def reduce_values(names: Sequence[str], rows: Mapping[int, Sequence[float]], *, per_rank: bool) -> dict[str, float]:
    """Return the mean of each column of ``rows``, with ``per_rank`` also each rank's value as ``name/rank_3``."""
    means = {name: mean([row[column] for row in rows.values()]) for column, name in enumerate(names)}
    if not per_rank:
        return means
    return means | {f"{name}/rank_{rank}": row[i] for i, name in enumerate(names) for rank, row in rows.items()}


def mean(numbers: Sequence[float]) -> float:
    """Return the exactly rounded mean; with infinities and NaN, the mean in floating point."""
    try:
        return float(sum(map(Fraction, numbers)) / len(numbers))
    except (OverflowError, ValueError):  # infinities and NaN are no fractions
        return sum(number / len(numbers) for number in numbers)


def names_difference(logged: Iterable[tuple[Sequence[str], int | None]]) -> str:
    """Return an error message that lists the ranks by what they logged; ``logged`` has the names and step by rank."""
    ranks_by_text: dict[str, list[int]] = {}
    for rank, (names, step) in enumerate(logged):
        text = (", ".join(names) or "nothing") + ("" if step is None else f" at step {step}")
        ranks_by_text.setdefault(text, []).append(rank)
    groups = "; ".join(f"{rank_list(ranks)}: {text}" for text, ranks in ranks_by_text.items())
    return f"hvd.log: ranks log different names or steps. {groups}. Every rank has to log the same."
