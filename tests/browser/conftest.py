"""One JupyterLab and one Chromium for all tests of this folder; each test has its folder, its page and its kernel.

After a test that fails both are replaced, and a test fails that leaves something of its kernel behind.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from hvdtest import lab as labs
from hvdtest.lab import Lab
from playwright.sync_api import Browser as Chromium
from playwright.sync_api import Page

HERE = Path(__file__).parent


class Shared:
    """Start both at the first test that requests them, and keep them until the last test of this folder."""

    def __init__(self) -> None:
        self._chromium: Chromium | None = None
        self._lab: Lab | None = None
        self._running = ExitStack()
        self.suspect = False

    def chromium(self) -> Chromium:
        if self.suspect:
            self.close()
        if self._chromium is None:
            self._chromium = self._running.enter_context(labs.chromium())
        return self._chromium

    def lab(self, folders: pytest.TempPathFactory) -> Lab:
        chromium = self.chromium()
        if self._lab is None:
            self._lab = self._running.enter_context(Lab(folders.mktemp("lab"), chromium))
        return self._lab

    def close(self) -> None:
        self._chromium, self._lab, self.suspect = None, None, False
        self._running.close()


SHARED = Shared()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    SHARED.suspect |= report.failed
    return report


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    """While Chromium runs this thread counts as one with a running event loop, which tests of other folders start."""
    if SHARED.suspect or nextitem is None or HERE not in nextitem.path.parents:
        SHARED.close()


@pytest.fixture
def chromium() -> Chromium:
    return SHARED.chromium()


@pytest.fixture
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    given = SHARED.lab(tmp_path_factory)
    yield given
    assert given.end_kernels() == [], "the kernels are shut down, but some of what they had started still runs"


@pytest.fixture
def place(lab: Lab, request: pytest.FixtureRequest) -> Path:
    """The folder of the test's notebook, in which its cells run too."""
    folder = lab.folder / re.sub(r"\W+", "-", request.node.name)
    folder.mkdir()
    return folder


@pytest.fixture
def page(chromium: Chromium) -> Iterator[Page]:
    """An empty page."""
    with labs.page_of(chromium, viewport={"width": 1100, "height": 700}) as opened:
        yield opened
