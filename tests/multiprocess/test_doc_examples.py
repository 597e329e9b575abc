"""The examples in public docstrings give the documented results: on one rank, and nightly on two and on three."""

from __future__ import annotations

import pytest
from hvdtest.docstrings import run_examples
from hvdtest.launch import RankPool
from hvdtest.pools import layouts

pytestmark = pytest.mark.mp

layout = layouts((1, "auto"), nightly=((2, "shm"), (3, "shm")))


def test_examples_give_the_documented_results(ranks: RankPool) -> None:
    wrong = [each for rank in ranks.run(run_examples) for each in rank.values()]
    assert not wrong, "\n".join(wrong)
