"""What this process has done in training: steps, samples, the user's own values. Frontends write, telemetry reads.

One writer thread at a time is the rule (the training loop); readers see a value at most one step old.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Snapshot:
    """All of it at one moment; counters only grow."""

    step: int
    samples: int
    logged: dict[str, float] = field(default_factory=dict)


_steps = 0
_samples = 0
_logged: dict[str, float] = {}


def log(**values: Any) -> None:
    """Show values of this rank in the dashboard: ``log(loss=loss, accuracy=0.97)``.

    Numbers, 0-dimensional tensors and arrays are taken; the last value of each name counts.
    """
    for name, value in values.items():
        try:
            _logged[name] = value if type(value) is float else _number(value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise ValueError(f"log({name}=...) takes a number or a tensor of one element: {error}") from error


def _number(value: Any) -> float:
    item = getattr(value, "item", None)  # tensors and arrays, without autograd's opinion on float()
    return float(value if item is None else item())


def begin_cell() -> None:
    """Forget what earlier cells of a notebook have logged; steps and samples go on counting."""
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
    _logged.clear()
