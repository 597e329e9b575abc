"""GPUs that Spark has assigned to a rank's task: ``horovod.spark.task.get_available_devices``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

VARIABLE = "HVD_SPARK_GPUS"
_LOCAL_RANK = "HOROVOD_SPARK_USE_LOCAL_RANK_GPU_INDEX"


def variables(resources: Mapping[str, Any]) -> dict[str, str]:
    """Return a rank's environment variables for its task's resources."""
    gpu = resources.get("gpu")
    return {} if gpu is None else {VARIABLE: ",".join(gpu.addresses)}


def get_available_devices() -> list[str]:
    """Return the addresses of the GPUs that Spark has assigned to this rank's task.

    Returns
    -------
    list of str
        Empty if no GPUs were requested from Spark, or HOROVOD_SPARK_USE_LOCAL_RANK_GPU_INDEX=1 selects the device of
        the local rank.
    """
    if os.environ.get(_LOCAL_RANK) == "1":
        return []
    return [address for address in os.environ.get(VARIABLE, "").split(",") if address]
