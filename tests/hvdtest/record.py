"""Record of a pytest run for tools/suite: the running test, each result and its duration, as JSON lines.

HVDTEST_RECORD names the file, HVDTEST_FOLDER what the lines say of the folder. HVDTEST_DONE names a record of tests that
shall not run again: after a hang or a crash the rest of a folder runs in a process of its own.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest


def _add(**line: Any) -> None:
    folder = os.environ.get("HVDTEST_FOLDER", "tests")
    with Path(os.environ["HVDTEST_RECORD"]).open("a") as record:
        record.write(json.dumps({"folder": folder, **line}) + "\n")


class Recorder:
    """Appends a line when a test starts, and one after its teardown."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._outcome: dict[str, str] = {}

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        _add(begins=nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = report.nodeid
        self._seconds[name] = self._seconds.get(name, 0.0) + report.duration
        if report.outcome != "passed" or name not in self._outcome:
            self._outcome[name] = "failed" if self._outcome.get(name) == "failed" else report.outcome
        if report.when == "teardown":
            _add(test=name, seconds=round(self._seconds.pop(name), 3), outcome=self._outcome.pop(name))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file that cannot be imported is a failure too."""
        if report.failed:
            _add(test=report.nodeid, seconds=0.0, outcome="failed")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Report the time limit of a test that has its own; in a worker of pytest-xdist, since only that has the test."""
    limit = item.get_closest_marker("timeout")
    if limit is not None and limit.args and "HVDTEST_RECORD" in os.environ:
        _add(may_take=limit.args[0], which=item.nodeid)


def pytest_configure(config: pytest.Config) -> None:
    if "HVDTEST_RECORD" in os.environ and not hasattr(
        config, "workerinput"
    ):  # the controller receives the reports of its workers
        config.pluginmanager.register(Recorder())


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    done = os.environ.get("HVDTEST_DONE")
    if not done:
        return
    lines = [json.loads(line) for line in Path(done).read_text().splitlines()]
    before = {line["test"] for line in lines if "test" in line}
    gone = [item for item in items if item.nodeid in before]
    config.hook.pytest_deselected(items=gone)
    items[:] = [item for item in items if item.nodeid not in before]
