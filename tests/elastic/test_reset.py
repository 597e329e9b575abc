"""Around a reset: order of callbacks, process sets, the timeline; rows 24 and 26 of the scenarios."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest
from hvdtest.hvdrun import HVDRUN, ran

pytestmark = [pytest.mark.mp, pytest.mark.nightly, pytest.mark.usefixtures("mark")]

SCRIPT = """
import os, signal, sys
import numpy as np
import hvd_kernel.numpy as hvd

dies, uses_set = int(sys.argv[1]), sys.argv[2] == "set"
worker, events = int(os.environ["HVD_WORKER"]), []

class State(hvd.elastic.ObjectState):
    def sync(self):
        events.append(f"sync at {hvd.size()} with step {self.step}")
        super().sync()

hvd.init()
pair = hvd.add_process_set([1, 2]) if uses_set and worker < 3 else None
state = State(step=0)
state.register_reset_callbacks([lambda: events.append(f"first callback at {hvd.size()}"), lambda: events.append("second")])

@hvd.elastic.run
def train(state):
    while state.step < 20:
        if worker == dies and state.step == 10:
            os.kill(os.getpid(), signal.SIGKILL)
        if state.step in (3, 15) and pair is not None and (worker in (1, 2) or state.step == 15):
            try:
                got = float(hvd.allreduce(np.ones(1), op=hvd.Sum, name="of two", process_set=pair)[0])
                events.append(f"{got} at step {state.step}")
            except ValueError as error:
                events.append(f"{type(error).__name__} at step {state.step}")
        hvd.allreduce(np.ones(1), name="step")
        state.step += 1
        state.commit()

train(state)
print(worker, hvd.rank(), hvd.size(), events)
"""


def job(tmp_path: Path, np: int, dies: int, uses: str = "", **env: str) -> list[str]:
    """Return the final reports of the ranks of a job in which one dies at step 10."""
    flags = ["-np", str(np), "--min-np", "1", "-H", f"localhost:{np}"]
    done = ran([*HVDRUN, *flags, sys.executable, "-P", "-c", SCRIPT, str(dies), uses], tmp_path, **env)
    assert done.returncode == 0, done.stdout + done.stderr
    return sorted(re.findall(r"^\[\d\]<stdout>:(.*)$", done.stdout, re.MULTILINE))


def test_24_reset_callbacks_run_once_before_sync(tmp_path: Path) -> None:
    lines = job(tmp_path, 2, 1)
    reset = "'first callback at 2', 'second', 'sync at 2 with step 10'"
    assert lines == [f"0 0 2 ['sync at 2 with step 0', {reset}]", "2 1 2 ['sync at 2 with step 0']"]


def test_26_process_set_with_all_members_survives(tmp_path: Path) -> None:
    lines = job(tmp_path, 3, 0, "set", HVD_DYNAMIC_PROCESS_SETS="1")
    survivors = [line for line in lines if line[0] in "12"]
    assert len(survivors) == 2, lines
    assert all("'2.0 at step 3'" in line and "'2.0 at step 15'" in line for line in survivors), lines


def test_26_process_set_reports_a_lost_member(tmp_path: Path) -> None:
    lines = job(tmp_path, 3, 2, "set", HVD_DYNAMIC_PROCESS_SETS="1")
    survivors = [line for line in lines if line[0] in "01"]
    assert len(survivors) == 2, lines
    assert all("'ValueError at step 15'" in line for line in survivors), lines


PINNED = """
import os, signal
import numpy as np
import hvd_kernel.numpy as hvd

worker = int(os.environ["HVD_WORKER"])
hvd.init()
state = hvd.elastic.ObjectState(step=0)

def cores_of_progress():
    for task in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{task}/comm") as comm:
            if comm.read().strip() == "hvd-progress":
                return sorted(os.sched_getaffinity(int(task)))

@hvd.elastic.run
def train(state):
    while state.step < 20:
        if worker == 0 and state.step == 10:
            os.kill(os.getpid(), signal.SIGKILL)
        found = hvd.rank(), hvd.local_rank(), cores_of_progress()
        hvd.allreduce(np.ones(1), name="step")
        state.step += 1
        state.commit()
    return found

print(worker, *train(state))
"""


def test_cores_are_assigned_to_slots(tmp_path: Path) -> None:
    """Rank 0 has died: worker 1 is rank 0, in slot 1. Its thread keeps the core of its slot, the new worker gets slot 0's."""
    mine = sorted(os.sched_getaffinity(0))
    first, last = mine[0], mine[-1]
    flags = ["-np", "2", "--min-np", "1", "-H", "localhost:2"]
    env = {"HOROVOD_THREAD_AFFINITY": f"{first},{last}"}
    done = ran([*HVDRUN, *flags, sys.executable, "-P", "-c", PINNED], tmp_path, **env)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = sorted(re.findall(r"^\[\d\]<stdout>:(.*)$", done.stdout, re.MULTILINE))
    assert lines == [f"1 0 1 [{last}]", f"2 1 0 [{first}]"]


def test_26_timeline_continues_and_marks_the_reset(tmp_path: Path) -> None:
    job(tmp_path, 2, 1, HOROVOD_TIMELINE=str(tmp_path / "timeline.json"))
    events = json.loads((tmp_path / "timeline.json").read_text())
    rows = [event for event in events if event.get("name") == "process_name"]
    steps = [event["pid"] for event in rows if event["args"]["name"] == "allreduce.step"]
    done = [sum(event.get("name") == "ALLREDUCE" and event["pid"] == row for event in events) for row in steps]
    assert done == [10, 10], "before the reset and after it"
    assert [event["args"] for event in events if event.get("name") == "RESET"] == [{"ranks": 2}]
