"""Tests that ask for ``ranks`` run once per layout, on a pool that all tests of this layout share; see hvdtest.pools.

Ranks take seconds to start: tests are put in an order in which each layout's pool starts once a folder.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hvdtest.launch import TESTS, RankPool
from hvdtest.pools import close_all, layouts, pool_of

# For Python that knows no layout, which two ranks try as well as any number.
layout = layouts((2, "shm"), nightly=((1, "auto"), (2, "tcp"), (3, "shm"), (3, "tcp"), (4, "shm"), (4, "tcp")))


@pytest.fixture
def ranks(layout: tuple[int, str], request: pytest.FixtureRequest) -> RankPool:
    return pool_of(layout, request.path)


@pytest.hookimpl(trylast=True)  # behind pytest's own order
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Folder by folder, layout by layout, last what starts processes of its own; otherwise in the order that there was."""
    folders = {each: number for number, each in enumerate(dict.fromkeys(map(_folder, items)))}
    pools = {each: number for number, each in enumerate(dict.fromkeys(map(_layout, items)))}
    items.sort(key=lambda item: (folders[_folder(item)], _layout(item) is None, pools[_layout(item)]))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if _layout(item) is None:
        close_all()  # ranks that nobody asks for would only take memory


def _folder(item: pytest.Item) -> str:
    return item.path.relative_to(TESTS).parts[0] if item.path.is_relative_to(TESTS) else str(item.path.parent)


def _layout(item: pytest.Item) -> object:
    """The layout of the pool that it uses; None: none."""
    asked = getattr(item, "callspec", None)  # a test without parameters has none, and a cell of a notebook
    return asked.params.get("layout") if asked and "ranks" in item.fixturenames else None  # type: ignore[attr-defined]


@pytest.fixture(scope="session", autouse=True)
def no_pool_stays_open() -> Iterator[None]:
    yield
    close_all()
