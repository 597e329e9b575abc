"""Waits read the monotonic clock: who may look at the wall clock stands here, with what for (F7)."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

WALL = re.compile(
    r"system_clock|high_resolution_clock|gettimeofday|CLOCK_REALTIME|\btime\((?:NULL|nullptr|0)?\)"
    r"|time\.time(?:_ns)?\(|datetime\.(?:now|utcnow|today)\("
)
FOR_PEOPLE = {  # nothing waits for any of them
    "native/engine/timeline.cc": "the date at which a timeline began",
    "hvd_kernel/cluster/keeper.py": "since when ranks have been kept, for other kernels to show",
    "hvd_kernel/cluster/kept.py": "how long that is ago",
    "hvd_kernel/cluster/leftovers.py": "the age of a folder, which the file system tells by the wall clock",
}


def sources() -> list[Path]:
    ours = [*(ROOT / "native").rglob("*.cc"), *(ROOT / "native").rglob("*.h")]
    for package in ("hvd_kernel", "magics", "widgets"):
        ours += (ROOT / package).rglob("*.py")
    return [path for path in ours if not path.is_symlink()]


def test_f7_nothing_that_waits_reads_the_wall_clock() -> None:
    found = {str(path.relative_to(ROOT)) for path in sources() if WALL.search(path.read_text())}
    assert found == set(FOR_PEOPLE)
