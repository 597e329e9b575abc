"""Spark drivers for tests: a script in the environment `spark`, with a session, whose cases tell what came of them.

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
from hvdtest.launch import TESTS, clean_environment

WITHIN_S = 560  # a session alone takes 100 s beside a load of 16
TELL = """
import json, sys, traceback

def tell(*cases):
    for case in cases:
        try:
            told = case()
        except Exception as error:
            cause = error.__cause__
            told = {"raised": type(error).__name__, "text": str(error), "cause": type(cause).__name__, "args": []}
            told["args"] = list(map(str, getattr(cause, "args", ())))
            traceback.print_exc()
        print("TOLD " + json.dumps([case.__name__, told]), flush=True)
"""
HEAD = (
    TELL
    + """
def session(master, **conf):
    from pyspark.sql import SparkSession
    build = SparkSession.builder.master(master).config("spark.ui.enabled", "false")
    build = build.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    for name, value in conf.items():
        build = build.config(name.replace("_", "."), value)
    return build.getOrCreate()
"""
)


def started(script: str, *args: str, version: str = "spark", **more: Any) -> subprocess.Popen[str]:
    """A driver at work, in an environment: ``session``, ``tell`` and the script."""
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
    """What the cases have told."""
    return told_by(started(script, version=version, cwd=folder, env=env), seconds)


def told_by(driver: subprocess.Popen[str], seconds: float = WITHIN_S) -> Mapping[str, Any]:
    """What the cases of a driver at work will have told."""
    try:
        out, err = driver.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(driver.pid, signal.SIGKILL)
        out, err = driver.communicate()
    lines = [line.removeprefix("TOLD ") for line in out.splitlines() if line.startswith("TOLD ")]
    told = dict(json.loads(line) for line in lines)
    assert driver.returncode == 0, f"{told}\n{out[-3000:]}\n{err[-6000:]}"
    return told


__all__ = ["HEAD", "TELL", "TESTS", "WITHIN_S", "outcomes", "started", "told_by"]
