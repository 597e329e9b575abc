"""Ray, end to end: two ranks that are actors reduce, log and raise.

The default tier's only test of Ray: the first one to run makes the environment.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hvdtest.programs import text_of
from hvdtest.ray_driver import outcomes

PROGRAMS = Path(__file__).parent / "programs"
SCRIPT = text_of(PROGRAMS / "smoke.py")


@pytest.mark.mp
@pytest.mark.timeout(600)
def test_two_actors_reduce_log_and_raise(tmp_path: Path) -> None:
    values, heard, cause = outcomes(SCRIPT, tmp_path)["calls"]
    assert values == [[0, 2, 6.0], [1, 2, 6.0]]
    assert heard == [0, 1]
    assert cause == ["RankFailed", 1, "ValueError('bad shard')"]
