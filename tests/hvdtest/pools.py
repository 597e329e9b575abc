"""Pools of ranks shared by several tests. One is open at a time, because the ranks share few cores with everything else.

Terms.
  layout  a number of ranks, and how they reach each other: (2, "shm"); for GPUs also the way of their tensors: (2, "ring");
          or the environment of their frameworks: (2, "torch24")
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hvdtest.environments import Ranks, environment, names
from hvdtest.launch import RankPool

TORCH_VERSIONS = ((2, "torch24"), (2, "torchnew"))  # the oldest and the newest
MAKING_S = 1500  # an environment is installed the first time, which may be gigabytes

_open: dict[Any, RankPool] = {}


def layout_id(layout: tuple[int, str]) -> str:
    return f"np{layout[0]}-{layout[1]}"


def layouts(*usual: tuple[int, str], nightly: tuple[tuple[int, str], ...] = ()) -> Any:
    """Return a fixture ``layout`` for a file whose tests request ``ranks``: layouts of every run, and of the nightly one."""
    params = [*usual, *(pytest.param(layout, marks=_marks(layout)) for layout in nightly)]

    @pytest.fixture(name="layout", params=params, ids=layout_id)
    def chosen(request: pytest.FixtureRequest) -> tuple[int, str]:
        layout: tuple[int, str] = request.param
        return layout

    return chosen


def _marks(layout: tuple[int, str]) -> list[pytest.MarkDecorator]:
    marks = [pytest.mark.nightly]
    return [*marks, pytest.mark.timeout(MAKING_S)] if layout[1] in names() else marks


def _pool(layout: tuple[int, str]) -> RankPool:
    size, kind = layout
    return Ranks(environment(kind), size) if kind in names() else RankPool(*layout)


def pool_of(layout: tuple[int, str], file: Path) -> RankPool:
    """The pool of (ranks, transport), with hvd.init() done on every rank; each file of tests begins with a new engine."""
    pool = kept(layout, lambda: _pool(layout))
    if pool.user != file:  # what the last one has left (sets, names by number) may be another on each rank
        assert set(pool.run(start)) <= {layout[1], "self"} or layout[1] in {"auto", *names()}
        pool.user = file
    return pool


def kept(key: tuple[Any, ...], made: Callable[[], RankPool], begin: Callable[[RankPool], Any] = bool) -> RankPool:
    """Return the pool open under this key; if none works, replace the open pool by a new one."""
    pool = _open.get(key)
    if pool is None or pool.broken:
        close_all()
        pool = _open[key] = made()
        begin(pool)
    return pool


def close_all() -> None:
    while _open:
        _open.popitem()[1].close()


def start() -> str:
    """Initialize again; return the transport to the next rank."""
    import hvd_kernel.torch as hvd
    from hvd_kernel.core import session

    hvd.shutdown()
    hvd.init()
    return session.engine().transport_to((hvd.rank() + 1) % hvd.size()) if hvd.size() > 1 else "self"
