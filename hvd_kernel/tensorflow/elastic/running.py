"""``elastic.run`` for TensorFlow: what its operations raise when ranks fail is told to the loop as Horovod's error."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, overload

import tensorflow as tf

from hvd_kernel.elastic import run as run_any
from hvd_kernel.tensorflow import library

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
        except tf.errors.OpError as error:
            meant = library.translated(error)
            if meant is error:
                raise
            raise meant from error

    return run_any(train, reset_limit=reset_limit)
