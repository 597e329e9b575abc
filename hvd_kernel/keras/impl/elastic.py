"""``horovod._keras.elastic``: elastic callbacks under Horovod's names of their implementations, ``backend`` first."""
# ruff: noqa: ARG002 - the backend is Keras's

from __future__ import annotations

from typing import Any

from hvd_kernel.keras import elastic

__all__ = ["CommitStateCallbackImpl", "UpdateBatchStateCallbackImpl", "UpdateEpochStateCallbackImpl"]


class CommitStateCallbackImpl(elastic.CommitStateCallback):
    """``CommitStateCallback(state, batches_per_commit)``."""

    def __init__(self, backend: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)


class UpdateBatchStateCallbackImpl(elastic.UpdateBatchStateCallback):
    """``UpdateBatchStateCallback(state)``."""

    def __init__(self, backend: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)


class UpdateEpochStateCallbackImpl(elastic.UpdateEpochStateCallback):
    """``UpdateEpochStateCallback(state)``."""

    def __init__(self, backend: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
