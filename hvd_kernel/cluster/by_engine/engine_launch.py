"""Launch of a cluster whose ranks an engine starts: the supervisor here, then the engine, whose processes call it."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from hvd_kernel.cluster.by_engine.engine import RankSource
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


class EngineLaunched(Supervised):
    """The supervisor that this kernel has started, and the engine's part of the cluster."""

    def __init__(self, spec: ClusterSpec, engine: RankSource) -> None:
        self._engine, self._is_up = engine, False
        plan = {
            "address": _own_address(engine.name, engine.addresses),
            "ranks": spec.n,
            "engine": engine.name,
            "env": {gpus.CHOICE: gpus.checked(spec.gpus or os.environ.get(gpus.CHOICE, "") or "auto")},
        }
        leftovers.sweep()
        with ExitStack() as undo:  # the key may be pressed anywhere in here
            folder = private_folder()
            undo.callback(shutil.rmtree, folder, ignore_errors=True)
            claim(folder)
            words = json.dumps(plan | {"folders": [str(folder)]})
            command = [sys.executable, "-P", "-m", "hvd_kernel.cluster.by_engine.engine_supervisor", words]
            with os.fdopen(os.open(folder / LOG, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as log:
                self._process, channel = spawn(command, stderr=log, env=environment(folder))
            undo.pop_all()
        super().__init__(channel, self._process.pid, folder, folder)

    def invite(self, invitation: messages.Inviting) -> None:
        """Have the engine begin."""
        self._engine.begin(invitation.address, invitation.secret, lambda why: self.send(messages.EngineEnded(why)))

    def up(self, _ask: Callable[..., Any]) -> None:
        """Take note that every rank is there."""
        self._is_up = True

    def explain(self, why: str) -> str:
        """Add what the engine has for ranks that have not come."""
        return f"{why} {self._engine.shortage()}".rstrip()

    def stop(self) -> None:
        """End everything and leave nothing. Idempotent."""
        super().stop()  # it leaves
        self._process.poll()

    def leave(self) -> None:
        """Hang up, by which the cluster ends. Idempotent."""
        super().leave()
        self._engine.end(at_once=not self._is_up)


def _own_address(engine: str, addresses: Sequence[str]) -> str:
    """Return the first of these that is this host's; "": the engine's processes are on this host.

    Raises
    ------
    ClusterError
        None of them is.
    """
    for address in addresses:
        with socket.socket() as probe:
            try:
                found = socket.gethostbyname(address)
                probe.bind((found, 0))
            except OSError:
                continue
            return found
    if addresses:
        named = ", ".join(addresses)
        raise ClusterError(f"{engine} reaches this notebook at {named}, which is no address of this host's")
    return ""
