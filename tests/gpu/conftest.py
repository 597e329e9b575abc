"""Ranks on one device, or on as many as there are, in every way that their tensors can travel."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest
from hvdtest.gpu import close_gpu_ranks, gpu_ranks
from hvdtest.launch import RankPool

LAYOUTS = [(1, "ring"), (2, "ring"), (4, "ring"), (1, "nccl"), (2, "core"), (4, "core"), (2, "torch")]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mine = [item for item in items if item.path.parent.name == "gpu"]
    for item in mine:
        item.add_marker(pytest.mark.gpu)
        item.add_marker(pytest.mark.mp)
    if mine and not _has_cuda():
        for item in mine:
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))


def _has_cuda() -> bool:
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return torch.cuda.is_available()


@pytest.fixture(scope="module", params=LAYOUTS, ids=lambda layout: f"np{layout[0]}-{layout[1]}")
def layout(request: pytest.FixtureRequest) -> tuple[int, str]:
    return request.param


@pytest.fixture
def ranks(layout: tuple[int, str]) -> RankPool:
    return gpu_ranks(*layout)


@pytest.fixture(scope="session", autouse=True)
def nothing_stays_open() -> Iterator[None]:
    yield
    close_gpu_ranks()
