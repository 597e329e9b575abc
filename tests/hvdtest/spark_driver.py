"""Spark drivers for tests: a program in the environment `spark`, with a session, that reports the results of its cases.

A case is a function of the script; ``outcomes`` runs them in this order and returns what each has returned, or
``{"raised": class, "text": message}``.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hvdtest.environments import environment
from hvdtest.launch import clean_environment
from hvdtest.programs import text_of

WITHIN_S = 560  # a session alone takes 100 s beside a load of 16
HEAD = text_of("driver_cases", "spark_session")


def started(script: str, *args: str, version: str = "spark", **more: Any) -> subprocess.Popen[str]:
    """Start a driver in an environment: ``session``, ``report_cases`` and the program."""
    python = environment(version)
    env = clean_environment(
        PYSPARK_PYTHON=str(python), PYTHONPATH="", SPARK_LOCAL_IP="127.0.0.1", JAVA_TOOL_OPTIONS="-Xss2m"
    )
    return subprocess.Popen(
        [str(python), "-P", "-c", HEAD + script, *args],
        env=env | dict(more.pop("env", {})),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        **more,
    )


def outcomes(
    script: str, folder: Path, *, seconds: float = WITHIN_S, version: str = "spark", **env: str
) -> Mapping[str, Any]:
    """Run a program; return the results of its cases."""
    return results_of(started(script, version=version, cwd=folder, env=env), seconds)


def results_of(driver: subprocess.Popen[str], seconds: float = WITHIN_S) -> Mapping[str, Any]:
    """Wait for a running driver; return the results of its cases."""
    try:
        out, err = driver.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(driver.pid, signal.SIGKILL)
        out, err = driver.communicate()
    lines = [line.removeprefix("RESULT ") for line in out.splitlines() if line.startswith("RESULT ")]
    results = dict(json.loads(line) for line in lines)
    assert driver.returncode == 0, f"{results}\n{out[-3000:]}\n{err[-6000:]}"
    return results
