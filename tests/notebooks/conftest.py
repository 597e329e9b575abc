"""Shared by the tests of notebooks."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.fixture(scope="session", autouse=True)
def fonts() -> None:
    """Without its cache of fonts, matplotlib complains on stderr while it makes one, if that takes long enough."""
    subprocess.run([sys.executable, "-P", "-c", "import matplotlib.font_manager"], check=True)
