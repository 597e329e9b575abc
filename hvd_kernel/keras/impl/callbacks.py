"""``horovod._keras.callbacks``: callbacks under Horovod's names of their implementations, with ``backend`` first."""
# ruff: noqa: ARG002 - the backend is Keras's

from __future__ import annotations

from typing import Any

from hvd_kernel.keras import callbacks

__all__ = [
    "BroadcastGlobalVariablesCallbackImpl",
    "LearningRateScheduleCallbackImpl",
    "LearningRateWarmupCallbackImpl",
    "MetricAverageCallbackImpl",
]


class BroadcastGlobalVariablesCallbackImpl(callbacks.BroadcastGlobalVariablesCallback):
    """``BroadcastGlobalVariablesCallback(root_rank, device, local_variables)``."""

    def __init__(self, backend: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)


class MetricAverageCallbackImpl(callbacks.MetricAverageCallback):
    """``MetricAverageCallback(device)``."""

    def __init__(self, backend: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)


class LearningRateScheduleCallbackImpl(callbacks.LearningRateScheduleCallback):
    """``LearningRateScheduleCallback(initial_lr, multiplier, ...)``."""

    def __init__(self, backend: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)


class LearningRateWarmupCallbackImpl(callbacks.LearningRateWarmupCallback):
    """``LearningRateWarmupCallback(initial_lr, ...)``."""

    def __init__(self, backend: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
