"""The process that holds the cluster's life: ``python -P -m hvd_kernel.cluster.supervisor``, started by launcher.py.

It starts mpiexec, becomes ipyparallel's controller, and sees to it that nothing outlives the notebook kernel:

    kernel --pidfd, channel--> supervisor --PDEATHSIG--> mpiexec --PDEATHSIG--> ranks
                                |------PDEATHSIG--> spares, and the ranks that were spares

As "child subreaper" it inherits every orphan below it, so that at the end it can kill and wait for all of them,
whatever they forked; then it removes the cluster's private folders. It watches the kernel's process itself (pidfd),
because a PDEATHSIG would follow the kernel's *thread* and an EOF could be held up by any process the kernel forked.

A kept cluster is the exception: when its kernel ends it waits, for the time it was told, for the next one (keeper.py).

The plan (mpiexec's command, folders to remove, address to listen on, number of ranks) is argv[1] as JSON. The messages
of the control channel, at first over stdin and stdout, are in processes/channel/messages.py.
Connection keys travel on this channel only: no file, argument or environment variable ever holds one.
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
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hvd_kernel.cluster import admission, spares
from hvd_kernel.cluster.door import Visitor
from hvd_kernel.cluster.keeper import Keeper
from hvd_kernel.processes.channel import messages as m
from hvd_kernel.processes.channel.control_channel import ControlChannel, is_ready
from hvd_kernel.processes.lifetime import (
    HOLDER,
    children,
    die_with_parent,
    dump_no_memory,
    kill,
    kill_descendants,
    mark,
    take_orphans,
)
from hvd_kernel.processes.resources.limits import LIMIT, LOOK_S, Confinement

_GRACE_S = 1.5  # what ranks get to end by themselves after a stop


class Supervisor:
    """Owns mpiexec and the private folders. The main thread is the controller's, a second one watches the kernel."""

    def __init__(self, plan: dict[str, Any], kernel: Visitor) -> None:
        self._folders = [Path(folder) for folder in plan["folders"]]
        self._told_ranks: dict[str, Any] = {"folder": plan["folders"][0]}
        self._finishing = threading.RLock()  # again by the same thread where it fails
        self._spares = spares.Spares(plan["ranks"])
        self._warm = 0
        self._tenant: Visitor | None = kernel  # who has the cluster
        self._keeper: Keeper | None = None  # of a kept cluster
        self._confined: dict[int, Confinement] = {}  # by process id
        self._client: dict[str, Any] = {}
        self._remembered: dict[str, Any] = {}
        self._do: dict[type[m.Message], Callable[[Any], None]] = {
            m.Stop: lambda stop: self.finish(stop.grace),
            m.SetSpares: lambda wanted: self._spares.keep(wanted.count),
            m.ReplaceRanks: lambda wanted: self._replace(wanted.ranks),
            m.Keep: self._keep,
            m.Remember: self._remember,
            m.LimitRank: self._limit,
            m.ChannelClosed: lambda _: self._left(),
        }
        self._mpi = subprocess.Popen(  # noqa: S603 - the launcher's plan
            plan["mpiexec"],
            stdin=subprocess.PIPE,
            stdout=sys.stderr.fileno(),
            preexec_fn=die_with_parent,  # noqa: PLW1509 - there is still one thread here
        )
        self._mpi_gone: int | None = os.pidfd_open(self._mpi.pid)

    def watch(self) -> None:
        """Do what the kernel says, say when mpiexec ends, and finish with the kernel. Never returns."""
        try:
            while True:
                patience = self._keeper.patience() if self._keeper else None
                if self._confined:
                    patience = LOOK_S if patience is None else min(LOOK_S, patience)
                select.select([*self._descriptors(), *self._spares.descriptors()], [], [], patience)
                self._look()
                self._look_at_limits()
        except BaseException:  # noqa: BLE001 - whatever it is: a cluster that nobody watches must not be
            traceback.print_exc()
            self.finish(grace=0.0)

    def _look(self) -> None:
        """Ask each one what it has: not the numbers that select gave, for what is done here closes and opens others."""
        if self._mpi_gone is not None and is_ready(self._mpi_gone):
            os.close(self._mpi_gone)
            self._mpi_gone = None
            self._tell(m.RankExited(m.MPIEXEC, self._mpi.wait()))
        self._spares.look()
        keeper = self._keeper
        has_knocked = keeper is not None and is_ready(keeper.door.fileno())
        self._listen()  # after the look at the door: whoever has hung up and knocked again has hung up by now
        if keeper is not None and has_knocked:
            self._admit(keeper)
        self._tell_warm()
        if self._tenant is None and self._is_useless():
            self.finish(grace=_GRACE_S)

    def _descriptors(self) -> list[int]:
        found = [] if self._mpi_gone is None else [self._mpi_gone]
        if self._tenant is not None:
            found += [self._tenant.channel.fileno(), self._tenant.gone]
        return found if self._keeper is None else [*found, self._keeper.door.fileno()]

    def _listen(self) -> None:
        tenant = self._tenant
        if tenant is None:
            return
        while self._tenant is tenant and tenant.channel.is_ready:
            for message in tenant.channel.receive():
                if act := self._do.get(type(message)):
                    act(message)
        if self._tenant is tenant and tenant.is_gone:
            self._left()

    def _left(self) -> None:
        """Take note that the kernel is gone, or that it has let go."""
        if self._keeper is None:
            self.finish(grace=0.0)
        elif self._tenant is not None:
            self._tenant.close()
            self._tenant = None
            self._keeper.left()

    def _admit(self, keeper: Keeper) -> None:
        """Let the kernel at the door have the cluster if no other one has it."""
        if self._tenant is not None and self._tenant.is_gone:
            self._left()
        visitor = keeper.admit(self._tenant)
        if visitor is None:
            return
        self._tenant = visitor
        keeper.taken(visitor.pid)
        folders = [str(folder) for folder in self._folders]
        self._tell(m.Attached(self._client, self._remembered, folders, self._warm))

    def _keep(self, wish: m.Keep) -> None:
        """Outlive the kernel from here on."""
        if self._tenant is None:
            return
        try:
            self._keeper = self._keeper or Keeper(self._folders, wish, self._tenant.pid)
        except OSError as error:
            self._tell(m.KeepFailed(str(error)))
        else:
            self._tell(m.Kept(self._keeper.name))

    def _remember(self, what: m.Remember) -> None:
        self._remembered = what.state

    def _limit(self, of: m.LimitRank) -> None:
        """Keep a rank to its limits from here on."""
        confined = Confinement(of.slot, of.limits, children)
        confined.take(of.pid)
        if confined.looks:
            self._confined[of.pid] = confined

    def _look_at_limits(self) -> None:
        """Kill the ranks that have passed their memory limit; the file says so to whoever asks why (witness.py)."""
        for pid, confined in [*self._confined.items()]:
            if not Path(f"/proc/{pid}").exists():
                del self._confined[pid]
            elif why := confined.passed(pid):
                (self._folders[0] / f"{LIMIT}.{pid}").write_text(why)
                kill(pid, signal.SIGKILL)
                del self._confined[pid]

    def _is_useless(self) -> bool:
        """Whether nobody can come back to it any more, or nobody has for too long."""
        has_ranks = self._mpi_gone is not None or any(self._spares.replacements)
        return not has_ranks or self._keeper is None or self._keeper.patience() == 0.0

    def _replace(self, ranks: list[int]) -> None:
        admission.expect(ranks)
        self._tell(m.RanksJoining({rank: self._spares.put(rank, self._told_ranks) for rank in ranks}))

    def _tell_warm(self) -> None:
        if self._spares.warm != self._warm:
            self._warm = self._spares.warm
            self._tell(m.SparesReady(self._warm))

    def _tell(self, message: m.Message) -> None:
        if self._tenant is not None:
            self._tenant.channel.send(message)

    def deliver(self, connections: dict[str, dict[str, Any]]) -> None:
        """Hand the controller's addresses and keys to the kernel and, through mpiexec's stdin, to rank 0."""
        self._told_ranks |= connections["engine"]
        self._client = connections["client"]
        self._tell(m.Connected(self._client))
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


def _channel_to_kernel() -> ControlChannel:
    """Take stdin and stdout for it, and leave none to whatever else reads or prints here."""
    incoming, outgoing = open(os.dup(0), "rb", 0), open(os.dup(1), "wb", 0)  # noqa: PTH123, SIM115 - descriptors
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    os.close(nothing)
    return ControlChannel(incoming, outgoing, is_agent=True)


def main() -> None:
    """Run until the kernel ends or says stop."""
    take_orphans()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    kernel = Visitor(_channel_to_kernel(), os.getppid())
    plan = json.loads(sys.argv[1])
    os.environ[HOLDER] = mark(os.getpid())  # of what is started from here on
    admission.expect(range(plan["ranks"]))
    supervisor = Supervisor(plan, kernel)
    dump_no_memory()
    threading.Thread(target=supervisor.watch, name="hvd-life", daemon=True).start()
    from hvd_kernel.cluster import controller  # noqa: PLC0415 - mpiexec must not wait for this import

    controller.serve(supervisor.deliver, lambda: supervisor.finish(grace=0.0), plan["address"])
    supervisor.finish(grace=0.0)


if __name__ == "__main__":
    main()
