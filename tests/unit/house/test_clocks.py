"""Waits read the monotonic clock: the allowed readers of the wall clock are listed here, with their purpose (F7)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hvdtest.offenders import NATIVE_SUFFIXES, PRODUCT, assert_kept, name, sources, text

WALL = re.compile(
    r"system_clock|high_resolution_clock|gettimeofday|CLOCK_REALTIME|\btime\((?:NULL|nullptr|0)?\)"
    r"|time\.time(?:_ns)?\(|datetime\.(?:now|utcnow|today)\("
)
FOR_PEOPLE = {  # nothing waits for any of them
    "native/engine/timeline/timeline.cc": "the date at which a timeline began",
    "native/base/log.cc": "the time before a line of the log",
    "hvd_kernel/cluster/supervisor.py": "since when ranks have been kept, for other kernels to show",
    "hvd_kernel/processes/detached.py": "how long that is ago",
    "hvd_kernel/cluster/warm_supervisor.py": "since when warm ranks wait, for other kernels to show",
    "hvd_kernel/processes/warm.py": "how long that is ago",
    "hvd_kernel/spark/common/estimator.py": "the date in the id of a run",
    "hvd_kernel/spark/common/job.py": "when a value was logged",
    "hvd_kernel/processes/bandwidth.py": "when a measurement was made",
    "magics/cell_view.py": "when a cell ran, for its record",
    "hvd_kernel/launch/exit_report.py": "when a rank has ended",
    "hvd_kernel/tracking/sink.py": "when a run began and a value was logged",
    "hvd_kernel/processes/leftovers.py": "the age of a folder, which the file system tells by the wall clock",
}
FILES = [*sources("native", suffixes=NATIVE_SUFFIXES), *sources(*PRODUCT)]


def wall_clocks(path: Path) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text(path).splitlines(), 1):
        yield from ((number, f"reads {match[0]}") for match in WALL.finditer(line))


def test_f7_waiting_code_never_reads_the_wall_clock() -> None:
    assert_kept("waits read the monotonic clock", (p for p in FILES if name(p) not in FOR_PEOPLE), wall_clocks)


def test_f7_listed_readers_of_the_wall_clock_exist() -> None:
    assert {name(path) for path in FILES if name(path) in FOR_PEOPLE and list(wall_clocks(path))} == set(FOR_PEOPLE)


@pytest.mark.parametrize(
    "read", ["time.time()", "datetime.now(UTC)", "std::chrono::system_clock::now()", "time(nullptr)"]
)
def test_f7_rule_detects_violations(read: str, tmp_path: Path) -> None:
    (bad := tmp_path / "bad.cc").write_text(f"\n{read}\n")
    with pytest.raises(AssertionError, match=r"bad\.cc:2: reads "):
        assert_kept("a rule", [bad], wall_clocks)
