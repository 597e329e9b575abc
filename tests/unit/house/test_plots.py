"""The plots in docs/images are those that tools/bench/plots.py draws from docs/benchmarks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hvdtest.offenders import ROOT

BENCHMARKS = sorted((ROOT / "docs" / "benchmarks").glob("*.json"))


def test_plots_belong_to_their_data(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    subprocess.run([sys.executable, "-P", str(ROOT / "tools" / "bench" / "plots.py"), str(tmp_path)], check=True)
    drawn = sorted(tmp_path.iterdir())
    assert drawn
    changed = [plot.name for plot in drawn if plot.read_bytes() != (ROOT / "docs" / "images" / plot.name).read_bytes()]
    assert not changed, "draw them again: python -P tools/bench/plots.py"


@pytest.mark.parametrize("file", BENCHMARKS, ids=lambda file: file.stem)
def test_data_name_their_date_and_tool(file: Path) -> None:
    data = json.dumps(json.loads(file.read_text()))
    assert '"what": ' in data
    assert '"measured": ' in data
    assert '"tool": ' in data
