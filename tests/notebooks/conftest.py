"""Shared by the tests of notebooks."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.fixture(scope="session", autouse=True)
def fonts() -> None:
    """Build matplotlib's font cache first: without it matplotlib prints to stderr if that takes long enough."""
    subprocess.run([sys.executable, "-P", "-c", "import matplotlib.font_manager"], check=True)
