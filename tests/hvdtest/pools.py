"""Pools of ranks that stay for several tests. One is open at a time, because the ranks share few cores with everything else."""

from __future__ import annotations

from typing import Any

import pytest
from hvdtest.launch import RankPool

_open: dict[tuple[int, str], RankPool] = {}


def layouts(*pairs: tuple[int, str]) -> Any:
    """A fixture ``layout`` over (ranks, transport), for a file whose tests ask for ``ranks``."""

    @pytest.fixture(scope="module", name="layout", params=pairs, ids=lambda pair: f"np{pair[0]}-{pair[1]}")
    def chosen(request: pytest.FixtureRequest) -> tuple[int, str]:
        return request.param

    return chosen


def pool_of(layout: tuple[int, str]) -> RankPool:
    """The pool of (ranks, transport), with hvd.init() done on every rank; a new one where a check has broken it."""
    pool = _open.get(layout)
    if pool is None or pool.broken:
        close_all()
        pool = RankPool(*layout)
        _open[layout] = pool
        assert set(pool.run(start)) <= {layout[1], "self"} or layout[1] == "auto"
    return pool


def close_all() -> None:
    while _open:
        _open.popitem()[1].close()


def start() -> str:
    """Initialise; say by what the next rank is reached."""
    import hvd_kernel.torch as hvd
    from hvd_kernel import _session

    hvd.init()
    return _session.engine().transport_to((hvd.rank() + 1) % hvd.size()) if hvd.size() > 1 else "self"
