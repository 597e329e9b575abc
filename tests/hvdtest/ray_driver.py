"""Ray drivers for tests: a program in the environment `ray`, which starts its own cluster and reports its cases as Spark's do.

Each node has an address of its own on the loopback interface: code that identifies nodes by address sees two nodes.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from hvdtest.environments import environment
from hvdtest.launch import clean_environment
from hvdtest.programs import text_of
from hvdtest.spark_driver import WITHIN_S, results_of

from hvd_kernel.processes.lifetime import environment_of, kill

HEAD = text_of("driver_cases", "ray_cluster")


@contextmanager
def variables() -> Iterator[dict[str, str]]:
    """Yield variables for a process that starts a cluster; kill all processes that have them at the end."""
    folder = tempfile.mkdtemp(prefix="hvd-ray-")  # short: the path of a socket has at most 107 bytes
    mark = f"HVDTEST_RAY_{Path(folder).name[-8:]}"
    # Ray runs its workers at a low priority: on a busy machine they would starve. It also limits their start to 60 s.
    quiet = {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": "0",
        "RAY_worker_register_timeout_seconds": "600",
    }
    try:
        yield {"RAY_TMPDIR": folder, mark: "1"} | quiet
    finally:
        for entry in Path("/proc").glob("[0-9]*"):
            if mark in environment_of(int(entry.name)):
                kill(int(entry.name), signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def driver(script: str, *args: str, cwd: Path) -> Iterator[subprocess.Popen[str]]:
    """A driver at work."""
    with ExitStack() as last:
        own = last.enter_context(variables())
        process = subprocess.Popen(
            [str(environment("ray")), "-P", "-c", HEAD + script, *args],
            env=clean_environment(PYTHONPATH="", **own),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            last.close()
            process.communicate()


def outcomes(script: str, folder: Path, *args: str, seconds: float = WITHIN_S) -> Mapping[str, Any]:
    """Run a program; return the results of its cases."""
    with driver(script, *args, cwd=folder) as process:
        return results_of(process, seconds)
