"""The order of tests, in which each layout's pool starts once per folder, and the cost of an idle pool."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hvdtest.launch import TESTS, RankPool
from hvdtest.pools import layouts
from hvdtest.rank_layouts import pytest_collection_modifyitems as put_in_order

pytestmark = pytest.mark.mp


layout = layouts((2, "shm"), (3, "tcp"))


def item(file: str, name: str, layout: tuple[int, str] | None = None, asks: tuple[str, ...] = ("ranks",)) -> Any:
    callspec = {"callspec": SimpleNamespace(params={"layout": layout})} if layout else {}
    return SimpleNamespace(path=TESTS / file, name=name, fixturenames=asks, **callspec)


def test_each_layout_runs_once_per_folder_in_file_order() -> None:
    two, three = (2, "shm"), (3, "tcp")
    items = [
        item("multiprocess/a.py", "a own", asks=()),
        item("multiprocess/a.py", "a two", two),
        item("multiprocess/a.py", "a three", three),
        item("multiprocess/b.py", "b own, of a layout", three, asks=("layout",)),
        item("multiprocess/b.py", "b three", three),
        item("multiprocess/b.py", "b two", two),
        item("frameworks/torch/c.py", "c three", three),
        item("frameworks/numpy/d.py", "d two", two),
        item("frameworks/numpy/d.py", "d three", three),
    ]
    put_in_order(items)
    assert [each.name for each in items] == [
        *("a two", "b two", "a three", "b three", "a own", "b own, of a layout"),
        *("d two", "c three", "d three"),
    ]


def used_by(pids: list[int]) -> int:
    """Processor time of these processes, in the kernel's ticks."""
    fields = [(Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split() for pid in pids]
    return sum(int(each[11]) + int(each[12]) for each in fields)


def test_idle_ranks_do_not_spin(ranks: RankPool) -> None:
    pids = [rank.process.pid for rank in ranks.ranks]
    before = used_by(pids)
    time.sleep(1.0)  # a spinning rank would take up to a second of it
    assert used_by(pids) - before < 0.1 * os.sysconf("SC_CLK_TCK")
