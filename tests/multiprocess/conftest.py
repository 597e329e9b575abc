"""Every test that asks for ``ranks`` runs with 1 to 4 of them, over shared memory and over TCP."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hvdtest.launch import RankPool
from hvdtest.pools import close_all, pool_of

LAYOUTS = [(1, "auto"), (2, "shm"), (2, "tcp"), (3, "shm"), (3, "tcp"), (4, "shm"), (4, "tcp")]


def pytest_itemcollected(item: pytest.Item) -> None:
    """What a test waits for has limits of its own, which say more; on a busy machine they are reached before this one."""
    if item.get_closest_marker("timeout") is None:
        item.add_marker(pytest.mark.timeout(300))


@pytest.fixture(scope="session", params=LAYOUTS, ids=lambda layout: f"np{layout[0]}-{layout[1]}")
def layout(request: pytest.FixtureRequest) -> tuple[int, str]:
    return request.param


@pytest.fixture
def ranks(layout: tuple[int, str]) -> RankPool:
    return pool_of(layout)


@pytest.fixture(scope="session", autouse=True)
def nothing_stays_open() -> Iterator[None]:
    yield
    close_all()
