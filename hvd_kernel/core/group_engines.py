"""Engines beside that of ``hvd.init()``: those of torch's groups of some ranks. They count as work of this rank.

Terms.
  hidden  time for which a thread waits in the core for an operation, while the main thread computes
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hvd_kernel._native import Engine

_WAITED = "wait_ns"
_lock = threading.Lock()
_engines: dict[int, tuple[Engine, tuple[int, ...]]] = {}
_closed: dict[str, int] = {}  # sum of the counters of closed engines, less what was hidden


def add(engine: Engine, ranks: tuple[int, ...]) -> None:
    """Add an engine; ``ranks``: the numbers of its ranks among all ranks."""
    with _lock:
        _engines[id(engine)] = engine, ranks


def remove(engine: Engine, *, is_ours: bool = True) -> None:
    """Remove an engine, and keep its counters; ``is_ours=False``: it belongs to the parent of this forked process."""
    with _lock:
        if _engines.pop(id(engine), None) is not None and is_ours:
            _add(_closed, engine.counters())


def hide(nanoseconds: int) -> None:
    """Subtract hidden time from the time for which threads have waited in the core."""
    with _lock:
        _add(_closed, {_WAITED: -nanoseconds})


def counters() -> dict[str, int]:
    """Return the sum of the counters of all engines so far, less what was hidden."""
    with _lock:
        total = dict(_closed)
        for engine, _ in _engines.values():
            _add(total, engine.counters())
        return total


def engines() -> Iterator[tuple[Engine, tuple[int, ...]]]:
    """Return the engines that are open, with their ranks."""
    with _lock:
        opened = list(_engines.values())
    yield from opened


def _add(total: dict[str, int], counted: dict[str, int]) -> None:
    for name, value in counted.items():
        total[name] = total.get(name, 0) + value
