"""A training that survives faults, in a real kernel: the parameters at the end are those of a run without faults."""

from __future__ import annotations

import pytest
from hvdtest.chaos import Chaos, expected
from hvdtest.kernel import Kernel
from hvdtest.sentences import parse

RANKS, STEPS = 3, 5  # per sentence
# A stop of 0.2 s ends nothing, however late on a busy machine the process comes that is to end it.
pytestmark = [
    pytest.mark.jupyter,
    pytest.mark.mp,
    pytest.mark.timeout(600),
    pytest.mark.cluster(3, env={"HVD_STOP_ABORT": "60"}),
]

SENTENCES = [
    "raise on rank 1 at step 3",
    "kill rank 1 at step 8",
    "stop rank 2 at step 13 for 0.2 s",
    "interrupt at step 18",
    "exhaust memory of rank 0 at step 23",
    "exit rank 2 at step 28",
    "flood rank 1 at step 33 with 2 MB",
    "segfault rank 0 at step 38",
]


@pytest.fixture
def without_faults(kernel: Kernel) -> str:
    chaos = Chaos(kernel, RANKS)
    chaos.lap(STEPS * len(SENTENCES))
    digest = chaos.digest()
    kernel.run("%%hvdrun\ndel model, optimizer, saved, done")  # it starts from scratch
    return digest


def test_r6_r7_eight_faults_keep_parameters_bit_for_bit(kernel: Kernel, without_faults: str) -> None:
    chaos = Chaos(kernel, RANKS)
    for number, sentence in enumerate(SENTENCES, 1):
        fault, until = parse(sentence), number * STEPS
        lap = chaos.lap(until, [fault])
        assert lap.ename == expected(fault), f"{sentence}: {lap.outcome.error}"
        if lap.ename:
            assert until - STEPS <= chaos.step() <= until, sentence
            assert chaos.step() >= fault.step - 1, f"{sentence}: more than a step was lost"
            chaos.lap(until)
        assert chaos.step() == until, sentence
        assert chaos.dead() == [], sentence
    assert chaos.digest() == without_faults
