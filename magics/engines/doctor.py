"""What is missing where ``--on`` says: a row for each engine."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hvd_kernel.diagnosis.machine import CheckResult

_WHERE = {
    "ray": "hvd_kernel.ray.doctor",
    "spark": "hvd_kernel.spark.doctor",
    "k8s": "hvd_kernel.launch.launchers.kubernetes_doctor",
}


def examine_on(engine: str) -> list[CheckResult]:
    """Look at an engine and at what its processes have."""
    found: list[CheckResult] = import_module(_WHERE[engine]).examine()
    return found
