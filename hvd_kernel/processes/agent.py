"""The process on each host that holds that host's ranks: ``python -P -m hvd_kernel.processes.agent``.

    hvdrun --pipe, or ssh--> agent --PDEATHSIG--> ranks

It says hello (how this host can be reached, and at which free port), takes a plan, starts its ranks, and carries their
output up and rank 0's input down (messages.py). The end of the channel is the end of the launcher: it kills at once. As
"child subreaper" it inherits every orphan below it, so that nothing is left, whatever the ranks forked. Variables,
secrets among them, come in the plan: no command line ever holds one.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import hvd_kernel
from hvd_kernel.errors import ConfigError
from hvd_kernel.processes.channel import messages as m
from hvd_kernel.processes.channel.control_channel import CHUNK, ControlChannel
from hvd_kernel.processes.lifetime import kill_descendants, take_orphans
from hvd_kernel.processes.rank_process import Rank
from hvd_kernel.processes.resources import limits
from hvd_kernel.settings import gpus
from hvd_kernel.settings.launchers import without_launchers
from hvd_kernel.settings.network import machine, networks

_PIPE = 1 << 20  # bytes that a pipe can hold
_ROOM = 1 << 20  # bytes that wait for the launcher before the ranks have to
_DISMISSED_S = 0.5  # until ranks are killed: whoever ends this process kills it a second later
_NEVER = float("inf")
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class Agent:
    """The loop. ``incoming``, ``outgoing``: descriptors of the channel; ``stays``: until the launcher hangs up."""

    def __init__(self, card: dict[str, Any], incoming: int = 0, outgoing: int = 1, *, stays: bool = False) -> None:
        self._card, self._incoming, self._outgoing, self._stays = card, incoming, outgoing, stays
        self._channel = ControlChannel(open(incoming, "rb", 0), open(outgoing, "wb", 0), is_agent=True)  # noqa: SIM115 - descriptors, for good
        self._do: dict[type[m.Message], Callable[[Any], None]] = {
            m.StartRanks: self._start,
            m.Input: self._give,
            m.Stop: lambda stop: self._stop(stop.grace),
            m.Flush: lambda _: self._flush(),
        }
        self._ranks: dict[int, Rank] = {}
        self._folders: list[str] = []
        self._deadline: float | None = None  # when what still runs is killed
        self._look_due = _NEVER  # at the ranks' memory
        self._started = False
        self._parent = os.pidfd_open(os.getppid())
        self._bell = os.eventfd(0)

    def serve(self) -> None:
        """Run until every rank has ended and the launcher knows, or the launcher is gone."""
        os.set_blocking(self._outgoing, False)
        self._channel.post(m.Hello(self._card))
        while self._stays or self._channel.unsent or not self._is_done:
            if not self._turn():
                return

    @property
    def _is_done(self) -> bool:
        return self._started and all(rank.ended for rank in self._ranks.values())

    def dismiss(self) -> None:
        """Have the ranks ended at the word of whoever started this process; safe in a signal's handler."""
        os.eventfd_write(self._bell, 1)

    def close(self) -> None:
        """Leave nothing: processes, then last words, then folders."""
        kill_descendants()
        for rank in self._ranks.values():
            self._drain(rank)
        os.set_blocking(self._outgoing, True)
        while self._channel.unsent:
            self._channel.flush()
        for folder in self._folders:
            shutil.rmtree(folder, ignore_errors=True)

    # One turn.

    def _turn(self) -> bool:
        """Wait for something and do it. False: the launcher is gone."""
        ready = self._wait()
        if self._parent in ready:
            return False
        if self._bell in ready:
            os.eventfd_read(self._bell)
            self._channel.post(m.Terminated())
            self._stop(_DISMISSED_S)
        if self._outgoing in ready:
            self._channel.flush()
        if self._incoming in ready:
            self._receive()
        if self._channel.closed:
            return False
        for rank in self._ranks.values():
            self._attend(rank, ready)
        if self._deadline is not None and time.monotonic() >= self._deadline:
            self._deadline = None
            self._signal(signal.SIGKILL)
        self._look_at_limits()
        return True

    def _look_at_limits(self) -> None:
        """Kill the ranks that have passed theirs, where no cgroup does it."""
        if time.monotonic() < self._look_due:
            return
        looking = [rank for rank in self._ranks.values() if rank.confined.looks and not rank.ended]
        for rank in looking:
            if why := rank.confined.passed(rank.process.pid):
                self._channel.post(m.RankKilled(rank.number, why))
                rank.signal(signal.SIGKILL)
        self._look_due = time.monotonic() + limits.LOOK_S if looking else _NEVER

    def _wait(self) -> set[int]:
        poll = select.poll()
        poll.register(self._incoming, select.POLLIN)
        poll.register(self._parent, select.POLLIN)
        poll.register(self._bell, select.POLLIN)
        if self._channel.unsent:
            poll.register(self._outgoing, select.POLLOUT)
        for rank in self._ranks.values():
            if not rank.ended:
                poll.register(rank.life, select.POLLIN)
            if rank.hungry:
                poll.register(rank.input, select.POLLOUT)
            for fd in rank.streams if self._channel.unsent < _ROOM else ():
                poll.register(fd, select.POLLIN)
        due = min(self._look_due, _NEVER if self._deadline is None else self._deadline)
        left = None if due == _NEVER else max(0.0, due - time.monotonic()) * 1000 + 1
        return {fd for fd, _ in poll.poll(left)}

    def _attend(self, rank: Rank, ready: set[int]) -> None:
        for fd in [fd for fd in rank.streams if fd in ready]:
            self._carry(rank, fd)
        if rank.input in ready and rank.feed():
            self._channel.post(m.InputTaken(rank.number))
        if rank.life in ready and not rank.ended:
            status = rank.process.wait()
            rank.ended = True
            self._drain(rank)
            if why := rank.confined.ended():
                self._channel.post(m.RankKilled(rank.number, why))
            self._channel.post(m.RankExited(rank.number, status))

    def _carry(self, rank: Rank, fd: int) -> bool:
        """Pass on what a rank wrote; False: there is nothing now."""
        name = rank.streams[fd]
        data = rank.read(fd)
        if data:
            self._channel.post(m.Output(rank.number, name, data))
        return bool(data)

    def _drain(self, rank: Rank) -> None:
        """Pass on all that is in its pipes; a process that it left behind may keep them open, and go on writing."""
        for fd in list(rank.streams):
            for _ in range(_PIPE // CHUNK):
                if fd not in rank.streams or not self._carry(rank, fd):
                    break

    # The launcher.

    def _receive(self) -> None:
        for message in self._channel.receive():
            if act := self._do.get(type(message)):
                act(message)

    def _give(self, given: m.Input) -> None:
        if given.rank in self._ranks:
            self._ranks[given.rank].give(given.data)

    def _flush(self) -> None:
        for rank in self._ranks.values():
            self._drain(rank)
        self._channel.post(m.Flushed())

    def _start(self, plan: m.StartRanks) -> None:
        self._started = True
        self._folders = plan.folders
        try:
            base = _environment(plan)
        except ConfigError as error:
            self._refuse(str(error).removesuffix("."), plan.ranks[0].rank)
            return
        for one in plan.ranks:
            try:
                env = _fewer_threads(base, one.limits, plan.env) | one.env
                self._ranks[one.rank] = Rank(one, plan, env)
            except OSError as error:
                self._refuse(f"{error.strerror}: {error.filename}{_remedy(plan)}", one.rank)
                return

        self._look_due = 0.0

    def _refuse(self, why: str, rank: int) -> None:
        self._channel.post(m.StartFailed(rank, why))
        self._stop(0.0)

    def _stop(self, grace: float) -> None:
        self._started = True
        self._deadline = time.monotonic() + grace
        if grace > 0:
            self._signal(signal.SIGTERM)
            self._signal(signal.SIGCONT)  # a stopped process takes no other signal

    def _signal(self, number: int) -> None:
        for rank in self._ranks.values():
            if not rank.ended:
                rank.signal(number)


def _remedy(plan: m.StartRanks) -> str:
    """Return what to write instead of a script that is no program; empty where it is none."""
    program = Path(plan.command[0])
    is_script = program.suffix == ".py" and (Path(plan.cwd) / program).is_file()
    return f" (it is a script: did you mean `python {program}`?)" if is_script else ""


def _fewer_threads(env: dict[str, str], kept_to: limits.Limits, chosen: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a rank that may use fewer cores than its part; what the user has chosen stays."""
    most = limits.threads(kept_to)
    names = [name for name in _THREADS if name not in chosen and most is not None and name in env]
    return env | {name: str(min(int(env[name]), most or 1)) for name in names if env[name].isdecimal()}


def _environment(plan: m.StartRanks) -> dict[str, str]:
    """Return what all ranks have: devices, and each its part of the cores, unless the user has decided.

    What is no rank, but starts some, hands the words on (``ranks_on_host`` is 0).

    Raises
    ------
    ConfigError
        Devices were named that are not there.
    """
    cores, beside = len(os.sched_getaffinity(0)), plan.ranks_on_host
    share = dict.fromkeys(_THREADS, str(max(1, cores // beside))) if beside else {}
    own = without_launchers(os.environ) if plan.is_step else os.environ  # srun has told this process that it is a task
    env: dict[str, str] = share | (dict(own) if plan.inherit_env else {}) | plan.env
    if plan.inherit_env and "HVD_HOST" in os.environ:  # this host's own name for itself, not the launcher's
        env["HVD_HOST"] = os.environ["HVD_HOST"]
    if beside:
        gpus.settle(env)
    return env


def hello(port: int) -> dict[str, Any]:
    """Tell how this host can be reached, and what tells it from others."""
    here = machine()
    return {
        "version": hvd_kernel.__version__,
        "machine": here,
        "host": os.environ.get("HVD_HOST") or f"{here}/{os.geteuid()}",
        "port": port,
        "name": socket.gethostname(),
        "networks": networks(),
        "ssh": os.environ.get("SSH_CONNECTION", "").split(),  # client's address and port, ours
    }


def reserve() -> socket.socket:
    """Keep a free port from others while this is open; rank 0 may listen there all the same.

    A socket that is bound with SO_REUSEADDR and does not listen: the kernel gives the port to nobody who asks for any,
    and to everybody who asks for this one in the same way, as the core does.
    """
    keeper = socket.socket()
    keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    keeper.bind(("", 0))
    return keeper


def main() -> None:
    """Serve one launcher."""
    take_orphans()
    signal.signal(signal.SIGINT, lambda *_: None)  # not SIG_IGN, which the ranks would inherit
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))
    with reserve() as keeper:
        agent = Agent(hello(keeper.getsockname()[1]))
        try:
            agent.serve()
        finally:
            agent.close()


if __name__ == "__main__":
    main()
