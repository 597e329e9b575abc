"""A process that tracks nothing yet, for tests of tracking, and a run of a known time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hvd_kernel import tracking
from hvd_kernel.core import metrics
from hvd_kernel.tracking.sink import Run

BEGAN = 1795459433.25  # 2026-11-23 18:43:53.25 UTC
RUN = Run("3f2a91c0" + "0" * 24, BEGAN)
_ELSEWHERE = (
    "HVD_TRACK",
    "HVD_TRACK_RUN",
    "POLYAXON_ARTIFACTS_ROOT",
    "POLYAXON_IS_MANAGED",
    "POLYAXON_OFFLINE_ROOT",
    "POLYAXON_RUN_INSTANCE",
)


@pytest.fixture
def untracked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Ignore the environment, and write to a folder of this test."""
    for name in _ELSEWHERE:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    tracking.reset()
    metrics.reset()
    yield
    tracking.reset()
    metrics.reset()
