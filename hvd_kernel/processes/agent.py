"""The agent of a host, which holds the ranks of that host: ``python -P -m hvd_kernel.processes.agent``.

    hvdrun --pipe, or ssh--> agent --PDEATHSIG--> ranks

It says hello (how this host can be reached, and at which free port), starts the ranks that it is told to, and carries
their output up and rank 0's input down (messages.py). The end of the channel is the end of the launcher: it kills at
once. Variables, secrets among them, come over the channel: no command line ever holds one.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from hvd_kernel.errors import ClusterError, ConfigError
from hvd_kernel.processes.channel import messages as m
from hvd_kernel.processes.channel.attachment import Controller
from hvd_kernel.processes.channel.control_channel import ControlChannel
from hvd_kernel.processes.child_process import ChildProcess
from hvd_kernel.processes.lifetime import adopt_orphans
from hvd_kernel.processes.mps.host_daemon import HostDaemon
from hvd_kernel.processes.ports import bound
from hvd_kernel.processes.private_dir import CALL, answer_file, private_folder, write_private
from hvd_kernel.processes.rank_channel import RankChannels
from hvd_kernel.processes.resources import limits
from hvd_kernel.processes.spares.host_spares import HostSpares
from hvd_kernel.processes.supervise import ProcessSupervisor
from hvd_kernel.settings import gpus
from hvd_kernel.settings.launchers import without_launchers
from hvd_kernel.settings.network import machine, networks
from hvd_kernel.version import __version__

_ROOM = 1 << 20  # bytes that wait for the launcher before the ranks have to
_TERMINATED_S = 0.5  # until ranks are killed: whoever ends this process kills it a second later


class Agent(ProcessSupervisor):
    """Holds ranks for a launcher. ``stays``: until the launcher hangs up, not only until the ranks have ended."""

    def __init__(self, channel: ControlChannel, card: dict[str, Any], *, stays: bool = False) -> None:
        self._stays = stays
        self._ranks: dict[int, ChildProcess] = {}  # those that have not ended
        self._ended: list[tuple[int, ChildProcess]] = []
        self._calls: dict[int, Path] = {}  # the folders of those that carry out a call
        self._has_begun = False
        self._is_paused = False
        super().__init__(Controller(channel, os.getppid()))
        self._host_mps = HostDaemon(self.mps, self.say)
        self._spares = HostSpares(self)
        self._channels = RankChannels(
            self.loop,
            tell=lambda rank, told: self.send(m.RankState(rank, told)),
            relay=lambda rank, said: self.send(m.RankSaid(rank, said)),
            learn=self._spares.learn,
        )
        self.handlers |= {
            m.StartRanks: self._start,
            m.Input: self._give,
            m.Flush: lambda _: self._send_so_far(),
            m.AskRank: self._ask,
            m.TellRank: lambda told: self._channels.pass_on(told.rank, told.data),
            m.SignalRanks: lambda sent: self._signal(sent.number),
            m.StopRank: self._stop_rank,
        }
        self.send(m.Hello(card))

    def forward_signals(self) -> None:
        """Forward signals for the ranks that are sent to this process, as Slurm does to each task of a step."""
        for number in m.FORWARDED:
            signal.signal(number, lambda sent, _: self.loop.call_soon_threadsafe(partial(self._signal, sent)))

    def dismiss_on_signals(self) -> None:
        """Have SIGTERM and SIGHUP dismiss it, SIGINT do nothing: by a handler, as ranks would inherit SIG_IGN."""
        self.forward_signals()
        signal.signal(signal.SIGINT, lambda *_: None)
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda *_: self.dismiss())

    def dismiss(self) -> None:
        """End the ranks because the process that started this one asks for it; safe in a signal's handler."""
        self.loop.call_soon_threadsafe(self._dismissed)

    def _dismissed(self) -> None:
        self.send(m.Terminated())
        self.stop(_TERMINATED_S)

    def on_progress(self) -> None:
        """End when the ranks have ended, and the launcher has been told."""
        unsent = 0 if self.controller is None else self.controller.channel.unsent
        is_over = self._has_begun or self.is_stopping
        if not self._stays and is_over and not self._ranks and not unsent:
            self.loop.stop()

    def on_unsent(self, waiting: int) -> None:
        """Let the ranks wait while the launcher does not keep up."""
        if (waiting >= _ROOM) is not self._is_paused:
            self._is_paused = waiting >= _ROOM
            for rank, child in [*self._ranks.items(), *self._ended]:
                self._read(rank, child)

    def terminate(self) -> None:
        """Ask the ranks to end."""
        for child in self._ranks.values():
            child.terminate()

    def kill(self) -> None:
        """End the ranks."""
        self._spares.close()
        for child in self._ranks.values():
            child.signal(signal.SIGKILL)
        self.on_progress()

    def close(self) -> None:
        """End everything."""
        self._host_mps.close()
        super().close()
        self._channels.close()

    def send_rest(self) -> None:
        """Send what killed ranks have left."""
        for rank, child in [*self._ranks.items(), *self._ended]:
            self._drain(rank, child)

    # Ranks.

    def _start(self, plan: m.StartRanks) -> None:
        self.folders += map(Path, plan.folders)
        self._has_begun = True
        self._stays |= plan.stays
        try:
            base = _environment(plan)
        except ConfigError as error:
            self._refuse(plan.ranks[0].rank, str(error).removesuffix("."))
            return
        base |= self._mps_variables(plan, base)
        self._spares.plan(plan.spares, plan.command, plan.cwd, base)
        for one in plan.ranks:
            try:
                env = _fewer_threads(base, one.limits, plan.env) | one.env | self._channels.variable(one.rank)
                self._start_one(plan, one, env)
            except OSError as error:
                self._refuse(one.rank, f"{error.strerror}: {error.filename}{_remedy(plan)}")
                return
            except ClusterError as error:
                self._refuse(one.rank, str(error).removesuffix("."))
                return

    def _mps_variables(self, plan: m.StartRanks, env: Mapping[str, str]) -> dict[str, str]:
        """Return what ranks find their MPS daemon by."""
        if not plan.mps_ranks:
            return {}
        if plan.mps_run:
            return self._host_mps.variables(plan.mps_run, plan.mps_ranks, env)
        return self.mps.variables(plan.mps_ranks, env)

    def _start_one(self, plan: m.StartRanks, one: m.RankPlan, env: dict[str, str]) -> None:
        command = [*plan.command, *self._call(one.rank, plan.call)]
        is_plain = not (one.reads_stdin or one.limits)
        if is_plain and (spare := self._spares.take(command, env, partial(self._on_end, one.rank))):
            self._ranks[one.rank] = spare
            self._read(one.rank, spare)
            return
        child = ChildProcess(
            command,
            env=env,
            cwd=plan.cwd,
            stdin=subprocess.PIPE if one.reads_stdin else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            slot=one.slot,
            limits=one.limits,
            new_session=True,
        )
        self._ranks[one.rank] = child
        self.hold(child, partial(self._on_end, one.rank))
        self.limit(child.pid, child.limits, partial(self._on_passed, one.rank, child))
        self._read(one.rank, child)

    def _call(self, rank: int, call: bytes) -> list[str]:
        """Return the folder in which a rank finds its call, if there is one."""
        if not call:
            return []
        folder = self._calls[rank] = private_folder()
        self.folders.append(folder)
        write_private(folder / CALL, call)
        return [str(folder)]

    def _send_answer(self, rank: int) -> None:
        """Send what a rank has left."""
        folder = self._calls.pop(rank, None)
        if folder is None:
            return
        answer = answer_file(folder, rank)
        if answer.exists():
            self.send(m.Answered(rank, answer.read_bytes()))
        shutil.rmtree(folder, ignore_errors=True)
        self.folders.remove(folder)

    def _refuse(self, rank: int, why: str) -> None:
        self.send(m.StartFailed(rank, why))
        if not self._stays:
            self.stop(0.0)

    def _ask(self, asked: m.AskRank) -> None:
        if asked.glance:
            self._channels.glance(asked.rank)
        else:
            self._channels.ask(asked.rank, asked.patience)

    def _stop_rank(self, told: m.StopRank) -> None:
        child = self._ranks.get(told.rank)
        if child is None:
            return
        if told.grace > 0:
            child.terminate()
        self.loop.call_later(told.grace, lambda: child.signal(signal.SIGKILL))

    def _signal(self, number: int) -> None:
        for child in self._ranks.values():
            child.signal(number)

    def _give(self, given: m.Input) -> None:
        if child := self._ranks.get(given.rank):
            self.give(child, given.data, lambda: self.send(m.InputTaken(given.rank)))

    def _on_passed(self, rank: int, child: ChildProcess, why: str) -> None:
        self.send(m.RankKilled(rank, why))
        child.signal(signal.SIGKILL)

    def _on_end(self, rank: int, status: int) -> None:
        child = self._ranks[rank]
        if self._stays:
            child.kill_group()  # or what it has forked would go on as long as this agent
        self._drain(rank, child)
        self._channels.drain(rank)
        self._ended = [one for one in (*self._ended, (rank, self._ranks.pop(rank))) if one[1].streams]
        if why := child.limits.ended():
            self.send(m.RankKilled(rank, why))
        self._send_answer(rank)
        self.send(m.RankExited(rank, status))

    # What ranks write. A process that an ended one has left behind may go on writing.

    def _read(self, rank: int, child: ChildProcess) -> None:
        for fd in child.streams:
            if self._is_paused:
                self.loop.remove_reader(fd)
            else:
                self.loop.add_reader(fd, partial(self._carry, rank, child, fd))

    def _carry(self, rank: int, child: ChildProcess, fd: int) -> None:
        name = child.streams[fd]
        data = child.read(fd)
        if data is None:
            self.loop.remove_reader(fd)
        elif data:
            self.send(m.Output(rank, name, data))

    def _drain(self, rank: int, child: ChildProcess) -> None:
        for fd in [*child.streams]:
            name = child.streams[fd]
            for data in child.rest(fd):
                self.send(m.Output(rank, name, data))
            if fd not in child.streams:
                self.loop.remove_reader(fd)

    def _send_so_far(self) -> None:
        self.send_rest()
        self.send(m.Flushed())


def _remedy(plan: m.StartRanks) -> str:
    """Return what to write instead of a script that is not a program; empty where it is none."""
    program = Path(plan.command[0])
    is_script = program.suffix == ".py" and (Path(plan.cwd) / program).is_file()
    return f" (it is a script: did you mean `python {program}`?)" if is_script else ""


def _fewer_threads(env: dict[str, str], kept_to: limits.Limits, chosen: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a rank that may use fewer cores than its part; what the user has chosen stays."""
    most = limits.threads(kept_to)
    names = [name for name in limits.THREADS if name not in chosen and most is not None and name in env]
    return env | {name: str(min(int(env[name]), most or 1)) for name in names if env[name].isdecimal()}


def _environment(plan: m.StartRanks) -> dict[str, str]:
    """Return what all ranks have: devices, and each its part of the cores, unless the user has decided.

    What is not a rank, but starts some, hands the words on (``ranks_on_host`` is 0).

    Raises
    ------
    ConfigError
        Devices were named that are not there.
    """
    cores, beside = len(os.sched_getaffinity(0)), plan.ranks_on_host
    share = dict.fromkeys(limits.THREADS, str(max(1, cores // beside))) if beside else {}
    own = without_launchers(os.environ) if plan.is_step else os.environ  # srun has told this process that it is a task
    env: dict[str, str] = share | (dict(own) if plan.inherit_env else {}) | plan.env
    if plan.inherit_env and "HVD_HOST" in os.environ:  # this host's own name for itself, not the launcher's
        env["HVD_HOST"] = os.environ["HVD_HOST"]
    if beside:
        gpus.apply_choice(env)
        env.setdefault(gpus.LOADING, gpus.LAZY)
    return env


def card(port: int) -> dict[str, Any]:
    """Return how this host can be reached, and what tells it from others."""
    here = machine()
    return {
        "version": __version__,
        "machine": here,
        "host": os.environ.get("HVD_HOST") or f"{here}/{os.geteuid()}",
        "port": port,
        "name": socket.gethostname(),
        "devices": gpus.visible(os.environ),
        "networks": networks(),
        "ssh": os.environ.get("SSH_CONNECTION", "").split(),  # client's address and port, ours
    }


def main() -> None:
    """Serve one launcher over stdin and stdout."""
    adopt_orphans()
    signal.signal(signal.SIGINT, lambda *_: None)  # not SIG_IGN, which the ranks would inherit
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))
    with bound() as port:
        channel = ControlChannel(open(0, "rb", 0), open(1, "wb", 0), is_agent=True)  # noqa: SIM115
        agent = Agent(channel, card(port.getsockname()[1]))
        agent.forward_signals()
        agent.serve()


if __name__ == "__main__":
    main()
