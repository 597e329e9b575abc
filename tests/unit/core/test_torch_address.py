"""torchrun's variables that ``init`` sets: those that neither the user nor the launcher has set."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from hvd_kernel.core import topology, torch_address
from hvd_kernel.frameworks import torch_backend
from hvd_kernel.frameworks.after_import import AfterImport
from hvd_kernel.settings import torchrun

HERE = {"machine": "a", "name": "one", "networks": {"lo": "127.0.0.1/8", "eth0": "10.0.0.1/24"}, "torch": 4000}
THERE = {"machine": "b", "name": "two", "networks": {"lo": "127.0.0.1/8", "eth0": "10.0.0.2/24"}}


@pytest.fixture(autouse=True)
def process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the variables be those of a rank without any, and restore everything."""
    before = dict(os.environ)
    for name in (*torchrun.NAMES, torchrun.ADDRESS, "HVD_TORCH", "TORCHELASTIC_RUN_ID"):
        os.environ.pop(name, None)
    monkeypatch.setattr(torch_address._state, "variables", {})
    monkeypatch.setattr(torch_backend, "offer", lambda: None)
    yield
    os.environ.clear()
    os.environ.update(before)


def adopted(rank: int = 1, cards: Any = (HERE, THERE), rendezvous: str = "") -> dict[str, str]:
    torch_address.adopt((rank, 2, 0, 1), cards, rendezvous)
    return {name: os.environ[name] for name in (*torchrun.NAMES, torchrun.ADDRESS) if name in os.environ}


def test_rank_0s_address_is_one_that_the_others_reach() -> None:
    assert adopted() == torchrun.variables((1, 2, 0, 1), "10.0.0.1", 4000)
    assert adopted(rendezvous="10.9.9.9")["MASTER_ADDR"] == "10.9.9.9"
    assert adopted(cards=(HERE, HERE))["MASTER_ADDR"] == "127.0.0.1"
    assert torchrun.is_ours(os.environ)


def test_variables_of_others_are_kept_and_ours_renewed() -> None:
    os.environ["MASTER_ADDR"] = "user"
    assert adopted()["MASTER_ADDR"] == "user"
    assert not torchrun.is_ours(os.environ)
    os.environ["MASTER_PORT"] = "9"
    assert adopted(rank=0) == torchrun.variables((0, 2, 0, 1), "10.0.0.1", 4000) | {
        "MASTER_ADDR": "user",
        "MASTER_PORT": "9",
    }


@pytest.mark.parametrize("given", [{"HVD_TORCH": "off"}, {"TORCHELASTIC_RUN_ID": "a", "RANK": "7"}])
def test_ranks_that_keep_torchs_defaults(given: dict[str, str]) -> None:
    os.environ.update(given)
    assert adopted() == {name: value for name, value in given.items() if name in torchrun.NAMES}


def test_next_init_does_not_find_ranks_by_our_variables() -> None:
    adopted()
    assert topology.find(env=dict(os.environ)).source == topology.NO_LAUNCHER


def test_backend_is_offered_by_one_finder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    finder = AfterImport(torch_backend._DISTRIBUTED, torch_backend.attach)
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    before = [*sys.meta_path]
    torch_backend.offer()
    assert sys.meta_path == before
