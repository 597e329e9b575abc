"""Generated examples: few and always the same ones in make test, many and new ones in make test-all (HVDTEST_TIER=all).

They take as long as the machine needs: how fast one is tried says nothing about it.
"""

from __future__ import annotations

import os

from hvdtest.tracked import untracked  # noqa: F401 - a fixture
from hypothesis import HealthCheck, settings

PATIENT = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow], "database": None, "print_blob": True}

settings.register_profile("default", max_examples=25, derandomize=True, **PATIENT)
settings.register_profile("all", max_examples=500, **PATIENT)
settings.load_profile("all" if os.environ.get("HVDTEST_TIER") == "all" else "default")
