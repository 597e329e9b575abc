"""Supervisor of a notebook's cluster: ``python -P -m hvd_kernel.cluster.supervisor``, started by launcher.py.

It starts mpiexec, becomes ipyparallel's controller, and ensures that no process outlives the notebook kernel:

    kernel --pidfd, control channel--> supervisor --PDEATHSIG--> mpiexec --PDEATHSIG--> ranks
                                           |---------PDEATHSIG--> spares, and the ranks that were spares

At the end it removes the cluster's private folders. A detached cluster is the exception: when its kernel exits, it
waits for the next one for a limited time (``Detachment``).

The plan (mpiexec's command, folders to remove, address to listen on, number of ranks) is argv[1] as JSON; the messages
of the channel, at first over stdin and stdout, are in processes/channel/messages.py. Connection keys are sent only on
this channel: no file, argument or environment variable ever holds one.

Terms.
  spare        a process that has imported the modules of a rank ("ready"), or does so in idle time; it has no rank yet
  replacement  a spare that was assigned a rank; it registers as that rank, and exits with the supervisor like a spare
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from hvd_kernel.cluster import registration
from hvd_kernel.processes import detached, lifetime
from hvd_kernel.processes.channel import attachment
from hvd_kernel.processes.channel import messages as m
from hvd_kernel.processes.channel.attachment import Controller
from hvd_kernel.processes.channel.control_channel import ControlChannel, pack
from hvd_kernel.processes.channel.messages import Detach, Introduce
from hvd_kernel.processes.child_process import ChildProcess
from hvd_kernel.processes.event_loop import EventLoop, Timer
from hvd_kernel.processes.lifetime import claim
from hvd_kernel.processes.limits import LIMIT, Confinement
from hvd_kernel.processes.spares import Spare, has_room
from hvd_kernel.processes.supervise import ProcessSupervisor


class Spares:
    """The spares and replacements of a cluster. ``on_ready`` is called with the number of ready spares on a change."""

    def __init__(self, supervisor: ProcessSupervisor, ranks: int, on_ready: Callable[[int], None]) -> None:
        self._supervisor, self._ranks, self._on_ready = supervisor, ranks, on_ready
        self._waiting: list[Spare] = []
        self._replacing: dict[int, Spare] = {}

    @property
    def replacements(self) -> list[ChildProcess]:
        """The ranks that were spares."""
        return [spare.process for spare in self._replacing.values()]

    @property
    def ready(self) -> int:
        """Number of spares that could start at once."""
        return sum(spare.is_ready for spare in self._waiting)

    def keep(self, count: int) -> None:
        """Start spares up to ``count``, as far as memory allows."""
        while len(self._waiting) < count and has_room():
            spare = self._start("spare")
            self._waiting.append(spare)
            self._supervisor.loop.add_reader(spare.channel.fileno(), partial(self._receive, spare))

    def put(self, rank: int, connection: dict[str, Any]) -> int:
        """Assign a rank to a ready spare, or to a new process; return its process id."""
        if rank in self._replacing:  # an earlier replacement that has not registered
            before = self._replacing.pop(rank)
            self._supervisor.end(before.process)
            before.channel.close()
        spare = next((waiting for waiting in self._waiting if waiting.is_ready), None)
        if spare is None:
            spare = self._start("now")
        else:
            self._waiting.remove(spare)
            self._on_ready(self.ready)
        self._replacing[rank] = spare
        spare.send(Introduce(rank, self._ranks, connection))
        return spare.process.pid

    def renumber(self, ranks: int, numbers: Mapping[int, int]) -> None:
        """Set the number of ranks, renumber surviving replacements (old -> new), and stop all others."""
        self._ranks = ranks
        before, self._replacing = self._replacing, {}
        for rank, spare in before.items():
            if rank in numbers:
                self._replacing[numbers[rank]] = spare
            else:
                self._supervisor.end(spare.process)
                spare.channel.close()

    def _start(self, haste: str) -> Spare:
        command = [sys.executable, "-P", "-m", "hvd_kernel.worker", haste, str(self._ranks)]
        stdout = sys.stderr.fileno()
        spare = Spare(lambda stdin: ChildProcess(command, stdin=stdin, stdout=stdout, ties_itself=True))
        self._supervisor.hold(spare.process, lambda _status: self._remove(spare))
        return spare

    def _receive(self, spare: Spare) -> None:
        if not spare.poll():
            return
        self._supervisor.loop.remove_reader(spare.channel.fileno())
        self._on_ready(self.ready)

    def _remove(self, spare: Spare) -> None:
        self._supervisor.loop.remove_reader(spare.channel.fileno())
        spare.channel.close()
        if spare in self._waiting:
            self._waiting.remove(spare)
            self._on_ready(self.ready)
        self._replacing = {rank: other for rank, other in self._replacing.items() if other is not spare}


_TURN_S = 0.001  # before the next replacement starts: a timer that is due at once would run in the same iteration
_GRACE_S = 1.5  # for ranks to exit after SIGTERM when no kernel has adopted them in time


class ControllerHost(ProcessSupervisor):
    """Owns the private folders. The main thread is ipyparallel's controller, a second one serves."""

    def __init__(self, plan: dict[str, Any], kernel: Controller) -> None:
        super().__init__(kernel, map(Path, plan["folders"]))
        self.key = secrets.token_hex(32)  # of the controller's messages

    def run(self) -> None:
        """Serve, then exit this process."""
        try:
            self.serve()
        except BaseException:  # noqa: BLE001 - the process exits on any error: a cluster must not run unsupervised
            traceback.print_exc()
        finally:
            os._exit(0)

    def deliver(self, connections: dict[str, dict[str, Any]]) -> None:
        """Pass the controller's addresses and keys to the kernel and the ranks. Any thread."""
        self.loop.call_soon_threadsafe(partial(self.connected, connections["client"], connections["engine"]))

    def connected(self, client: dict[str, Any], engine: dict[str, Any]) -> None:
        """Send the controller's connection information to the kernel and to the ranks."""
        raise NotImplementedError

    def finish(self) -> None:
        """Stop the loop, which ends this process. Any thread, and signal handlers."""
        self.loop.call_soon_threadsafe(self.loop.stop)

    def kill(self) -> None:
        """Stop the loop, which ends this process. The loop's thread."""
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
        self._engine: dict[str, Any] = {"folder": plan["folders"][0]}  # connection information for ranks
        self._client: dict[str, Any] = {}
        self._remembered: dict[str, Any] = {}
        self._detachment: Detachment | None = None
        self._spares = Spares(self, plan["ranks"], lambda ready: self.send(m.SparesReady(ready)))
        self._to_start: list[int] = []  # ranks that wait for their replacements
        self._mps_ranks = plan.get("mps_ranks", 0)  # of this host; 0 if ranks may run on other hosts
        self._find_mps()
        self._mpiexec = ChildProcess(plan["mpiexec"], stdin=subprocess.PIPE, stdout=sys.stderr.fileno())
        self.hold(self._mpiexec, lambda status: self.send(m.RankExited(m.MPIEXEC, status)))

    def connected(self, client: dict[str, Any], engine: dict[str, Any]) -> None:
        """Send the connection information to the kernel and, over mpiexec's stdin, to rank 0."""
        self._client = client
        self._engine |= engine
        self.send(m.Connected(client))
        self.write(self._mpiexec, pack(m.EngineConnection(self._engine)))

    # Shutdown.

    def terminate(self) -> None:
        """Terminate the ranks."""
        for pid in [*lifetime.children(self._mpiexec.pid), *(spare.pid for spare in self._spares.replacements)]:
            lifetime.kill(pid, signal.SIGTERM)

    def on_progress(self) -> None:
        """Exit once all ranks have exited, if the cluster is being stopped or no kernel is attached."""
        if not self._mpiexec.has_ended or self._spares.replacements:
            return
        if self.is_stopping or self.controller is None:
            self.loop.stop()

    def lose_controller(self) -> None:
        """Exit with the kernel, or, if the cluster is detached, wait for the next kernel."""
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
        """Admit a kernel that has connected, unless another kernel uses the cluster."""
        while self.controller is not None and self.controller.channel.is_ready:  # that kernel may have just left
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
        self.adopt_controller(kernel)
        self._detachment.attached(kernel.pid)
        self.send(m.Attached(self._client, self._remembered, [*map(str, self.folders)], self._spares.ready))

    def _remember(self, message: m.Remember) -> None:
        self._remembered = message.state

    # Ranks.

    def _set_spares(self, request: m.SetSpares) -> None:
        self._spares.keep(request.count)

    def _replace(self, request: m.ReplaceRanks) -> None:
        registration.expect(request.ranks)
        self._find_mps()
        self._to_start = [rank for rank in self._to_start if rank not in request.ranks] + request.ranks
        self._start_next()

    def _start_next(self) -> None:
        """Start one replacement per iteration of the loop, which handles the kernel's exit and messages in between."""
        if not self._to_start or self.is_stopping:
            return
        rank = self._to_start.pop(0)
        self.send(m.RanksJoining({rank: self._spares.put(rank, self._engine)}))
        self.loop.call_later(_TURN_S, self._start_next)

    def _find_mps(self) -> None:
        """Set the variables by which ranks started from now on find the private MPS daemon, if there is one."""
        if self._mps_ranks:
            os.environ.update(self.mps.variables(self._mps_ranks, os.environ))

    def _renumber(self, resized: m.Resized) -> None:
        registration.expect_none()
        self._to_start.clear()
        self._spares.renumber(resized.n, resized.numbers)
        if self._detachment is not None:
            self._detachment.resize(resized.n)

    def _limit(self, request: m.LimitRank) -> None:
        confinement = Confinement(request.slot, request.limits, lifetime.children)
        confinement.add(request.pid)
        self.limit(request.pid, confinement, partial(self._on_exceeded, request.pid))

    def _on_exceeded(self, pid: int, reason: str) -> None:
        (self.folders[0] / f"{LIMIT}.{pid}").write_text(reason)  # read by diagnosis/recorder.py
        lifetime.kill(pid, signal.SIGKILL)


_HOUR_S = 3600.0


class Detachment:
    """Detached state of a cluster: the socket for the next kernel, the note next to it, the time limit.

    For the supervisor's thread. ``on_expired`` is called when no kernel has attached within the time limit.
    """

    def __init__(
        self, folders: list[Path], wish: Detach, kernel: int, loop: EventLoop, on_expired: Callable[[], None]
    ) -> None:
        self._folder, self._loop, self._on_expired = folders[0], loop, on_expired
        self._note = detached.DetachedNote(**msgspec.structs.asdict(wish), kernel=kernel, since=time.time())
        self._clock: Timer | None = None  # set while no kernel is attached
        claim(*folders)  # from now on the supervisor owns them instead of a kernel
        self.listening = attachment.listen(self._folder)
        detached.write(self._folder, self._note)

    @property
    def name(self) -> str:
        """The cluster's name."""
        return self._note.name

    def attached(self, kernel: int) -> None:
        """Record the kernel that uses the cluster, and stop the clock."""
        if self._clock is not None:
            self._clock.cancel()
        self._write(kernel)

    def released(self) -> None:
        """Record that no kernel uses the cluster, and start the clock."""
        self._clock = self._loop.call_later(self._note.hours * _HOUR_S, self._on_expired)
        self._write(0)

    def resize(self, n: int) -> None:
        """Record the new number of ranks."""
        self._note = replace(self._note, n=n)
        self._write(self._note.kernel)

    def _write(self, kernel: int) -> None:
        self._note = replace(self._note, kernel=kernel, since=time.time())
        try:
            detached.write(self._folder, self._note)
        except OSError:  # a full disk: the note is outdated, but the cluster works
            return


def _channel_to_kernel() -> ControlChannel:
    """Return the channel over stdin and stdout, and replace both by /dev/null for all other code in this process."""
    incoming, outgoing = open(os.dup(0), "rb", 0), open(os.dup(1), "wb", 0)  # noqa: PTH123, SIM115 - descriptors
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    os.close(nothing)
    return ControlChannel(incoming, outgoing, is_agent=True)


def host(make: Callable[[dict[str, Any], Controller], ControllerHost]) -> None:
    """Run until the kernel exits or requests the stop."""
    lifetime.adopt_orphans()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    kernel = Controller(_channel_to_kernel(), os.getppid())
    plan = json.loads(sys.argv[1])
    os.environ[lifetime.HOLDER] = lifetime.mark(os.getpid())  # for processes started from now on
    registration.expect(range(plan["ranks"]))
    supervisor = make(plan, kernel)
    lifetime.exclude_memory_from_cores()
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
