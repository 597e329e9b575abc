"""A rank of ``hvd_kernel.run``: ``python -P -m hvd_kernel.launch.run.task FOLDER``.

The folder belongs to the agent of this rank, which received the call over its channel and sends the answer. The call is
unpickled only if no other user may write there.
"""

from __future__ import annotations

import atexit
import os
import pickle
import stat
import sys
from pathlib import Path

from hvd_kernel.errors import ClusterError
from hvd_kernel.launch.run.call import Answer, Task, release_peers
from hvd_kernel.processes.private_dir import CALL, answer_file, write_private
from hvd_kernel.protocol.elastic import WORKER

_NUMBERS = (WORKER, "HOROVOD_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")


def main(folder: Path) -> int:
    """Execute the folder's call; return the exit status."""
    number = next(int(os.environ[name]) for name in _NUMBERS if name in os.environ)
    # Written right before the exit: the launcher shows the traceback of a rank that lives on for some seconds.
    traces: list[str] = []
    atexit.register(lambda: sys.stderr.write("".join(traces)))
    task = Task(_call_of(folder))
    try:
        task.perform()
    except BaseException as error:  # noqa: BLE001 - SystemExit and KeyboardInterrupt are failures of the function too
        assert task.answer is not None
        _write_answer(folder, number, task.answer)  # first: the peers then raise errors that are not the cause
        release_peers(error)
        traces.append(task.answer.trace)
        return 1
    assert task.answer is not None
    _write_answer(folder, number, task.answer)
    return 0


def _call_of(folder: Path) -> bytes:
    status = folder.stat()
    if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
        raise ClusterError(f"{folder} is not private to this user: what it holds is not unpickled.")
    return (folder / CALL).read_bytes()


def _write_answer(folder: Path, number: int, answer: Answer) -> None:
    write_private(answer_file(folder, number), pickle.dumps(answer))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
