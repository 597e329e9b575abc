"""What runs on Linux only says so elsewhere, before anything fails for a reason that nobody understands."""

from __future__ import annotations

import subprocess
import sys
import tomllib

import pytest
from hvdtest.offenders import ROOT


@pytest.mark.parametrize("platform", ["darwin", "win32"])
def test_import_elsewhere_says_what_to_do(platform: str) -> None:
    code = f"import sys; sys.platform = {platform!r}; import hvd_kernel"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"ImportError: hvd_kernel runs on Linux only, this is {platform}" in done.stderr
    assert "WSL 2" in done.stderr


def test_the_package_and_its_page_say_so() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "Operating System :: POSIX :: Linux" in project["classifiers"]
    assert "On Linux" in (ROOT / "README.md").read_text()
