"""Random faults in a row in one elastic job: deaths, stops, ranks and hosts that leave and come; rows 21 to 23."""

from __future__ import annotations

from pathlib import Path

import pytest
from hvdtest.elastic_soak import Soak

pytestmark = [pytest.mark.mp, pytest.mark.nightly]


def test_a_training_ends_with_the_bits_of_one_without_faults(tmp_path: Path) -> None:
    soaked = Soak(tmp_path, 5).run(8)
    assert soaked.same, soaked.summary()
    assert (soaked.lost, soaked.more, soaked.left) == (0, 0, 0), soaked.summary()
    assert soaked.resets > 4, "too little happened to find anything"
