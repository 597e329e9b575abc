"""Namespaces for a run beside other runs: processes, shared memory, /tmp, the home folder and the tree of its own.

Linux's unshare(1) and overlay mounts, so only root can: a run sees the same paths and writes into copies. The network is
shared, as between users of one host.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from suite.budget import ROOT

_UNSHARE = ("unshare", "--fork", "--kill-child", "--pid", "--mount-proc", "--ipc", "--mount")
_SCRIPT = """
set -euo pipefail
copies=$1 tree=$2; shift 2
over() {
  mkdir -p "$copies/$1/upper" "$copies/$1/work"
  mount -t overlay overlay -o "lowerdir=$2,upperdir=$copies/$1/upper,workdir=$copies/$1/work" "$2"
}
over home "$HOME"
over tree "$tree"
mkdir -m 1777 "$copies/tmp"
mount --bind "$copies/tmp" /tmp
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
cd "$tree"
status=0
"$@" || status=$?
exit $status
"""
"""Bash stays as process 1 and reaps orphans; it would become the command where that came last."""


@contextmanager
def copies() -> Iterator[Path]:
    """A folder for what a run writes; outside of /tmp, which the run has of its own."""
    if os.geteuid() != 0:
        raise PermissionError(
            "runs at the same time need root, for namespaces and mounts of their own: leave AT_ONCE away"
        )
    folder = Path(tempfile.mkdtemp(prefix="hvd_suite_", dir="/var/tmp"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def run(command: Sequence[str], written: Path, out: IO[str], tree: Path = ROOT) -> int:
    """Run a command in ``tree`` as it looks in namespaces of its own; its exit status.

    Args:
        command: what runs there.
        written: the folder of ``copies()``; what the command writes into the tree is in ``file_of(written, path)``.
        out: gets what it prints.
        tree: the folder that it may change without changing it for others.

    """
    inside = (*_UNSHARE, "bash", "-c", _SCRIPT, "namespaces", str(written), str(tree), *command)
    return subprocess.run(inside, stdout=out, stderr=subprocess.STDOUT, check=False).returncode


def file_of(written: Path, path: Path) -> Path:
    """Where a file of the tree is for others, if the run has written it; ``path``: from the tree's top."""
    return written / "tree" / "upper" / path
