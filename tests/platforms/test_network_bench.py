"""The comparison between emulated hosts: links have the requested speed, every sum is exact or the run fails, no process is left."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import pytest
from hvdtest.hosts import why_not
from hvdtest.launch import TESTS, clean_environment
from hvdtest.rank import load

NETWORK = TESTS.parent / "tools" / "bench" / "network"
pytestmark = [pytest.mark.nightly, pytest.mark.mp, pytest.mark.skipif(bool(why_not()), reason=why_not() or "none")]


def compare(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", str(NETWORK / "compare.py"), "--rate", "1e8", "--latency", "1e-3", *arguments]
    return subprocess.run(command, env=clean_environment(), capture_output=True, text=True, timeout=200, check=False)


@pytest.mark.usefixtures("mark")
def test_sums_are_exact_over_links_of_the_requested_speed() -> None:
    done = compare("--hosts", "3", "--sizes", "4096,600000", "--rounds", "1", "--ours", "HVD_TCP_STREAMS=3")
    assert done.returncode == 0, done.stderr
    said = re.search(r"a byte takes (\d+) us, one connection carries (\d+) Mbit/s", done.stdout)
    assert said, done.stdout
    assert int(said[1]) >= 1000
    assert int(said[2]) <= 100
    rows = [line.split("|")[1:-1] for line in done.stdout.splitlines() if "KiB" in line]
    assert [(row[0].strip(), len(row)) for row in rows] == [("4 KiB", 3), ("585 KiB", 3)]


@pytest.mark.usefixtures("mark")
def test_exit_of_a_rank_is_an_error_and_no_process_is_left() -> None:
    done = compare("--sizes", "4096", "--ours", "HVD_SLOTS=1")
    assert done.returncode != 0
    assert "a rank has ended before all were up" in done.stderr


@pytest.mark.parametrize(("times", "also"), [(3, 0), (3, 1), (2, 0)])
def test_rank_detects_a_wrong_sum(times: int, also: int) -> None:
    def reduce(array: Any) -> None:
        array *= times
        array[-1] += also

    answer = load(str(NETWORK / "one_rank.py")).answer({"bytes": 4096, "times": 1}, 0, 2, reduce)
    assert answer["right"] == ((times, also) == (3, 0))
