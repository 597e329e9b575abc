"""A cluster's engine for tests, in the place of Spark and Ray: it starts plain processes."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Sequence

from hvd_kernel.launch.launchers.cluster_engine import Invitation

ACCEPT = "import pickle, sys; pickle.load(sys.stdin.buffer).accept(int(sys.argv[1]))"


class Processes:
    """An engine: one process for each host that is named, in this order of indices."""

    name = "Pretend"
    hidden = ("ENGINE_TOKEN",)

    def __init__(self, hosts: Sequence[str], addresses: Sequence[str] = (), brings: int | None = None) -> None:
        self.addresses = addresses
        self.processes: list[subprocess.Popen[bytes]] = []
        self._hosts, self._brings = hosts, brings

    def work(self, invitation: Invitation) -> None:
        for index in range(len(self._hosts[: self._brings])):
            self.start(invitation, index)
        if self._brings is not None:
            raise ValueError("no room")
        for process in self.processes:
            process.wait()

    def start(self, invitation: Invitation, index: int) -> subprocess.Popen[bytes]:
        host = self._hosts[index]
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", ACCEPT, str(index)],
            stdin=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={name: value for name, value in os.environ.items() if name != "DRIVERS_OWN"}
            | {"HVD_HOST": host, "INDEX": str(index), "ENGINE_TOKEN": "1"},
        )
        assert process.stdin is not None
        pickle.dump(invitation, process.stdin)
        process.stdin.close()
        self.processes.append(process)
        return process

    def cancel(self) -> None:
        for process in self.processes:
            process.kill()

    def explain(self, error: BaseException) -> str:
        return f"{error}, make some"

    def shortage(self) -> str:
        return "It has 1 slot."
