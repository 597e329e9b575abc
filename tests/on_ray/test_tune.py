"""Trials of Ray Tune with several ranks each: figures, a checkpoint that the next trial goes on from, a trial that fails."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hvdtest.programs import text_of

pytestmark = [pytest.mark.mp, pytest.mark.nightly, pytest.mark.timeout(600)]

PROGRAMS = Path(__file__).parent / "programs"
SCRIPT = text_of(PROGRAMS / "tune.py")


def test_each_trial_has_ranks_of_its_own_and_reports_once_a_step(results: Mapping[str, Any]) -> None:
    assert results["trials"] == [[2, 3.0, 2, 2], [2, 30.0, 2, 2]]


def test_so_many_hosts_have_so_many_ranks_each(results: Mapping[str, Any]) -> None:
    assert results["hosts"] == [2, 1, 2]


def test_a_trial_that_has_failed_goes_on_from_its_checkpoint(results: Mapping[str, Any]) -> None:
    assert results["goes_on"] == [[4, 3.0, 2], "4", True]


def test_what_a_rank_raises_ends_the_trial_with_its_words(results: Mapping[str, Any]) -> None:
    kind, has_words = results["failing"]
    assert has_words, kind
