"""Record of a pytest run for tools/suite: which test begins, how each ended and how long it took, as JSON lines.

HVDTEST_RECORD names the file, HVDTEST_FOLDER what the lines say of the folder. HVDTEST_DONE names a record of tests that
shall not run again: after a hang or a crash the rest of a folder runs in a process of its own.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest


class Recorder:
    """Adds a line when a test begins, and one when its teardown has ended."""

    def __init__(self, file: Path, folder: str) -> None:
        self._file, self._folder = file, folder
        self._seconds: dict[str, float] = {}
        self._outcome: dict[str, str] = {}

    def _add(self, **line: Any) -> None:
        with self._file.open("a") as record:
            record.write(json.dumps({"folder": self._folder, **line}) + "\n")

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._add(begins=nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = report.nodeid
        self._seconds[name] = self._seconds.get(name, 0.0) + report.duration
        if report.outcome != "passed" or name not in self._outcome:
            self._outcome[name] = "failed" if self._outcome.get(name) == "failed" else report.outcome
        if report.when == "teardown":
            self._add(test=name, seconds=round(self._seconds.pop(name), 3), outcome=self._outcome.pop(name))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file that cannot be imported is a failure too."""
        if report.failed:
            self._add(test=report.nodeid, seconds=0.0, outcome="failed")


def pytest_configure(config: pytest.Config) -> None:
    file = os.environ.get("HVDTEST_RECORD")
    if file and not hasattr(config, "workerinput"):  # a worker of pytest-xdist: its controller hears everything
        config.pluginmanager.register(Recorder(Path(file), os.environ.get("HVDTEST_FOLDER", "tests")))


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
