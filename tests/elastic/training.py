"""Training of the elastic scenarios: rank 0 appends a line per epoch to a log; a plan lists which rank fails when.

    python training.py PLAN        a JSON file

Terms of the plan.
  log      file that takes a JSON line per epoch, from rank 0; beside it log.error.N, with what has ended worker N
  runs     file to which each run of the discovery script has added a line
  epochs, batches, commit_every
  exits    place -> {worker: how}. A place is "epoch,batch", "import", "init" (a newcomer has its place), "sync", or
           "callback" (of a reset); how is raise, kill, exit0, hang, stop (SIGSTOP), pause (the same for a second),
           collective (one before elastic.run), agent (kill the host's), late:N (wait until the log has N lines),
           wait (for the file "go PLACE" beside the log); "wait kill" is both
  waits    epochs after whose line rank 0 waits until it is told that hosts have changed
  starts   epochs after whose line rank 0 waits until a worker has come to its "late", or the file log.late is there
  looks    epochs after whose line rank 0 waits until the discovery script has run twice more
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import hvd_kernel.numpy as hvd
from hvd_kernel.elastic.updates import notification_manager

PATIENCE_S = 120.0

plan = json.loads(Path(sys.argv[1]).read_text())
worker = int(os.environ["HVD_WORKER"])


class Changes:
    """Hears of changed hosts, beside the state."""

    def __init__(self) -> None:
        self.heard = threading.Event()

    def on_hosts_updated(self, timestamp: float, update_res: int) -> None:
        self.heard.set()


changes = Changes()


def hang_here(seconds: float) -> None:
    time.sleep(seconds)


def wait_to_go(place: str) -> None:
    wait_for(Path(plan["log"]).with_name(f"go {place}").exists, "nobody says go")


def act(place: str) -> None:
    """Fail as planned for this place and worker."""
    how = plan["exits"].get(place, {}).get(str(worker), "")
    if how.startswith("wait"):
        wait_to_go(place)
        how = how.removeprefix("wait").strip()
    if how == "raise":
        raise ValueError(f"worker {worker} fails as planned")
    if how == "exit0":
        sys.exit(0)
    if how == "hang":
        hang_here(3600)
    if how == "collective":
        hvd.allreduce(np.ones(1), name="too early")
    if how.startswith("late:"):
        Path(f"{plan['log']}.late").touch()
        wait_for(lambda: lines() >= int(how[5:]), "the others do not train")
    if how == "pause":
        subprocess.run(["sh", "-c", f"(sleep 1; kill -CONT {os.getpid()}) & kill -STOP {os.getpid()}"], check=True)
    if how == "agent":
        os.kill(os.getppid(), signal.SIGKILL)
        hang_here(3600)  # until the kernel ends this process, for the agent's end
    if how in {"kill", "stop"}:
        os.kill(os.getpid(), {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}[how])


class State(hvd.elastic.ObjectState):
    """The trained state; it may fail in ``sync``."""

    def sync(self) -> None:
        act("sync" if self.syncs else "first sync")
        self.syncs += 1
        super().sync()

    syncs = 0


def runs() -> int:
    return len(Path(plan["runs"]).read_text())


def lines() -> int:
    return len(Path(plan["log"]).read_text().splitlines())


def wait_for(what: Callable[[], bool], else_says: str) -> None:
    limit = time.monotonic() + PATIENCE_S
    while not what():
        assert time.monotonic() < limit, else_says
        time.sleep(0.02)


def wait(state: State) -> None:
    """As rank 0, wait for the event planned after an epoch."""
    if state.epoch in plan["waits"]:
        assert changes.heard.wait(PATIENCE_S), "nobody has told of changed hosts"
    if state.epoch in plan["starts"]:
        wait_for(Path(f"{plan['log']}.late").exists, "nobody starts")
    if state.epoch in plan["looks"]:
        wanted = runs() + 2
        wait_for(lambda: runs() >= wanted, "the script does not run")


def log(state: State) -> None:
    line = {
        "epoch": state.epoch,
        "batch": state.batch,
        "commits": state.commits,
        "total": float(state.total),
        "done": len(state.done),
        "once": len(set(state.done)) == len(state.done),
        "host": os.environ["HOROVOD_HOSTNAME"],
        "worker": worker,
        "workers": [int(each) for each in hvd.allgather(np.array([worker]), name="workers")],
        "slots": [int(each) for each in hvd.allgather(np.array([int(os.environ["HVD_SLOT"])]), name="slots")],
        "local_ranks": [int(each) for each in hvd.allgather(np.array([hvd.local_rank()]), name="local ranks")],
        "pids": [int(each) for each in hvd.allgather(np.array([os.getpid()]), name="pids")],
        "rank": hvd.rank(),
        "size": hvd.size(),
        "local": [hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size()],
        "generation": int(os.environ["HVD_GENERATION"]),
        "environ": [int(os.environ["HOROVOD_RANK"]), int(os.environ["HOROVOD_SIZE"])],
        "mps_pipes": os.environ.get("CUDA_MPS_PIPE_DIRECTORY"),
        "time": time.time(),
    }
    if hvd.rank() == 0:
        with Path(plan["log"]).open("a") as file:
            file.write(json.dumps(line) + "\n")


@hvd.elastic.run
def train(state: State) -> list[int]:
    while state.epoch < plan["epochs"]:
        while state.batch < plan["batches"]:
            act(f"{state.epoch},{state.batch}")
            state.total += float(hvd.allreduce(np.ones(1), op=hvd.Sum, name="step")[0]) / hvd.size()
            state.done.append((state.epoch, state.batch))
            state.batch += 1
            if state.batch % plan["commit_every"] == 0:
                state.commits += 1
                state.commit()
        changes.heard.clear()
        log(state)
        if hvd.rank() == 0:
            wait(state)
        state.epoch, state.batch = state.epoch + 1, 0
        state.commits += 1
        state.commit()
    return [hvd.rank(), hvd.size()]


def main() -> list[int]:
    act("import")
    atexit.register(lambda: sys.stdout.write(f"worker {worker} has cleaned up\n"))
    hvd.init()
    act("init")
    notification_manager.register_listener(changes)
    state = State(epoch=0, batch=0, commits=0, total=0.0, done=[])
    sizes: list[int] = []
    state.register_reset_callbacks([lambda: act("callback"), lambda: sizes.append(hvd.size())])
    place = train(state)
    sys.stdout.write(f"worker {worker} has ended as rank {place[0]} of {place[1]}, resets {sizes}\n")
    return place


if __name__ == "__main__":
    try:
        main()
    except Exception as error:
        Path(f"{plan['log']}.error.{worker}").write_text(f"{type(error).__name__}: {error}")
        raise
