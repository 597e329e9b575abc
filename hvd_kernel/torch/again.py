"""A distributed optimizer in another process: its arguments travel, its hooks and reductions are made there."""

from __future__ import annotations

from typing import Any

import torch

from hvd_kernel.torch.optimizer import DistributedOptimizer
from hvd_kernel.torch.wrapping import Wrapped


def apart(thing: object) -> tuple[Any, ...] | None:
    """Return how pickle is to make the thing again, or None if it is no distributed optimizer.

    Raises
    ------
    TypeError
        Its gradients travel in groups, which all ranks have to make together.
    """
    if not isinstance(thing, Wrapped):
        return None
    reducer = thing._reducer  # noqa: SLF001 - of this room
    if any(not group.bucket for group in reducer.groups):
        raise TypeError("a DistributedOptimizer with groups has to be made on all ranks together: wrap it again")
    arguments: dict[str, Any] = {
        "named_parameters": [(name, param) for param, name in thing._parameter_names.items()],  # noqa: SLF001
        "compression": reducer.plan.compression,
        "backward_passes_per_step": reducer.passes,
        "op": thing.op,
        "gradient_predivide_factor": getattr(thing, "gradient_predivide_factor", 1.0),
        "sparse_as_dense": reducer.plan.sparse_as_dense,
        "process_set": thing.process_set,
    }
    return _again, (type(thing._wrapped), thing.__getstate__(), arguments)  # noqa: SLF001


def _again(base: type[torch.optim.Optimizer], state: dict[str, Any], arguments: dict[str, Any]) -> Any:
    plain = base.__new__(base)
    plain.__setstate__(state)
    return DistributedOptimizer(plain, **arguments)
