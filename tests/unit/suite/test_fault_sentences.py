"""Faults as sentences are read and written alike."""

from __future__ import annotations

import random

import pytest
from hvdtest.sentences import Fault, drawn, parse

SENTENCES = [
    ("kill rank 1 at step 3", Fault("kill", 1, 3)),
    ("exit rank 0 at step 1", Fault("exit", 0, 1)),
    ("segfault rank 12 at step 30", Fault("segfault", 12, 30)),
    ("raise on rank 2 at step 5", Fault("raise", 2, 5)),
    ("stop rank 2 at step 5 for 0.25 s", Fault("stop", 2, 5, 0.25)),
    ("interrupt at step 7", Fault("interrupt", 0, 7)),
    ("exhaust memory of rank 3 at step 4", Fault("exhaust", 3, 4)),
    ("flood rank 1 at step 2 with 20 MB", Fault("flood", 1, 2, 20.0)),
]


@pytest.mark.parametrize(("sentence", "fault"), SENTENCES)
def test_sentences_are_read_and_written_alike(sentence: str, fault: Fault) -> None:
    assert parse(sentence) == fault
    assert str(fault) == sentence


@pytest.mark.parametrize(
    "sentence", ["kill rank one at step 3", "kill rank 1", "stop rank 2 at step 5", "Kill rank 1 at step 3"]
)
def test_invalid_sentences_are_refused(sentence: str) -> None:
    with pytest.raises(ValueError, match="is not a fault: write one of"):
        parse(sentence)


def test_drawn_faults_can_be_written_down_and_repeated() -> None:
    kinds = [("kill", 0.4), ("stop", 0.2), ("interrupt", 0.2), ("flood", 0.2)]
    first = [drawn(random.Random(seed), 4, 9, kinds) for seed in range(50)]
    assert first == [drawn(random.Random(seed), 4, 9, kinds) for seed in range(50)]
    assert [parse(str(fault)) for fault in first] == first
    assert {fault.kind for fault in first} == {name for name, _ in kinds}
