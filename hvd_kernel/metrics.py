"""What this process has done in training: steps, samples, the user's own values. Frontends write, telemetry reads.

One writer thread at a time is the rule (the training loop); readers see a value at most one step old.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any

MAX_NAMES = 256
MAX_NAME = 100
"""A sample carries every name, five times a second."""


@dataclass(frozen=True)
class Snapshot:
    """All of it at one moment; counters only grow."""

    step: int
    samples: int
    logged: dict[str, float] = field(default_factory=dict)


_steps = 0
_samples = 0
_logged: dict[str, float] = {}
_warned = False


def log(**values: Any) -> None:
    """Show values of this rank in the dashboard: ``log(loss=loss, accuracy=0.97)``.

    Numbers, 0-dimensional tensors and arrays are taken; the last value of each name counts. Of a cell's names the first
    256 are taken, if they have no more than 100 characters.
    """
    for name, value in values.items():
        if name not in _logged and (len(_logged) >= MAX_NAMES or len(name) > MAX_NAME):
            _refuse(name)
            continue
        try:
            _logged[name] = value if type(value) is float else _number(value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise ValueError(f"log({name}=...) takes a number or a tensor of one element: {error}") from error


def _number(value: Any) -> float:
    item = getattr(value, "item", None)  # tensors and arrays, without autograd's opinion on float()
    return float(value if item is None else item())


def _refuse(name: str) -> None:
    """Say once in each cell that a name is not taken: training is not to end for it."""
    global _warned  # noqa: PLW0603 - as the counters
    if not _warned:
        _warned = True
        shown = name if len(name) <= MAX_NAME else f"{name[:MAX_NAME]}…"
        most = f"{MAX_NAMES} names of {MAX_NAME} characters at most"
        warnings.warn(f"log: {shown!r} is not shown, nor are others: a cell has {most}", stacklevel=3)


def begin_cell() -> None:
    """Forget what earlier cells of a notebook have logged; steps and samples go on counting."""
    global _warned  # noqa: PLW0603 - as the counters
    _warned = False
    _logged.clear()


def step(samples: int = 0) -> None:
    """Count one optimizer step and the training samples that went into it."""
    global _steps, _samples  # noqa: PLW0603 - counters of the process
    _steps += 1
    _samples += samples


def snapshot() -> Snapshot:
    """Return what has been counted and logged so far."""
    return Snapshot(_steps, _samples, dict(_logged))


def reset() -> None:
    """Forget everything: for tests."""
    global _steps, _samples  # noqa: PLW0603 - counters of the process
    _steps = _samples = 0
    begin_cell()
