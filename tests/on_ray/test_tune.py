"""Trials of Ray Tune with several ranks each: metrics, a checkpoint that the next trial resumes from, a failing trial."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hvdtest.programs import text_of

pytestmark = [pytest.mark.mp, pytest.mark.nightly, pytest.mark.timeout(600)]

PROGRAMS = Path(__file__).parent / "programs"
SCRIPT = text_of(PROGRAMS / "tune.py")


def test_each_trial_has_its_own_ranks_and_reports_every_step(results: Mapping[str, Any]) -> None:
    assert results["trials"] == [[2, 3.0, 2, 2], [2, 30.0, 2, 2]]


def test_hosts_get_the_requested_number_of_ranks(results: Mapping[str, Any]) -> None:
    assert results["hosts"] == [2, 1, 2]


def test_failed_trial_resumes_from_its_checkpoint(results: Mapping[str, Any]) -> None:
    assert results["goes_on"] == [[4, 3.0, 2], "4", True]


def test_exception_of_a_rank_ends_the_trial_with_its_text(results: Mapping[str, Any]) -> None:
    kind, has_words = results["failing"]
    assert has_words, kind
