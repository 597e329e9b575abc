"""A standalone master with workers that come and go while an elastic job trains."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hvdtest.programs import text_of

pytestmark = [pytest.mark.mp, pytest.mark.nightly, pytest.mark.timeout(600)]

PROGRAMS = Path(__file__).parent / "programs"
SCRIPT = text_of(PROGRAMS / "standalone.py")


def test_ranks_come_and_go_with_the_workers(results: Mapping[str, Any]) -> None:
    places, sizes, is_equal = results["workers_come_and_go"]
    assert places == [[0, 2], [1, 2]]
    assert sizes == [1, 2, 1, 2]
    assert is_equal
