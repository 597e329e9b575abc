"""Fixtures of the unit tests: generated examples of the tier, a process that is the only rank."""

from __future__ import annotations

from collections.abc import Iterator

import hvdtest.examples  # noqa: F401 - it loads the profile
import pytest
from hvdtest.tracked import untracked  # noqa: F401 - a fixture


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have this process be the only rank."""
    import hvd_kernel.numpy as hvd  # most tests of this folder need no extension

    monkeypatch.setenv("HVD_BOOTSTRAP", "none")
    hvd.init()
    yield
    hvd.shutdown()
