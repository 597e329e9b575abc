"""Supervisor of a notebook's cluster whose ranks an engine starts: ``python -m`` this, started by engine_launch.py.

    kernel --pidfd, control channel--> supervisor <--sockets-- agents, one for each rank, in the engine's processes

It is ipyparallel's controller, as the supervisor of mpiexec's ranks is (cluster/supervisor.py), and the agents'
launcher. With the kernel it ends, and by its end the agents with their ranks, on whatever host.
"""

from __future__ import annotations

import secrets
from typing import Any

from hvd_kernel.cluster import registration
from hvd_kernel.cluster.by_engine.rank_agents import RankAgents
from hvd_kernel.cluster.supervisor import ControllerHost, host
from hvd_kernel.processes.channel import messages as m
from hvd_kernel.processes.channel.attachment import Controller
from hvd_kernel.processes.channel.authentication import controller_key

_GRACE_S = 1.5  # what ranks get to end by themselves
_KEPT = "{engine} ends them with this kernel, which has asked it for them: leave --keep (and HVD_KEEP) out"


class EngineSupervisor(ControllerHost):
    """Owns the agents' connections and the private folder."""

    def __init__(self, plan: dict[str, Any], kernel: Controller) -> None:
        super().__init__(plan, kernel)
        secret = secrets.token_hex(32)
        self.key = controller_key(secret)
        self._agents = RankAgents(self.loop, secret, plan, self._told)
        self.handlers |= {
            m.ReplaceRanks: self._replace,
            m.StopRank: lambda told: self._agents.end(told.rank, told.grace),
            m.EngineEnded: lambda told: self._agents.engine_ended(told.why),
            m.Detach: lambda _: self.send(m.DetachFailed(_KEPT.format(engine=plan["engine"]))),
        }
        self.send(m.Inviting(self._agents.address, secret))

    def connected(self, client: dict[str, Any], engine: dict[str, Any]) -> None:
        """Tell the kernel and the ranks where the controller is."""
        self.send(m.Connected(client))
        self._agents.connect({"folder": str(self.folders[0]), **engine})

    def terminate(self) -> None:
        """Ask the ranks to end."""
        self._agents.stop(_GRACE_S)

    def on_progress(self) -> None:
        """End when the ranks have, where they shall."""
        if self.is_stopping and not self._agents.running:
            self.loop.stop()

    def close(self) -> None:
        """End everything."""
        self._agents.close()
        super().close()

    def _told(self, message: m.Message) -> None:
        self.send(message)

    def _replace(self, wanted: m.ReplaceRanks) -> None:
        registration.expect(wanted.ranks)
        self.send(m.RanksJoining(dict.fromkeys(wanted.ranks, 0)))  # their processes are known when they speak
        self._agents.replace(wanted.ranks)


if __name__ == "__main__":
    host(EngineSupervisor)
