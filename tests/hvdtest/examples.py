"""Generated examples (hypothesis): few and the same in make test, many and new ones in make test-all.

A folder's conftest that imports this has them so. They take as long as the machine needs: how fast one is tried says
nothing about it.
"""

from __future__ import annotations

import os
from typing import Any

from hypothesis import HealthCheck, settings

USUAL: dict[str, Any] = {
    "deadline": None,
    "database": None,
    "print_blob": True,
    "suppress_health_check": [HealthCheck.too_slow],
}
ALL = os.environ.get("HVDTEST_TIER") == "all"

settings.register_profile("default", max_examples=25, derandomize=True, **USUAL)
settings.register_profile("all", max_examples=500, **USUAL)
settings.load_profile("all" if ALL else "default")
