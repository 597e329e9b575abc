"""State that accelerate keeps once per process, replaced for a while; accelerate has no public function for it.

Objects that accelerate creates meanwhile keep the replacement: the ``__dict__`` of an instance is the shared dict.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from hvd_kernel.protocol import modules

_KINDS = ("PartialState", "AcceleratorState", "GradientState")

States = Mapping[Any, dict[str, Any]]
"""Class of accelerate -> its state."""


@contextmanager
def replaced(states: States) -> Iterator[None]:
    """Use these states in the block, and the previous ones afterwards."""
    before = {kind: kind._shared_state for kind in states}  # noqa: SLF001
    _use(states)
    try:
        yield
    finally:
        _use(before)


@contextmanager
def hidden() -> Iterator[None]:
    """Use new states in the block, and the previous ones afterwards; accelerate may be imported in the block."""
    before = _loaded()
    _use(_new(before))
    try:
        yield
    finally:
        _use(_new(_loaded()) | before)


def _loaded() -> dict[Any, dict[str, Any]]:
    """Return the states that are in use; none before accelerate is imported."""
    module = modules.loaded("accelerate.state")
    kinds = [] if module is None else [getattr(module, name) for name in _KINDS]
    return {kind: kind._shared_state for kind in kinds}  # noqa: SLF001


def _new(states: States) -> dict[Any, dict[str, Any]]:
    return {kind: type(state)() for kind, state in states.items()}


def _use(states: States) -> None:
    for kind, state in states.items():
        kind._shared_state = state  # noqa: SLF001
