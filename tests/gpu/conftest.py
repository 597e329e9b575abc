"""Ranks on one device, or on all available ones, with every path that their tensors can take."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest
from hvdtest.gpu import gpu_ranks
from hvdtest.launch import RankPool
from hvdtest.pools import layouts

LAYOUTS = [(1, "ring"), (2, "ring"), (4, "ring"), (1, "nccl"), (2, "core"), (4, "core"), (2, "torch")]


@pytest.hookimpl(trylast=True)  # behind pytest's own order
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = [place for place, item in enumerate(items) if item.path.parent.name == "gpu"]
    mine = sorted((items[place] for place in places), key=_turn)
    for place, item in zip(places, mine, strict=True):
        items[place] = item
        item.add_marker(pytest.mark.gpu)
        item.add_marker(pytest.mark.mp)
    if mine and not _has_cuda():
        for item in mine:
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))


def _turn(item: pytest.Item) -> tuple[int, bool]:
    """Order tests by layout, because ranks take seconds to start; tests that lose ranks are the last of each."""
    params = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    layout = params.get("layout")
    return LAYOUTS.index(layout) if layout else len(LAYOUTS), item.path.stem == "test_errors"


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Failures go to a file at once: a run that is cut short prints none of them."""
    file = os.environ.get("HVDTEST_FAILURES")
    if file and report.failed:
        with Path(file).open("a") as failures:
            failures.write(f"=== {report.nodeid}, {report.when}\n{report.longreprtext}\n")


def _has_cuda() -> bool:
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return torch.cuda.is_available()


layout = layouts(*LAYOUTS)


@pytest.fixture
def ranks(layout: tuple[int, str]) -> RankPool:
    return gpu_ranks(*layout)
