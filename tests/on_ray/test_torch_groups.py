"""``init_process_group()`` in actors needs no set-up: each rank has torchrun's variables, and torch the backend."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import pytest
from hvdtest.programs import text_of
from hvdtest.ray_driver import outcomes

pytestmark = [pytest.mark.mp, pytest.mark.nightly, pytest.mark.timeout(600)]

SCRIPT = text_of("torch_group", Path(__file__).parent / "programs" / "torch_groups.py")
PLACES = [["0", "3", "0", "2"], ["1", "3", "1", "2"], ["2", "3", "0", "1"]]


def test_groups_need_no_setup(tmp_path: Path) -> None:
    results = outcomes(SCRIPT, tmp_path, sysconfig.get_path("purelib"))
    assert results["static"] == [[["HvdProcessGroup", 6.0, *place, "localhost", True] for place in PLACES]] * 2
    assert results["elastic"] == [["HvdProcessGroup", 6.0, *place, "127.0.0.1", True] for place in PLACES]
