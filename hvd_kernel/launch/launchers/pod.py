"""Pod of a notebook's rank: ``python -P -m hvd_kernel.launch.launchers.pod FILE``, written by kubernetes_job.py.

FILE has the invitation, a Secret's; JOB_COMPLETION_INDEX is the number of the pod.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from hvd_kernel.launch.launchers.cluster_engine import Invitation


def main() -> None:
    """Hold the agent of the pod's rank, until it is let go."""
    for number in (signal.SIGTERM, signal.SIGINT):  # the first process of a container ends by no signal of itself
        signal.signal(number, lambda *_: sys.exit(1))
    told = json.loads(Path(sys.argv[1]).read_text())
    Invitation(**told | {"hidden": tuple(told["hidden"])}).accept(int(os.environ["JOB_COMPLETION_INDEX"]))


if __name__ == "__main__":
    main()
