"""Launch of a cluster whose ranks an engine (Ray, Spark, Kubernetes) starts.

The supervisor starts here; the engine then starts one process per rank, whose agent connects back to the supervisor.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, Protocol

from hvd_kernel.cluster.launcher import environment
from hvd_kernel.cluster.supervised import LOG, Supervised
from hvd_kernel.errors import ClusterError
from hvd_kernel.processes import leftovers
from hvd_kernel.processes.channel import messages
from hvd_kernel.processes.channel.control_channel import spawn
from hvd_kernel.processes.cluster_spec import ClusterSpec
from hvd_kernel.processes.lifetime import claim
from hvd_kernel.processes.private_dir import private_folder
from hvd_kernel.settings import gpus


class RankSource(Protocol):
    """One use of an engine, for one cluster (implemented by launch/launchers/cluster_engine.py:NotebookEngine)."""

    name: str
    """Name of the engine in messages."""

    addresses: Sequence[str]
    """Addresses of this host that the engine's processes may reach; empty if all of them run on this host."""

    def begin(self, address: str, secret: str, on_end: Callable[[str], None]) -> None:
        """Start one process per rank; each connects back to ``address``.

        ``on_end(reason)`` runs when no more processes will be started.
        """

    def shortage(self) -> str:
        """Return a sentence on the resources that the engine has for the ranks now; empty if it reports none."""

    def end(self, *, at_once: bool) -> None:
        """Stop all processes; ``at_once``: do not wait for requested ranks that have not started."""


class EngineLaunched(Supervised):
    """The supervisor that this kernel has started, and the engine that starts the ranks."""

    def __init__(self, spec: ClusterSpec, engine: RankSource) -> None:
        self._engine, self._is_up = engine, False
        plan = {
            "address": _own_address(engine.name, engine.addresses),
            "ranks": spec.n,
            "engine": engine.name,
            "env": {gpus.CHOICE: gpus.checked(spec.gpus or os.environ.get(gpus.CHOICE, "") or "auto")},
        }
        leftovers.sweep()
        with ExitStack() as undo:  # KeyboardInterrupt may arrive anywhere in this block
            folder = private_folder()
            undo.callback(shutil.rmtree, folder, ignore_errors=True)
            claim(folder)
            argument = json.dumps(plan | {"folders": [str(folder)]})
            command = [sys.executable, "-P", "-m", "hvd_kernel.cluster.engine_supervisor", argument]
            with os.fdopen(os.open(folder / LOG, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as log:
                self._process, channel = spawn(command, stderr=log, env=environment(folder))
            undo.pop_all()
        super().__init__(channel, self._process.pid, folder, folder)

    def invite(self, invitation: messages.Inviting) -> None:
        """Tell the engine to start its processes."""
        begin = self._engine.begin
        begin(invitation.address, invitation.secret, lambda reason: self.send(messages.EngineEnded(reason)))

    def on_ready(self, _ask: Callable[..., Any]) -> None:
        """Record that all ranks have started."""
        self._is_up = True

    def explain(self, reason: str) -> str:
        """Append the engine's shortage to the reason why ranks did not start."""
        return f"{reason} {self._engine.shortage()}".rstrip()

    def stop(self) -> None:
        """Stop all processes and remove all files. Idempotent."""
        super().stop()  # calls leave()
        self._process.poll()

    def leave(self) -> None:
        """Close the channel, which stops the cluster. Idempotent."""
        super().leave()
        self._engine.end(at_once=not self._is_up)


def _own_address(engine: str, addresses: Sequence[str]) -> str:
    """Return the first of the addresses that belongs to this host; "" if the engine's processes run on this host.

    Raises
    ------
    ClusterError
        If none of the addresses belongs to this host.
    """
    for address in addresses:
        with socket.socket() as probe:
            try:
                resolved = socket.gethostbyname(address)
                probe.bind((resolved, 0))
            except OSError:
                continue
            return resolved
    if addresses:
        listed = ", ".join(addresses)
        raise ClusterError(f"{engine} reaches this notebook at {listed}, which is no address of this host's")
    return ""
