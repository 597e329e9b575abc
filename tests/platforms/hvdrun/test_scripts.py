"""The example scripts through hvdrun and through plain mpirun: the same final loss, to the last bit."""

from __future__ import annotations

import re

import pytest
from hvdtest.hvdrun import HVDRUN
from hvdtest.scripts import FOLDER, MPIRUN, SMALL, final_loss, output_of

pytestmark = pytest.mark.mp


@pytest.mark.nightly  # by day a cell and hvdrun agree (tests/jupyter/front_ends/test_compat.py), and mpirun starts ranks (test_launchers.py)
@pytest.mark.parametrize("which", SMALL)
def test_hvdrun_and_mpirun_agree(which: str) -> None:
    by_us = output_of(HVDRUN, 2, SMALL[which])
    loss = final_loss(by_us)
    assert 0.0 < loss < 10.0
    assert final_loss(output_of(MPIRUN, 2, SMALL[which])) == loss


@pytest.mark.nightly
def test_digits_are_learnt() -> None:
    text = output_of(HVDRUN, 2, "digits.py --epochs 8")
    accuracies = [float(found) for found in re.findall(r"test accuracy ([\d.]+)%", text)]
    assert len(accuracies) == 8
    assert accuracies[-1] > 95
    assert final_loss(text) < 0.2


@pytest.mark.nightly
def test_characters_are_learnt() -> None:
    text = output_of(HVDRUN, 2, "chars.py --steps 60 --batch-size 8 --length 32 --layers 1 --width 32")
    bits = [float(found) for found in re.findall(r"([\d.]+) bits per character", text)]
    assert len(bits) == 10
    assert bits[0] > 5.0
    assert bits[-1] < 4.5


@pytest.mark.nightly
def test_total_throughput_is_the_sum_over_ranks() -> None:
    text = output_of(HVDRUN, 2, SMALL["resnet"])
    slowest, fastest, total = (
        float(re.search(pattern, text)[1])  # type: ignore[index]
        for pattern in (r"slowest ([\d.]+)", r"fastest ([\d.]+)", r"in total on 2 rank\(s\): ([\d.]+)")
    )
    assert total == pytest.approx(slowest + fastest, abs=0.2)


def test_the_scripts_are_short_enough_to_read() -> None:
    texts = {path.name: path.read_text().splitlines() for path in FOLDER.glob("*.py")}
    assert texts
    assert not {name: len(text) for name, text in texts.items() if len(text) >= 150}
    assert not {name: line for name, text in texts.items() for line in text if len(line) > 120}
