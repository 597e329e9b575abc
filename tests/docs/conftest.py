"""The documentation site, built once for the tests of this folder."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hvdtest.offenders import ROOT

BUILD_S = 600


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the HTML pages, built from nothing as `make docs` builds it: a warning is an error."""
    folder = tmp_path_factory.mktemp("site")
    command = ["bash", ".ci/docs", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=BUILD_S, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-5000:]
    return folder / "html"
