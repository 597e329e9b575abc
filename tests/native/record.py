"""Add the duration of a folder's tests, or of a build, to $HVDTEST_RECORD: ``record.py FOLDER KIND BEGUN STATUS [CASES]``.

BEGUN is in seconds of the clock of ``date``; CASES is what ``watchdog.cc`` has written.
"""

import json
import os
import sys
import time
from pathlib import Path


def line(folder: str, kind: str, begun: float, status: int, cases: str) -> str:
    """One room, or one build, which has no test cases."""
    each = [case.split("\t", 2) for case in cases.splitlines()]
    slowest = sorted(([name, round(float(seconds), 3)] for seconds, _, name in each), key=lambda case: -case[1])
    failed = sum(said == "1" for _, said, _ in each)
    lost = int(status != 0 and failed == 0)  # a build, or a test case in whose middle the room ended
    return json.dumps(
        {
            "folder": folder,
            "kind": kind,
            "tests": len(each) + lost,
            "seconds": round(time.time() - begun, 2),
            "failed": failed + lost,
            "slowest": slowest[:25],
        }
    )


if __name__ == "__main__":
    if record := os.environ.get("HVDTEST_RECORD"):
        folder, kind, begun, status, *cases = sys.argv[1:]
        text = Path(cases[0]).read_text(errors="replace") if cases else ""
        with Path(record).open("a") as out:
            out.write(line(folder, kind, float(begun), int(status), text) + "\n")
