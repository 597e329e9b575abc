"""The process that holds the cluster's life: ``python -P -m hvd_kernel.cluster.supervisor``, started by launcher.py.

It starts mpiexec, becomes ipyparallel's controller, and sees to it that nothing outlives the notebook kernel:

    kernel --pidfd, stdin--> supervisor --PDEATHSIG--> mpiexec --PDEATHSIG--> ranks
                                 |------PDEATHSIG--> spares, and the ranks that were spares

As "child subreaper" it inherits every orphan below it, so that at the end it can kill and wait for all of them,
whatever they forked; then it removes the cluster's private folders. It watches the kernel's process itself (pidfd),
because a PDEATHSIG would follow the kernel's *thread* and an EOF could be held up by any process the kernel forked.

The plan (mpiexec's command, folders to remove, address to listen on, number of ranks) is argv[1] as JSON. stdin brings
JSON lines: {"stop": true}, {"spares": how many to have}, {"replace": ranks}. stdout takes JSON lines: {"client":
connection}, {"exit": status of mpiexec}, {"joining": {rank: process id}}, {"warm": spares that could start at once}.
Connection keys travel in these pipes only: no file, argument or environment variable ever holds one.
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
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hvd_kernel.cluster import admission, spares
from hvd_kernel.cluster.processes import (
    HOLDER,
    children,
    die_with_parent,
    dump_no_memory,
    kill,
    kill_descendants,
    mark,
    take_orphans,
)

_GRACE_S = 1.5  # what ranks get to end by themselves after a stop


class Supervisor:
    """Owns mpiexec and the private folders. The main thread is the controller's, a second one watches the kernel."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self._folders = [Path(folder) for folder in plan["folders"]]
        self._told_ranks: dict[str, Any] = {"folder": plan["folders"][0]}
        self._finishing = threading.Lock()
        self._spares = spares.Spares(plan["ranks"])
        self._warm = 0
        self._heard = b""
        self._mpi = subprocess.Popen(  # noqa: S603 - the launcher's plan
            plan["mpiexec"],
            stdin=subprocess.PIPE,
            stdout=sys.stderr.fileno(),
            preexec_fn=die_with_parent,  # noqa: PLW1509 - there is still one thread here
        )

    def watch(self, kernel: int) -> None:
        """Do what the kernel says, say when mpiexec ends, and finish with the kernel. Never returns."""
        kernel_gone, mpi_gone = os.pidfd_open(kernel), os.pidfd_open(self._mpi.pid)
        interesting = [_FROM_KERNEL, kernel_gone, mpi_gone]
        while True:
            ready, _, _ = select.select([*interesting, *self._spares.descriptors()], [], [])
            if mpi_gone in ready:
                interesting.remove(mpi_gone)
                tell({"exit": self._mpi.wait()})
            if _FROM_KERNEL in ready:
                self._obey(os.read(_FROM_KERNEL, 4096))
            elif kernel_gone in ready:
                self.finish(grace=0.0)
            self._spares.look(ready)
            self._tell_warm()

    def _obey(self, heard: bytes) -> None:
        if not heard:
            self.finish(grace=0.0)
        *lines, self._heard = (self._heard + heard).split(b"\n")
        for word in map(json.loads, lines):
            if "stop" in word:
                self.finish(grace=_GRACE_S)
            if "spares" in word:
                self._spares.keep(word["spares"])
            if "replace" in word:
                self._replace(word["replace"])

    def _replace(self, ranks: list[int]) -> None:
        admission.expect(ranks)
        tell({"joining": {rank: self._spares.put(rank, self._told_ranks) for rank in ranks}})

    def _tell_warm(self) -> None:
        if self._spares.warm != self._warm:
            self._warm = self._spares.warm
            tell({"warm": self._warm})

    def deliver(self, connections: dict[str, dict[str, Any]]) -> None:
        """Hand the controller's addresses and keys to the kernel and, through mpiexec's stdin, to rank 0."""
        self._told_ranks |= connections["engine"]
        tell({"client": connections["client"]})
        if self._mpi.stdin is not None and self._mpi.poll() is None:
            self._mpi.stdin.write(json.dumps(self._told_ranks).encode() + b"\n")
            self._mpi.stdin.flush()

    def finish(self, grace: float) -> None:
        """Leave nothing: processes, folders, then this process itself."""
        with self._finishing:
            if grace:
                self._ask_ranks()
                self._wait_ranks(grace)
            kill_descendants()
            for folder in self._folders:
                shutil.rmtree(folder, ignore_errors=True)
            os._exit(0)

    def _ask_ranks(self) -> None:
        for pid in [*children(self._mpi.pid), *(each.pid for each in self._spares.replacements)]:
            kill(pid, signal.SIGTERM)

    def _wait_ranks(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        left = {each.pidfd for each in self._spares.replacements}
        try:
            self._mpi.wait(seconds)
        except subprocess.TimeoutExpired:
            return
        while left and (wait := deadline - time.monotonic()) > 0:
            left -= set(select.select(left, [], [], wait)[0])


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
    os.environ[HOLDER] = mark(os.getpid())  # of what is started from here on
    admission.expect(range(plan["ranks"]))
    supervisor = Supervisor(plan)
    dump_no_memory()
    _start(supervisor.watch, kernel)
    from hvd_kernel.cluster import controller  # noqa: PLC0415 - mpiexec must not wait for this import

    controller.serve(supervisor.deliver, lambda: supervisor.finish(grace=0.0), plan["address"])
    supervisor.finish(grace=0.0)


_FROM_KERNEL = 0
_TO_KERNEL = 1
if __name__ == "__main__":
    main()
