"""Agent of a host, which holds the ranks of that host: ``python -P -m hvd_kernel.processes.agent``.

    hvdrun --pipe, or ssh--> agent --PDEATHSIG--> ranks

It sends a hello (the addresses of this host, and a free port), starts the requested ranks, and forwards their output to
the launcher and the input to rank 0 (channel/messages.py). When the channel closes, the launcher is gone, and the agent
kills the ranks at once. Variables, including secrets, arrive over the channel: no command line ever contains one.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from hvd_kernel.errors import ClusterError, ConfigError
from hvd_kernel.processes import allocator, limits
from hvd_kernel.processes.channel import messages as m
from hvd_kernel.processes.channel.attachment import Controller
from hvd_kernel.processes.channel.control_channel import ControlChannel
from hvd_kernel.processes.child_process import ChildProcess
from hvd_kernel.processes.lifetime import adopt_orphans, claim
from hvd_kernel.processes.mps.daemon import HostDaemon
from hvd_kernel.processes.node_environment import merged, usable_cores
from hvd_kernel.processes.ports import bound, reserve
from hvd_kernel.processes.private_dir import CALL, answer_file, private_folder, write_private
from hvd_kernel.processes.rank_channel import RankChannels
from hvd_kernel.processes.spares import HostSpares
from hvd_kernel.processes.supervise import ProcessSupervisor
from hvd_kernel.settings import gpus, torchrun
from hvd_kernel.settings.lookup import without_launchers
from hvd_kernel.settings.network import machine, networks
from hvd_kernel.version import __version__

_HUNG_UP_S = 0.5  # for the ranks to end after SIGHUP: the connection to the launcher is about to close
_ROOM = 1 << 20  # unsent bytes from which the ranks' output is no longer read


class Agent(ProcessSupervisor):
    """Holds ranks for a launcher. ``stays``: until the launcher disconnects, not only until the ranks have exited."""

    def __init__(self, channel: ControlChannel, card: dict[str, Any], *, stays: bool = False) -> None:
        self._stays = self._always_stays = stays
        self._grace_s = 0.0  # of the ranks, after a signal to this agent
        self._dismissed_at: float | None = None  # when a signal has made this agent stop its ranks
        self._ranks: dict[int, ChildProcess] = {}  # running ranks
        self._exited: list[tuple[int, ChildProcess]] = []  # exited ranks with open output
        self._calls: dict[int, Path] = {}  # the folders of ranks that run a call
        self._has_begun = False
        self._is_paused = False
        super().__init__(Controller(channel, os.getppid()))
        self._host_mps = HostDaemon(self.mps, self.say)
        self._spares = HostSpares(self)
        self._channels = RankChannels(
            self.loop,
            report=lambda rank, state: self.send(m.RankState(rank, state)),
            relay=lambda rank, data: self.send(m.FromRank(rank, data)),
            learn=self._spares.learn,
        )
        self.handlers |= {
            m.StartRanks: self._start,
            m.Input: self._write,
            m.Flush: lambda _: self._flush_output(),
            m.QueryRank: self._query,
            m.ToRank: lambda message: self._channels.forward(message.rank, message.data),
            m.SignalRanks: lambda message: self._signal(message.number),
            m.StopRank: self._stop_rank,
        }
        self.send(m.Hello(card))

    def forward_signals(self) -> None:
        """Forward signals to the ranks that this process receives, for example from Slurm, which signals each task."""
        for number in m.FORWARDED:
            signal.signal(number, lambda number, _: self.loop.call_soon_threadsafe(partial(self._signal, number)))

    def dismiss_on_signals(self) -> None:
        """Stop the ranks at SIGTERM and SIGHUP, and ignore SIGINT by a handler, because ranks would inherit SIG_IGN."""
        self.forward_signals()
        signal.signal(signal.SIGINT, lambda *_: None)
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda number, _: self.loop.call_soon_threadsafe(partial(self._dismiss, number)))

    def _dismiss(self, number: int) -> None:
        """Terminate the ranks, and kill them after their grace period, or at a later signal.

        mpiexec, which would kill its ranks, is left to the launcher.
        """
        now = time.monotonic()
        if self._dismissed_at is None:
            self.send(m.Terminated(number))
            if m.MPIEXEC not in self._ranks:
                self._dismissed_at = now
                self.stop(self._grace_s if number == signal.SIGTERM else min(self._grace_s, _HUNG_UP_S))
        elif not m.is_repeated(number, now - self._dismissed_at):
            self.send(m.Terminated(number, again=True))
            self.stop(0.0)
        self.on_progress()

    def lose_controller(self) -> None:
        """Kill the ranks, unless a signal to this agent ends them: they keep their grace period."""
        if self._dismissed_at is None or not self._ranks:
            super().lose_controller()
        else:
            self.release_controller()

    def on_progress(self) -> None:
        """Stop the loop once the ranks have exited and all messages have been sent."""
        unsent = 0 if self.controller is None else self.controller.channel.unsent
        is_over = self._has_begun or self.is_stopping
        is_dismissed = self._dismissed_at is not None
        stays = self._always_stays and self.controller is not None if is_dismissed else self._stays
        if not stays and is_over and not self._ranks and not unsent:
            self.loop.stop()

    def on_unsent(self, waiting: int) -> None:
        """Pause reading the ranks' output while the launcher is slower, so that they block."""
        if (waiting >= _ROOM) is not self._is_paused:
            self._is_paused = waiting >= _ROOM
            for rank, child in [*self._ranks.items(), *self._exited]:
                self._read(rank, child)

    def terminate(self) -> None:
        """Terminate the ranks."""
        for child in self._ranks.values():
            child.terminate()

    def kill(self) -> None:
        """Kill the ranks and the spares."""
        self._spares.close()
        for child in self._ranks.values():
            child.signal(signal.SIGKILL)
        self.on_progress()

    def close(self) -> None:
        """Stop all processes and close all channels."""
        self._host_mps.close()
        super().close()
        self._channels.close()

    def send_rest(self) -> None:
        """Send the remaining output of all ranks."""
        for rank, child in [*self._ranks.items(), *self._exited]:
            self._drain(rank, child)

    # Ranks.

    def _start(self, plan: m.StartRanks) -> None:
        self.folders += map(Path, plan.folders)
        if self._dismissed_at is not None:
            return  # the launcher learns of that, and of this agent's exit
        self._has_begun = True
        self._stays |= plan.stays
        self._grace_s = plan.grace_s
        try:
            base = _environment(plan)
        except ConfigError as error:
            self._refuse(plan.ranks[0].rank, str(error).removesuffix("."))
            return
        base |= self._mps_variables(plan, base)
        self._spares.plan(plan.spares, plan.command, plan.cwd, base)
        for rank in plan.ranks:
            try:
                env = _with_limited_threads(base, rank.limits, plan.env) | rank.env | self._channels.variable(rank.rank)
                env = torchrun.with_variables(env)
                env |= allocator.variables(env, plan.ranks_on_host, rank.limits.memory) if plan.ranks_on_host else {}
                self._start_rank(plan, rank, env)
            except OSError as error:
                self._refuse(rank.rank, f"{error.strerror}: {error.filename}{_remedy(plan)}")
                return
            except ClusterError as error:
                self._refuse(rank.rank, str(error).removesuffix("."))
                return

    def _mps_variables(self, plan: m.StartRanks, env: Mapping[str, str]) -> dict[str, str]:
        """Return the variables by which ranks find their MPS daemon."""
        if not plan.mps_ranks:
            return {}
        if plan.mps_run:
            return self._host_mps.variables(plan.mps_run, plan.mps_ranks, env)
        return self.mps.variables(plan.mps_ranks, env)

    def _start_rank(self, plan: m.StartRanks, rank: m.RankPlan, env: dict[str, str]) -> None:
        command = [*plan.command, *self._call(rank.rank, plan.call)]
        is_plain = not (rank.reads_stdin or rank.limits)
        if is_plain and (spare := self._spares.use(command, env, partial(self._on_exit, rank.rank))):
            self._add(rank.rank, spare)
            return
        child = ChildProcess(
            command,
            env=env,
            cwd=plan.cwd,
            stdin=subprocess.PIPE if rank.reads_stdin else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            slot=rank.slot,
            limits=rank.limits,
            new_session=True,
        )
        self.hold(child, partial(self._on_exit, rank.rank))
        self.limit(child.pid, child.limits, partial(self._on_exceeded, rank.rank, child))
        self._add(rank.rank, child)

    def _add(self, rank: int, child: ChildProcess) -> None:
        self._ranks[rank] = child
        self._read(rank, child)
        self.send(m.RankStarted(rank, child.pid))

    def _call(self, rank: int, call: bytes) -> list[str]:
        """Write the call, if any, into a folder for a rank, and return the arguments with its path."""
        if not call:
            return []
        folder = self._calls[rank] = private_folder()
        claim(folder)
        self.folders.append(folder)
        write_private(folder / CALL, call)
        return [str(folder)]

    def _send_answer(self, rank: int) -> None:
        """Send the answer that a rank has written, and remove the folder of its call."""
        folder = self._calls.pop(rank, None)
        if folder is None:
            return
        answer = answer_file(folder, rank)
        if answer.exists():
            self.send(m.Answered(rank, answer.read_bytes()))
        shutil.rmtree(folder, ignore_errors=True)
        self.folders.remove(folder)

    def _refuse(self, rank: int, reason: str) -> None:
        self.send(m.StartFailed(rank, reason))
        if not self._stays:
            self.stop(0.0)

    def _query(self, message: m.QueryRank) -> None:
        if message.glance:
            self._channels.report_if_stopped(message.rank)
        else:
            self._channels.query(message.rank, message.patience)

    def _stop_rank(self, message: m.StopRank) -> None:
        child = self._ranks.get(message.rank)
        if child is None:
            return
        if message.grace > 0:
            child.terminate()
        self.loop.call_later(message.grace, lambda: child.signal(signal.SIGKILL))

    def _signal(self, number: int) -> None:
        for child in self._ranks.values():
            child.signal(number)

    def _write(self, message: m.Input) -> None:
        if child := self._ranks.get(message.rank):
            self.write(child, message.data, lambda: self.send(m.InputTaken(message.rank)))

    def _on_exceeded(self, rank: int, child: ChildProcess, reason: str) -> None:
        self.send(m.RankKilled(rank, reason))
        child.signal(signal.SIGKILL)

    def _on_exit(self, rank: int, status: int) -> None:
        child = self._ranks[rank]
        if self._stays:
            child.kill_group()  # else processes that it has forked would run as long as this agent
        self._drain(rank, child)
        self._channels.drain(rank)
        exited = [*self._exited, (rank, self._ranks.pop(rank))]
        self._exited = [(number, process) for number, process in exited if process.streams]
        if reason := child.limits.close():
            self.send(m.RankKilled(rank, reason))
        self._send_answer(rank)
        self.send(m.RankExited(rank, status))

    # Output of ranks. Processes that an exited rank has forked may continue to write.

    def _read(self, rank: int, child: ChildProcess) -> None:
        for fd in child.streams:
            if self._is_paused:
                self.loop.remove_reader(fd)
            else:
                self.loop.add_reader(fd, partial(self._forward, rank, child, fd))

    def _forward(self, rank: int, child: ChildProcess, fd: int) -> None:
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

    def _flush_output(self) -> None:
        self.send_rest()
        self.send(m.Flushed())


def _remedy(plan: m.StartRanks) -> str:
    """Return a hint if the command is a Python script that is not executable; else ""."""
    program = Path(plan.command[0])
    is_script = program.suffix == ".py" and (Path(plan.cwd) / program).is_file()
    return f" (it is a script: did you mean `python {program}`?)" if is_script else ""


def _with_limited_threads(env: dict[str, str], limit: limits.Limits, chosen: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a rank with its limit of cores applied to the thread variables, unless user-chosen."""
    most = limits.threads(limit)
    names = [name for name in limits.THREADS if name not in chosen and most is not None and name in env]
    return env | {name: str(min(int(env[name]), most or 1)) for name in names if env[name].isdecimal()}


def _environment(plan: m.StartRanks) -> dict[str, str]:
    """Return the common environment of the ranks: devices, and an equal share of the cores unless the user has chosen.

    A process that is not a rank but starts ranks passes the settings on unchanged (``ranks_on_host`` is 0).

    Raises
    ------
    ConfigError
        If chosen devices do not exist.
    """
    cores, neighbours = usable_cores(plan.allocated_cores), plan.ranks_on_host
    share = dict.fromkeys(limits.THREADS, str(max(1, cores // neighbours))) if neighbours else {}
    inherited = without_launchers(os.environ) if plan.is_step else os.environ  # else it has srun's variables of a task
    env = plan.env
    if plan.inherit_env:
        env = merged(inherited, plan.env, plan.chosen_env, is_step=plan.is_step)
    env = share | env
    if neighbours:
        gpus.apply_choice(env)
        env.setdefault(gpus.LOADING, gpus.LAZY)
    return env


def card(port: int) -> dict[str, Any]:
    """Return the addresses and identity of this host, and a free port for the store of torch.distributed."""
    here = machine()
    return {
        "version": __version__,
        "machine": here,
        "host": os.environ.get("HVD_HOST") or f"{here}/{os.geteuid()}",
        "port": port,
        "torch_port": reserve(1)[0],
        "name": socket.gethostname(),
        "devices": gpus.visible(os.environ),
        "networks": networks(),
        "ssh": os.environ.get("SSH_CONNECTION", "").split(),  # client's address and port, ours
    }


def main() -> None:
    """Serve one launcher over stdin and stdout."""
    adopt_orphans()
    for number in m.FORWARDED:
        signal.signal(number, lambda *_: None)  # there are no ranks yet
    with bound() as port:
        channel = ControlChannel(open(0, "rb", 0), open(1, "wb", 0), is_agent=True)  # noqa: SIM115
        agent = Agent(channel, card(port.getsockname()[1]))
        agent.dismiss_on_signals()
        agent.serve()


if __name__ == "__main__":
    main()
