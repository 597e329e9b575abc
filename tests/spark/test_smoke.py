"""Spark, end to end: a DataFrame, a fit on two ranks that are tasks, predictions.

The default tier's only test of Spark: the first one to run makes the environment.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hvdtest.programs import text_of
from hvdtest.spark_driver import outcomes

PROGRAMS = Path(__file__).parent / "programs"
SCRIPT = text_of("torch_line", PROGRAMS / "smoke.py")


@pytest.mark.mp
@pytest.mark.timeout(600)
@pytest.mark.skipif(shutil.which("java") is None, reason="Java is missing: bash .ci/system java installs it")
def test_fit_on_two_ranks_equals_one_process_to_the_bit(tmp_path: Path) -> None:
    assert outcomes(SCRIPT, tmp_path)["fits"] == [True, [True] * 16]
