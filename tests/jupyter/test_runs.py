"""``%hvd runs`` in real kernels: cells that trained, also those of a kernel that has ended."""

from __future__ import annotations

from pathlib import Path

import pytest
from hvdtest.kernel import Kernel

pytestmark = [pytest.mark.jupyter, pytest.mark.mp, pytest.mark.timeout(400)]

CELL = "%%hvdrun -np 2\nfor step in range({steps}):\n    hvd.log(loss={start} / (1 + step))"


def test_runs_of_a_kernel_that_has_ended_beside_those_of_this_one(tmp_path: Path) -> None:
    with Kernel(tmp_path) as first:
        assert first.run("%hvd runs").text().startswith("no cell has trained yet")
        first.run(CELL.format(steps=4, start=8.0), timeout=120)
        first.run("%%hvdrun\n1 + 1")
        first.run(CELL.format(steps=2, start=8.0) + "\n1 / 0", allow_error=True)
        listed = first.run("%hvd runs").text().splitlines()
        assert [line.split()[0] for line in listed] == ["run", "1", "2"]
    with Kernel(tmp_path) as second:
        assert second.run("%hvd runs").text().splitlines() == listed
        outcome = second.run("%hvd runs 1 2")
        assert "<svg" in outcome.contents("display_data")[0]["data"]["image/svg+xml"]
        rows = [line.split() for line in outcome.text().splitlines()]
        assert ["ranks", "2", "2", "1.00"] in rows
        assert ["loss", "2", "4", "2.00"] in rows
        wrong = second.run("%hvd runs 1 7", allow_error=True)
        assert wrong.error == "UsageError: %hvd runs: there is no run 7; the latest is 2, %hvd runs lists them"
