"""Fixtures of all tests: CI skips only tests that need a GPU; each test has its own Jupyter and IPython folders."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

pytest_plugins = ["hvdtest.built_core", "hvdtest.hvdrun", "hvdtest.rank_layouts", "hvdtest.record"]

# A shell that starts the tests in the background has them ignore Ctrl-C, which some of them send.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> pytest.TestReport:
    """With CI=true, turn a skip into a failure that names what is missing, unless the test is marked gpu."""
    report = pytest.TestReport.from_item_and_call(item, call)
    if report.skipped and os.environ.get("CI") == "true" and item.get_closest_marker("gpu") is None:
        report.outcome = "failed"
        report.longrepr = f"skipped in CI: {report.longrepr}"
    return report


@pytest.fixture(autouse=True)
def own_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """IPYTHONDIR and JUPYTER_* of this test alone, so that no profile, log or history is shared."""
    home = tmp_path_factory.mktemp("home")
    for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR"):
        (home / name.lower()).mkdir(mode=0o700)
        monkeypatch.setenv(name, str(home / name.lower()))
    return home
