"""The example scripts in a ``%%hvdrun`` cell: the final loss is that of ``hvdrun``, to the last bit."""

from __future__ import annotations

import pytest
from hvdtest.hvdrun import HVDRUN
from hvdtest.kernel import Kernel
from hvdtest.scripts import FOLDER, SMALL, final_loss, said

pytestmark = [pytest.mark.jupyter, pytest.mark.mp, pytest.mark.timeout(400), pytest.mark.cluster(2)]


BY_DAY = {"chars"}


@pytest.mark.parametrize(
    "which",
    [
        pytest.param(which, marks=() if which in BY_DAY else pytest.mark.nightly)
        for which in ("digits", "digits-16-bits", "digits-adasum", "resnet", "chars")
    ],
)
def test_a_cell_and_hvdrun_agree(kernel: Kernel, which: str) -> None:
    outcome = kernel.run(f"%%hvdrun\n%run {FOLDER}/{SMALL[which]}", timeout=120)
    assert final_loss(outcome.text()) == final_loss(said(HVDRUN, 2, SMALL[which]))


def test_what_the_script_made_stays(kernel: Kernel) -> None:
    kernel.run(f"%%hvdrun\n%run {FOLDER}/{SMALL['chars']}", timeout=120)
    assert kernel.run("%%hvdrun\nlen(model.write(5))").shown == ["[0-1] 9"]
