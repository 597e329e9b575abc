"""The process that holds the cluster's life: ``python -P -m hvd_kernel.cluster.supervisor``, started by launcher.py.

It starts mpiexec, becomes ipyparallel's controller, and sees to it that nothing outlives the notebook kernel:

    kernel --pidfd, stdin--> supervisor --PDEATHSIG--> mpiexec --PDEATHSIG--> ranks

As "child subreaper" it inherits every orphan below it, so that at the end it can kill and wait for all of them,
whatever they forked; then it removes the cluster's private folders. It watches the kernel's process itself (pidfd),
because a PDEATHSIG would follow the kernel's *thread* and an EOF could be held up by any process the kernel forked.

The plan (mpiexec's command, folders to remove, address to listen on) is argv[1] as JSON. stdin brings one line: stop.
stdout takes JSON lines: {"client": connection}, {"exit": status of mpiexec}. Connection keys travel in these pipes
only: no file, argument or environment variable ever holds one.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hvd_kernel.cluster.processes import children, die_with_parent, kill, kill_descendants, take_orphans

_GRACE_S = 1.5  # what ranks get to end by themselves after a stop


class Supervisor:
    """Owns mpiexec and the private folders. The main thread is the controller's, a second one watches the kernel."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self._folders = [Path(folder) for folder in plan["folders"]]
        self._told_rank_0 = {"folder": plan["folders"][0]}
        self._finishing = threading.Lock()
        self._mpi = subprocess.Popen(  # noqa: S603 - the launcher's plan
            plan["mpiexec"],
            stdin=subprocess.PIPE,
            stdout=sys.stderr.fileno(),
            preexec_fn=die_with_parent,  # noqa: PLW1509 - there is still one thread here
        )

    def watch(self, kernel: int) -> None:
        """Wait for the kernel's end or its word, or mpiexec's end, then finish. Never returns."""
        kernel_gone, mpi_gone = os.pidfd_open(kernel), os.pidfd_open(self._mpi.pid)
        interesting = [_FROM_KERNEL, kernel_gone, mpi_gone]
        while True:
            ready, _, _ = select.select(interesting, [], [])
            if mpi_gone in ready:
                interesting.remove(mpi_gone)
                tell({"exit": self._mpi.wait()})
            else:
                asked = _FROM_KERNEL in ready and os.read(_FROM_KERNEL, 64) != b""
                self.finish(grace=_GRACE_S if asked else 0.0)

    def deliver(self, connections: dict[str, dict[str, Any]]) -> None:
        """Hand the controller's addresses and keys to the kernel and, through mpiexec's stdin, to rank 0."""
        tell({"client": connections["client"]})
        if self._mpi.stdin is not None and self._mpi.poll() is None:
            self._mpi.stdin.write(json.dumps(connections["engine"] | self._told_rank_0).encode() + b"\n")
            self._mpi.stdin.flush()

    def finish(self, grace: float) -> None:
        """Leave nothing: processes, folders, then this process itself."""
        with self._finishing:
            if grace:
                self._ask_ranks()
                self._wait_mpi(grace)
            kill_descendants()
            for folder in self._folders:
                shutil.rmtree(folder, ignore_errors=True)
            os._exit(0)

    def _ask_ranks(self) -> None:
        for pid in children(self._mpi.pid):
            kill(pid, signal.SIGTERM)

    def _wait_mpi(self, seconds: float) -> None:
        try:
            self._mpi.wait(seconds)
        except subprocess.TimeoutExpired:
            return


def tell(message: dict[str, Any]) -> None:
    """Say one thing to the kernel, which may be gone."""
    try:
        os.write(_TO_KERNEL, json.dumps(message).encode() + b"\n")
    except BrokenPipeError:
        return


def _start(target: Callable[[int], None], kernel: int) -> None:
    threading.Thread(target=target, args=(kernel,), name="hvd-life", daemon=True).start()


def main() -> None:
    """Run until the kernel ends or says stop."""
    take_orphans()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    kernel = os.getppid()
    plan = json.loads(sys.argv[1])
    supervisor = Supervisor(plan)
    _start(supervisor.watch, kernel)
    from hvd_kernel.cluster import controller  # noqa: PLC0415 - mpiexec must not wait for this import

    controller.serve(supervisor.deliver, lambda: supervisor.finish(grace=0.0), plan["address"])
    supervisor.finish(grace=0.0)


_FROM_KERNEL = 0
_TO_KERNEL = 1
if __name__ == "__main__":
    main()
