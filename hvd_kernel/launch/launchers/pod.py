"""Pod of a notebook's rank: ``python -P -m hvd_kernel.launch.launchers.pod FILE``, the command of kubernetes_job.py.

FILE contains the invitation, from a Secret; JOB_COMPLETION_INDEX is the number of the pod.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from hvd_kernel.launch.launchers.cluster_engine import Invitation


def main() -> None:
    """Run the agent of the pod's rank until the launcher disconnects."""
    for number in (signal.SIGTERM, signal.SIGINT):  # without a handler a container's first process ignores signals
        signal.signal(number, lambda *_: sys.exit(1))
    fields = json.loads(Path(sys.argv[1]).read_text())
    Invitation(**fields | {"hidden": tuple(fields["hidden"])}).accept(int(os.environ["JOB_COMPLETION_INDEX"]))


if __name__ == "__main__":
    main()
