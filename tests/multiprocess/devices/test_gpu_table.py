"""The program of the GPU table (tools/gpu/side_by_side.py) at tiny sizes on the CPU: it measures every row that it promises."""

from __future__ import annotations

import sys

import pytest
from hvdtest.hvdrun import ran
from hvdtest.offenders import ROOT

pytestmark = [pytest.mark.mp, pytest.mark.nightly]


def test_every_row_is_measured() -> None:
    done = ran([sys.executable, "-P", str(ROOT / "tools" / "gpu" / "side_by_side.py"), "--tiny"], seconds=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "MISSED" not in done.stdout
    rows = [line.split(" | ") for line in done.stdout.splitlines() if line.startswith(("| GPT-2", "| ResNet"))]
    assert len({(row[0], row[3]) for row in rows}) == 12
    assert all(float(row[4]) > 0 for row in rows)
