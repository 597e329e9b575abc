"""A kernel that Jupyter starts with a configuration file: its settings win over the environment's, a cell's over both."""

from __future__ import annotations

from pathlib import Path

import pytest
from hvdtest.kernel import Kernel

pytestmark = [pytest.mark.jupyter, pytest.mark.mp, pytest.mark.timeout(400)]


def written(home: Path, text: str) -> Path:
    """Write the configuration file of the kernel's profile; return its path."""
    file = home / "ipython" / "profile_default" / "ipython_kernel_config.py"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    return file


def test_cell_overrides_the_number_of_ranks_of_the_file(tmp_path: Path) -> None:
    written(tmp_path, "c.HvdKernel.ranks = 2\nc.HvdKernel.max_move = '1K'\nc.HvdKernel.cache_capacity = 7\n")
    told = "import os\nos.environ['HVD_CACHE_CAPACITY'], size"
    with Kernel(tmp_path, env={"HVD_RANKS": "3", "HVD_CACHE_CAPACITY": "9"}) as kernel:
        assert kernel.run(f"%%hvdrun\nbig = b'x' * 2048\n{told}").shown == ["[0-1] ('7', 2)"]
        refused = kernel.run("%hvdpull big", allow_error=True)
        assert refused.reply["ename"] == "UsageError"
        assert "HVD_MAX_MOVE" in refused.reply["evalue"]
        assert kernel.run("%hvdpull big --force\nlen(big[0])").shown == ["2048"]
        assert kernel.run(f"%%hvdrun -np 1 --force\n{told}").shown == ["[0] ('7', 1)"]


@pytest.mark.nightly
def test_wrong_settings_file_is_reported_when_ranks_start(tmp_path: Path) -> None:
    file = written(tmp_path, "c.HvdKernel.ranks = 'four'\n")
    with Kernel(tmp_path) as kernel:
        assert kernel.run("1 + 1").shown == ["2"]
        refused = kernel.run("%%hvdrun\nsize", allow_error=True)
        assert refused.reply["ename"] == "ConfigError"
        assert refused.reply["evalue"].startswith(
            f"c.HvdKernel.ranks = 'four' in {file} cannot be used: it must be a whole number from 1 to 2147483647 ("
        )
        assert kernel.run("2 + 2").shown == ["4"]
