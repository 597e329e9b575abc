"""Cells of a notebook in the driver's process, and the cases that Ray and Spark share."""

import contextlib
import io
import signal
import threading
import time

import psutil
from IPython.core.interactiveshell import InteractiveShell

shell = InteractiveShell.instance()
shell.run_line_magic("load_ext", "hvd_kernel.magics")


def cell(line, code="", when=lambda said: None):
    # What it says without its error, and its error; `when` is called in a thread with what is said meanwhile.
    said = io.StringIO()
    watch = threading.Thread(target=when, args=[said], daemon=True)
    watch.start()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        result = shell.run_cell(f"{line}\n{code}", store_history=True)
    error = result.error_in_exec
    return [said.getvalue().partition("\x1b[")[0], "" if error is None else f"{type(error).__name__}: {error}"]


def living(processes, of_interest):
    # Of those that were found, any may end while it is asked.
    def is_one(process):
        try:
            return process.status() != psutil.STATUS_ZOMBIE and of_interest(process)
        except psutil.NoSuchProcess:
            return False

    return [each for each in processes if is_one(each)]


def until(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def second():
    return cell("%%hvdrun", "hvd.allgather_object(x)")


def interrupted():
    def press(said):
        until(lambda: "here" in said.getvalue())
        signal.raise_signal(signal.SIGINT)

    waits = "import time\nif rank == 0:\n    print('here', flush=True)\n    hvd.barrier()\ntime.sleep(1000)"
    return [cell("%%hvdrun", waits, press), cell("%%hvdrun", "hvd.allgather_object(x)")]


def died():
    return [
        cell("%%hvdrun", "import os\nos._exit(3) if rank == 1 else hvd.barrier()"),
        cell("%hvd respawn"),
        cell("%%hvdrun", "hvd.allgather_object(globals().get('x'))"),
    ]
