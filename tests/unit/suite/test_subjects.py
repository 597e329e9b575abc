"""The rule for commit subjects: room, what changes, at most 72 characters."""

from __future__ import annotations

import pytest
from suite.subjects import LONGEST, no_commands, wrong


@pytest.mark.parametrize(
    "subject",
    ["cluster: retry registration after a lost hub", "tensorflow, keras: one smoke", "x: " + "a" * (LONGEST - 3)],
)
def test_a_subject_with_its_room_is_taken(subject: str) -> None:
    assert wrong([subject]) == []


@pytest.mark.parametrize(
    ("subject", "what"),
    [
        ("What /proc tells of a process is said once", "is not 'room: what changes'"),
        ("Cluster: retry", "is not 'room: what changes'"),
        ("cluster: retry.", "is not 'room: what changes'"),
        ("cluster:", "is not 'room: what changes'"),
        ("x: " + "a" * (LONGEST - 2), f"has {LONGEST + 1} characters, more than {LONGEST}"),
    ],
)
def test_another_is_told(subject: str, what: str) -> None:
    assert wrong(["base: mend", subject]) == [f"{subject!r} {what}"]


@pytest.mark.parametrize(
    ("subject", "number"),
    [
        ("native: form a torus of many hosts", 0),
        ("tests, docs: wait for the end of what was killed", 0),
        ("cluster: who does not answer may wait for another", 1),
        ("docs: The figures of today", 1),
        ("native: one limit for eager rounds", 1),
    ],
)
def test_a_subject_is_a_command(subject: str, number: int) -> None:
    assert len(no_commands([subject])) == number
