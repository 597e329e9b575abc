"""Helpers of Ray's drivers for tests of exits: ranks that would run forever."""

STAYS = """
def stays(folder):
    # Each rank has a process in a session of its own, which no signal to a group reaches.
    import os, subprocess, time
    from pathlib import Path
    import hvd_kernel.numpy as hvd
    hvd.init()
    below = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    file = Path(folder, f"rank{hvd.rank()}")
    file.with_suffix(".part").write_text(f"{os.getpid()} {below.pid}")
    file.with_suffix(".part").replace(file)
    hvd.barrier() if hvd.rank() else time.sleep(1000)
"""
ENDS = (
    STAYS
    + f"STAYS = {STAYS!r}\n"
    + """
import os, signal, subprocess, sys, threading, time
from pathlib import Path
from hvd_kernel.ray import RayExecutor

def place():
    import hvd_kernel.numpy as hvd
    hvd.init()
    return [hvd.rank(), hvd.size()]

def folder(name):
    made = Path(name).absolute()
    made.mkdir()
    return str(made)

def begun(folder, ranks, within=300):
    files, end = [Path(folder, f"rank{rank}") for rank in range(ranks)], time.monotonic() + within
    while not all(file.exists() for file in files):
        if time.monotonic() > end:
            raise TimeoutError(f"{sum(file.exists() for file in files)} of {ranks} ranks have begun after {within} s")
        time.sleep(0.05)
    return [[int(pid) for pid in file.read_text().split()] for file in files]

def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False

def left(processes, within=60):
    end = time.monotonic() + within
    while (found := [pid for each in processes for pid in each if alive(pid)]) and time.monotonic() < end:
        time.sleep(0.1)
    return found

def meanwhile(folder, ranks, act):
    # Act when all ranks have begun.
    processes = []
    def wait():
        processes.extend(begun(folder, ranks))
        act(processes)
    threading.Thread(target=wait, daemon=True).start()
    return processes

def interrupt(_):
    os.kill(os.getpid(), signal.SIGINT)

def came_of(call, *args):
    try:
        return [call(*args)]
    except (Exception, KeyboardInterrupt) as error:
        return [type(error).__name__, type(error.__cause__).__name__, getattr(error, "rank", None)]
"""
)
