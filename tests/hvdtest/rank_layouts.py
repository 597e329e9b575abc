"""Tests that request ``ranks`` run once per layout, on a pool that all tests of this layout share; see hvdtest.pools.

Ranks take seconds to start: tests are put in an order in which each pool starts once a folder. The pools of frameworks'
versions are ordered like those of layouts (``SHARED``).
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hvdtest.launch import TESTS, RankPool
from hvdtest.pools import close_all, layouts, pool_of

SHARED = {  # fixture that returns a pool -> its parameter
    "ranks": "layout",
    "jax_ranks": "version",
    "keras_ranks": "flavour",
    "mx_ranks": "",
    "tf_ranks": "tf_ranks",
}

# For Python that knows no layout, which two ranks try as well as any number.
layout = layouts((2, "shm"), nightly=((1, "auto"), (2, "tcp"), (3, "shm"), (3, "tcp"), (4, "shm"), (4, "tcp")))


@pytest.fixture
def ranks(layout: tuple[int, str], request: pytest.FixtureRequest) -> RankPool:
    return pool_of(layout, request.path)


@pytest.hookimpl(trylast=True)  # behind pytest's own order
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order tests by folder and layout, tests with own processes last; otherwise keep their order."""
    folders = {each: number for number, each in enumerate(dict.fromkeys(map(_folder, items)))}
    pools = {each: number for number, each in enumerate(dict.fromkeys(map(_pool, items)))}
    items.sort(key=lambda item: (folders[_folder(item)], _pool(item) is None, pools[_pool(item)]))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if _pool(item) is None:
        close_all()  # unused ranks would only take memory


def _folder(item: pytest.Item) -> str:
    return item.path.relative_to(TESTS).parts[0] if item.path.is_relative_to(TESTS) else str(item.path.parent)


def _pool(item: pytest.Item) -> tuple[str, object] | None:
    """The pool that it uses, by fixture and parameter; None: none."""
    names = getattr(item, "fixturenames", ())  # a cell of a notebook has none
    fixture = next((each for each in SHARED if each in names), None)
    if fixture is None:
        return None
    asked = getattr(item, "callspec", None)  # a test without parameters has none
    value = asked.params.get(SHARED[fixture]) if asked else None
    return None if fixture == "ranks" and value is None else (fixture, value)


@pytest.fixture(scope="session", autouse=True)
def no_pool_stays_open() -> Iterator[None]:
    yield
    close_all()
