"""``hvd.elastic``: training that outlives a failure, with JAX's parameters as its state.

::

    state = hvd.elastic.JaxState(params=params, opt_state=opt_state, epoch=0, batch=0)

    @hvd.elastic.run
    def train(state): ...                    # calls state.commit() now and then; a failure goes back to there

    train(state)
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, overload

from hvd_kernel.elastic import (
    Checkpoint,
    HorovodInternalError,
    HostsUpdatedInterrupt,
    HostUpdateResult,
    ObjectState,
    State,
    StepGuard,
    notification_manager,
    run_fn,
)
from hvd_kernel.elastic import run as run_any
from hvd_kernel.jax import library
from hvd_kernel.jax.elastic.state import JaxState

__all__ = [
    "Checkpoint",
    "HorovodInternalError",
    "HostUpdateResult",
    "HostsUpdatedInterrupt",
    "JaxState",
    "ObjectState",
    "State",
    "StepGuard",
    "notification_manager",
    "run",
    "run_fn",
]

Train = Callable[..., Any]


@overload
def run(func: Train, *, reset_limit: int | None = None) -> Train: ...
@overload
def run(func: None = None, *, reset_limit: int | None = None) -> Callable[[Train], Train]: ...
def run(func: Train | None = None, *, reset_limit: int | None = None) -> Train | Callable[[Train], Train]:
    """Decorate a function whose first argument is a State: when a collective fails it goes on from the last commit.

    ``reset_limit``: give up when the ranks would have to meet again more often than that; also HVD_RESET_LIMIT.
    All ranks call the function together, and none of them communicates before it but in ``hvd.init()``.
    """
    if func is None:
        return functools.partial(run, reset_limit=reset_limit)

    @functools.wraps(func)
    def train(*args: Any, **kwargs: Any) -> Any:
        try:
            return func(*args, **kwargs)
        except library.RAISED as error:
            meant = library.translated(error)
            if meant is error:
                raise
            raise meant from error

    return run_any(train, reset_limit=reset_limit)
