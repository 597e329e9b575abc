"""``%hvd runs`` in real kernels: cells that trained, also those of a kernel that has ended."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hvdtest.kernel import Kernel

from hvd_kernel.magics.cell_record import digest

pytestmark = [pytest.mark.jupyter, pytest.mark.mp, pytest.mark.timeout(400)]

CELL = "%%hvdrun -np 2\nfor step in range({steps}):\n    hvd.log(loss={start} / (1 + step))"


def test_runs_of_an_ended_kernel_are_listed_with_new_ones(tmp_path: Path) -> None:
    with Kernel(tmp_path) as first:
        assert first.run("%hvd runs").text().startswith("no cell has trained yet")
        (panel,) = first.run(CELL.format(steps=4, start=8.0), timeout=120).contents("display_data")
        told = panel["metadata"]["hvd"]
        source = digest(CELL.format(steps=4, start=8.0).partition("\n")[2])
        assert {name: told[name] for name in ("cell", "ranks", "source", "steps", "logged")} == {
            "cell": 2,
            "ranks": [0, 1],
            "source": source,
            "steps": 0,
            "logged": {"loss": 2.0},
        }
        assert len(told["commit"]) == 12, "the tests lie in a repository"
        assert len(json.dumps(told)) < 2000
        first.run("%%hvdrun\n1 + 1")
        first.run(CELL.format(steps=2, start=8.0) + "\n1 / 0", allow_error=True)
        called = "import hvd_kernel, hvd_kernel.numpy as h\nlogged = hvd_kernel.run(lambda: h.log(loss=3.0), np=2)"
        first.run(called)
        listed = first.run("%hvd runs").text().splitlines()
        assert [line.split()[0] for line in listed] == ["run", "1", "2", "3"]
        assert [line.split()[-1] for line in listed[1::2]] == [source[:6], digest(called)[:6]]
    with Kernel(tmp_path) as second:
        assert second.run("%hvd runs").text().splitlines() == listed
        outcome = second.run("%hvd runs 1 2")
        assert "<svg" in outcome.contents("display_data")[0]["data"]["image/svg+xml"]
        rows = [line.split() for line in outcome.text().splitlines()]
        assert ["ranks", "2", "2", "1.00"] in rows
        assert ["loss", "2", "4", "2.00"] in rows
        wrong = second.run("%hvd runs 1 7", allow_error=True)
        assert wrong.error == "UsageError: %hvd runs: there is no run 7; the latest is 3, %hvd runs lists them"
