"""Engine of a newcomer before ``elastic.run``: it answers, and refuses what the other ranks would have to take part in.

They are within the decorated function, and issue something else: the newcomer's operation would meet theirs, or wait.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hvd_kernel._native import Engine

_COLLECTIVE = frozenset(
    (
        *("allreduce", "allgather", "broadcast", "alltoall", "reducescatter", "barrier", "join"),
        *("add_process_set", "remove_process_set", "allocate_shared", "release_shared"),
    )
)


class NewcomersEngine:
    """An engine, by its own names."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def __getattr__(self, name: str) -> Any:
        """Return what the engine has of this name, or what refuses it."""
        return _refusing(name, self.engine.rank) if name in _COLLECTIVE else getattr(self.engine, name)


def _refusing(name: str, rank: int) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> Any:
        raise ValueError(
            f"hvd.{name} before elastic.run, on rank {rank}, which is new in a job that runs: the other ranks are "
            "within the function that elastic.run calls. Let ranks communicate only in there (values that all must "
            "have in common belong into the state)."
        )

    return refuse
