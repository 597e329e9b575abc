"""A child that a cell forks still prints into the notebook, through the port that only it can speak to (S1)."""

from __future__ import annotations

import pytest
from hvdtest.place import Place

pytestmark = [pytest.mark.jupyter, pytest.mark.mp, pytest.mark.timeout(400)]

FORK = """
import os, sys
child = os.fork()
if not child:
    try:
        print("from the child", flush=True)
        sys.stdout.flush()
    finally:
        os._exit(0)
os.waitpid(child, 0)[1]
"""
PAUSE = """
import signal, subprocess, time
def pause(kernel, seconds):
    subprocess.Popen(["sh", "-c", f"kill -STOP {kernel}; sleep {seconds}; kill -CONT {kernel}"])
    while open(f"/proc/{kernel}/stat").read().rpartition(")")[2].split()[0] != "T":
        time.sleep(0.01)
"""


def test_s1_forked_children_print_through_the_closed_pipe(place: Place) -> None:
    heard(place, FORK)


@pytest.mark.nightly  # five seconds
def test_s1_forked_child_waits_for_a_paused_kernel(place: Place) -> None:
    """As on a busy machine: by default ipykernel drops a child's output that is not read within 3 s."""
    heard(place, PAUSE + FORK.replace("    try:\n", "    try:\n        pause(os.getppid(), 5)\n"))


def heard(place: Place, code: str) -> None:
    outcome = place.run(code)
    assert outcome.shown == ["0"]
    text = outcome.text()
    while "from the child" not in text:  # it comes another way than what the cell says: maybe later than the cell's end
        text += place.kernel.wait_for("stream")["text"]
    assert text.strip() == "from the child"
