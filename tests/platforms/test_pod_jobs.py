"""A written Indexed Job, its pods played by processes of this machine: each runs the container's own command."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hvdtest.hvdrun import NIGHTLY
from hvdtest.launch import clean_environment, free_port

from hvd_kernel.jobs import JobSpec, Replica, writers

pytestmark = [pytest.mark.mp, NIGHTLY, pytest.mark.skipif(os.getuid() != 0, reason="only root mounts /etc/hosts")]

SCRIPT = """
from pathlib import Path
import numpy as np
from hvd_kernel.core import session as here, ops
here.init()
total = ops.allreduce(np.array([here.rank() + 1.0]), name="x", op=ops.Sum).item()
first = len(list(Path.cwd().glob("first.*")))
Path(f"rank.{here.rank()}").write_text(repr([here.size(), total, first]))
"""
NAMED = 'mount --bind "$1" /etc/hosts && shift && exec "$@"'


def pods(folder: Path, first: str) -> list[int]:
    """Run a job of two pods with two ranks each; return how each pod ended."""
    (folder / "script.py").write_text(SCRIPT)
    spec = JobSpec(
        "riseml",
        tuple(Replica(index=index, slots=2) for index in range(2)),
        steps=(first, f"{sys.executable} -P script.py"),
        name="it",
        image="image",
        workdir=str(folder),
    )
    text = writers.write(spec, "job", writers.WriterOptions(secret="0123456789abcdef" * 2, port=free_port()))
    secret, _service, job = yaml.safe_load_all(text)
    container = job["spec"]["template"]["spec"]["containers"][0]
    here = socket.gethostbyname(socket.gethostname())
    (folder / "hosts").write_text(f"{Path('/etc/hosts').read_text()}\n{here} it-0.it\n")  # the Service's DNS
    env = clean_environment(PATH=f"{sys.prefix}/bin:{os.environ['PATH']}")
    for each in container["env"]:
        env[each["name"]] = each["value"] if "value" in each else secret["stringData"]["HVD_SECRET_KEY"]
    apart = ["unshare", "--mount", "--propagation", "private", "sh", "-c", NAMED, "sh", str(folder / "hosts")]
    command = [*apart, *container["command"], *container["args"]]
    started = [
        subprocess.Popen(command, env=env | {"JOB_COMPLETION_INDEX": str(index)}, cwd=container["workingDir"])
        for index in range(2)
    ]
    return [each.wait(120) for each in started]


def test_ranks_of_all_pods_wait_for_each_other_between_steps(tmp_path: Path) -> None:
    """The ranks of the second pod reach the end of the first step late."""
    late = 'while [ "$HOROVOD_RANK" -ge 2 ] && [ ! -e first.1 ]; do sleep 0.01; done; touch first.$HOROVOD_RANK'
    assert pods(tmp_path, late) == [0, 0]
    for rank in range(4):
        assert (tmp_path / f"rank.{rank}").read_text() == repr([4, 10.0, 4])


def test_failed_step_is_the_last_in_all_pods(tmp_path: Path) -> None:
    assert pods(tmp_path, "exit 3") == [3, 3]
    assert not list(tmp_path.glob("rank.*"))
