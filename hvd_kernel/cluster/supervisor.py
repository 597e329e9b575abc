"""Supervisor of a notebook's cluster: ``python -P -m hvd_kernel.cluster.supervisor``, started by launcher.py.

It starts mpiexec, becomes ipyparallel's controller, and sees to it that nothing outlives the notebook kernel:

    kernel --pidfd, control channel--> supervisor --PDEATHSIG--> mpiexec --PDEATHSIG--> ranks
                                           |---------PDEATHSIG--> spares, and the ranks that were spares

At the end it removes the cluster's private folders. A detached cluster is the exception: when its kernel ends it waits,
for the time it was told, for the next one (detachment.py).

The plan (mpiexec's command, folders to remove, address to listen on, number of ranks) is argv[1] as JSON; the messages
of the channel, at first over stdin and stdout, are in processes/messages.py. Connection keys travel on this channel
only: no file, argument or environment variable ever holds one.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from hvd_kernel.cluster import registration
from hvd_kernel.cluster.detachment import Detachment
from hvd_kernel.cluster.spares import Spares
from hvd_kernel.processes import lifetime
from hvd_kernel.processes.channel import attachment
from hvd_kernel.processes.channel import messages as m
from hvd_kernel.processes.channel.attachment import Controller
from hvd_kernel.processes.channel.control_channel import ControlChannel, pack
from hvd_kernel.processes.child_process import ChildProcess
from hvd_kernel.processes.resources.limits import LIMIT, Confinement
from hvd_kernel.processes.supervise import ProcessSupervisor

_TURN_S = 0.001  # before the next replacement starts: a timer that is due at once would run in the same turn
_GRACE_S = 1.5  # what ranks get to end by themselves where no kernel is left


class ControllerHost(ProcessSupervisor):
    """Owns the private folders. The main thread is ipyparallel's controller, a second one serves."""

    def __init__(self, plan: dict[str, Any], kernel: Controller) -> None:
        super().__init__(kernel, map(Path, plan["folders"]))
        self.key = secrets.token_hex(32)  # of the controller's messages

    def run(self) -> None:
        """Serve, and end this process."""
        try:
            self.serve()
        except BaseException:  # noqa: BLE001 - whatever it is: a cluster that nobody watches must not be
            traceback.print_exc()
        finally:
            os._exit(0)

    def deliver(self, connections: dict[str, dict[str, Any]]) -> None:
        """Hand the controller's addresses and keys to who needs them. Any thread."""
        self.loop.call_soon_threadsafe(partial(self.connected, connections["client"], connections["engine"]))

    def connected(self, client: dict[str, Any], engine: dict[str, Any]) -> None:
        """Tell the kernel and the ranks where the controller is."""
        raise NotImplementedError

    def finish(self) -> None:
        """End all of it. Any thread, and signal handlers."""
        self.loop.call_soon_threadsafe(self.loop.stop)

    def kill(self) -> None:
        """End all of it."""
        self.loop.stop()


class Supervisor(ControllerHost):
    """Owns mpiexec."""

    def __init__(self, plan: dict[str, Any], kernel: Controller) -> None:
        super().__init__(plan, kernel)
        self.handlers |= {
            m.SetSpares: self._set_spares,
            m.ReplaceRanks: self._replace,
            m.Resized: self._renumber,
            m.LimitRank: self._limit,
            m.Remember: self._remember,
            m.Detach: self._detach,
        }
        self._engine: dict[str, Any] = {"folder": plan["folders"][0]}  # what a rank has to know
        self._client: dict[str, Any] = {}
        self._remembered: dict[str, Any] = {}
        self._detachment: Detachment | None = None
        self._spares = Spares(self, plan["ranks"], lambda ready: self.send(m.SparesReady(ready)))
        self._to_start: list[int] = []  # ranks that wait for their replacements
        self._mps_ranks = plan.get("mps_ranks", 0)  # of this host; 0: ranks of other hosts may be among them
        self._find_mps()
        self._mpiexec = ChildProcess(plan["mpiexec"], stdin=subprocess.PIPE, stdout=sys.stderr.fileno())
        self.hold(self._mpiexec, lambda status: self.send(m.RankExited(m.MPIEXEC, status)))

    def connected(self, client: dict[str, Any], engine: dict[str, Any]) -> None:
        """Tell the kernel and, over mpiexec's stdin, rank 0 where the controller is."""
        self._client = client
        self._engine |= engine
        self.send(m.Connected(client))
        self.give(self._mpiexec, pack(m.EngineConnection(self._engine)))

    # The end.

    def terminate(self) -> None:
        """Ask the ranks to end."""
        for pid in [*lifetime.children(self._mpiexec.pid), *(each.pid for each in self._spares.replacements)]:
            lifetime.kill(pid, signal.SIGTERM)

    def on_progress(self) -> None:
        """End when the ranks have, where they shall; and where nobody can come back to a cluster without any."""
        if not self._mpiexec.has_ended or self._spares.replacements:
            return
        if self.is_stopping or self.controller is None:
            self.loop.stop()

    def lose_controller(self) -> None:
        """End with the kernel, or wait for the next one."""
        if self._detachment is None:
            self.loop.stop()
        elif self.controller is not None:
            self.release_controller()
            self._detachment.released()
            self.on_progress()

    # Detached clusters.

    def _detach(self, wish: m.Detach) -> None:
        assert self.controller is not None
        expire = partial(self.stop, _GRACE_S)
        try:
            if self._detachment is None:
                self._detachment = Detachment(self.folders, wish, self.controller.pid, self.loop, expire)
                self.loop.add_reader(self._detachment.listening.fileno(), self._accept)
        except OSError as error:
            self.send(m.DetachFailed(str(error)))
        else:
            self.send(m.Detached(self._detachment.name))

    def _accept(self) -> None:
        """Let a kernel that has connected have the cluster if no other one has it."""
        while self.controller is not None and self.controller.channel.is_ready:  # who has come may have just left
            self.receive()
        if self.controller is not None and self.controller.is_gone:
            self.lose_controller()
        assert self._detachment is not None
        kernel = attachment.accept(self._detachment.listening)
        if kernel is None:
            return
        if self.controller is not None:
            kernel.channel.send(m.Refused(self.controller.pid))
            kernel.close()
            return
        self.take_controller(kernel)
        self._detachment.attached(kernel.pid)
        self.send(m.Attached(self._client, self._remembered, [*map(str, self.folders)], self._spares.ready))

    def _remember(self, what: m.Remember) -> None:
        self._remembered = what.state

    # Ranks.

    def _set_spares(self, wanted: m.SetSpares) -> None:
        self._spares.keep(wanted.count)

    def _replace(self, wanted: m.ReplaceRanks) -> None:
        registration.expect(wanted.ranks)
        self._find_mps()
        self._to_start = [rank for rank in self._to_start if rank not in wanted.ranks] + wanted.ranks
        self._start_next()

    def _start_next(self) -> None:
        """Start one replacement per turn of the loop, which sees the kernel's end and its messages in between."""
        if not self._to_start or self.is_stopping:
            return
        rank = self._to_start.pop(0)
        self.send(m.RanksJoining({rank: self._spares.put(rank, self._engine)}))
        self.loop.call_later(_TURN_S, self._start_next)

    def _find_mps(self) -> None:
        """Have ranks that are started from here on find the private MPS daemon, where they have one."""
        if self._mps_ranks:
            os.environ.update(self.mps.variables(self._mps_ranks, os.environ))

    def _renumber(self, resized: m.Resized) -> None:
        registration.expect_nobody()
        self._to_start.clear()
        self._spares.renumber(resized.n, resized.numbers)
        if self._detachment is not None:
            self._detachment.resize(resized.n)

    def _limit(self, of: m.LimitRank) -> None:
        confined = Confinement(of.slot, of.limits, lifetime.children)
        confined.take(of.pid)
        self.limit(of.pid, confined, partial(self._on_passed, of.pid))

    def _on_passed(self, pid: int, why: str) -> None:
        (self.folders[0] / f"{LIMIT}.{pid}").write_text(why)  # for whoever asks why it died (diagnosis/recorder.py)
        lifetime.kill(pid, signal.SIGKILL)


def _channel_to_kernel() -> ControlChannel:
    """Take stdin and stdout for it, and leave none to whatever else reads or prints here."""
    incoming, outgoing = open(os.dup(0), "rb", 0), open(os.dup(1), "wb", 0)  # noqa: PTH123, SIM115 - descriptors
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    os.close(nothing)
    return ControlChannel(incoming, outgoing, is_agent=True)


def host(make: Callable[[dict[str, Any], Controller], ControllerHost]) -> None:
    """Run until the kernel ends or says stop."""
    lifetime.take_orphans()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    kernel = Controller(_channel_to_kernel(), os.getppid())
    plan = json.loads(sys.argv[1])
    os.environ[lifetime.HOLDER] = lifetime.mark(os.getpid())  # of what is started from here on
    registration.expect(range(plan["ranks"]))
    supervisor = make(plan, kernel)
    lifetime.dump_no_memory()
    serving = threading.Thread(target=supervisor.run, name="hvd-life", daemon=True)
    serving.start()
    try:
        from hvd_kernel.cluster import controller  # noqa: PLC0415 - mpiexec must not wait for this import

        controller.serve(supervisor.deliver, supervisor.finish, plan["address"] or controller.LOOPBACK, supervisor.key)
    finally:
        supervisor.finish()
        serving.join()


if __name__ == "__main__":
    host(Supervisor)
