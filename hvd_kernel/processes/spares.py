"""Spare processes with their imports done: one spare, and the spares of a host, which its agent holds.

A spare receives its messages, which are those of the control channel, over a socket pair, not by arguments or files:

    parent                                  spare (worker/standby.py)
    Preload: modules to import        ->    unless it determines them itself
                                      <-    Preloaded
    Introduce or RunProgram           ->    the rank to become, or the program to run

A spare that has received neither exits when the channel closes.

A rank of a host sends the list of its imports when it reaches ``elastic.run``, because it has imported its modules by
then. So the host has no spare before, and a used spare is replaced when it has reached ``elastic.run`` too.
"""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from hvd_kernel.processes.channel import messages as m
from hvd_kernel.processes.channel.control_channel import ControlChannel
from hvd_kernel.processes.channel.messages import Message, Preloaded
from hvd_kernel.processes.child_process import ChildProcess
from hvd_kernel.processes.limits import free_memory
from hvd_kernel.processes.program import Program, program_of
from hvd_kernel.processes.supervise import ProcessSupervisor

ENTRY = "hvd_kernel.worker.standby"
"""The module that a spare starts with."""

_TAIL = 300  # characters of a spare's last line


class HostSpares:
    """The spares of a host, for one program in one environment.

    Parameters
    ----------
    supervisor
        Holds the processes.
    """

    def __init__(self, supervisor: ProcessSupervisor) -> None:
        self._supervisor = supervisor
        self._waiting: list[Spare] = []
        self._on_end: dict[Spare, Callable[[int], None]] = {}  # of spares that have become ranks
        self._plan: tuple[Any, ...] = ()
        self._program: Program | None = None
        self._cwd, self._env = "", dict[str, str]()
        self._quota = SpareQuota(0)
        self._preload: m.Preload | None = None  # None until a rank has sent its imports
        self._reported = ""

    def plan(self, count: int, command: Sequence[str], cwd: str, env: Mapping[str, str]) -> None:
        """Set the number and program of the spares; stop those of another program, or with other variables."""
        plan = (count, [*command], cwd, dict(env))
        if plan == self._plan:
            return
        self.close()
        self._plan, self._cwd, self._env = plan, cwd, dict(env)
        self._program = program_of(command)
        self._quota = SpareQuota(count if self._program else 0)
        if count and not self._program:
            self._report(f"{command[0]}: only programs of Python's can wait, `python train.py` or `python -m training`")

    def learn(self, imports: dict[str, Any]) -> None:
        """Record the imports of a rank, and start the missing spares."""
        self._preload = m.Preload(imports["modules"], imports["variables"])
        self._fill()

    def use(self, command: Sequence[str], env: Mapping[str, str], on_end: Callable[[int], None]) -> ChildProcess | None:
        """Run a command on a spare and return its process; None if none is ready.

        ``on_end`` is called with its status.
        """
        ready = (waiting for waiting in self._waiting if waiting.is_ready and not waiting.process.has_ended)
        spare = next(ready, None)
        if spare is None or self._program is None:
            return None
        self._waiting.remove(spare)
        self._quota.use()
        self._on_end[spare] = on_end
        spare.send(m.RunProgram(dict(env), [*command]))
        return spare.process

    def close(self) -> None:
        """Stop all waiting spares."""
        waiting, self._waiting = self._waiting, []
        for spare in waiting:
            self._close_channel(spare)
            self._supervisor.end(spare.process)
        self._quota = SpareQuota(0)

    def _fill(self) -> None:
        if self._preload is None or self._supervisor.is_stopping:
            return
        for _ in range(self._quota.missing):
            if not has_room():
                self._report("less than 1 GB of memory is free")
                return
            try:
                self._start()
            except OSError as error:
                self._report(f"{error.strerror}: {error.filename}")
                return

    def _start(self) -> None:
        assert self._program is not None
        assert self._preload is not None
        command, env = self._program.waiting(ENTRY), self._env
        spare = Spare(
            lambda stdin: ChildProcess(
                command,
                env=env,
                cwd=self._cwd,
                stdin=stdin,
                stdout=subprocess.PIPE,  # not read before it is a rank
                stderr=subprocess.PIPE,
                new_session=True,
            )
        )
        self._quota.start()
        self._waiting.append(spare)
        self._supervisor.hold(spare.process, partial(self._on_exit, spare))
        self._supervisor.loop.add_reader(spare.channel.fileno(), partial(self._receive, spare))
        spare.send(self._preload)

    def _receive(self, spare: Spare) -> None:
        is_final = spare.poll()
        if spare.is_ready:
            self._supervisor.send(m.SparesReady(sum(waiting.is_ready for waiting in self._waiting)))
        elif is_final:
            self._close_channel(spare)

    def _close_channel(self, spare: Spare) -> None:
        if spare.channel.fileno() >= 0:
            self._supervisor.loop.remove_reader(spare.channel.fileno())
            spare.channel.close()

    def _on_exit(self, spare: Spare, status: int) -> None:
        self._close_channel(spare)
        if on_end := self._on_end.pop(spare, None):
            on_end(status)
            return
        if spare not in self._waiting:
            return
        self._waiting.remove(spare)
        self._quota.end()
        if self._quota.is_used_up:
            self._report(f"{_last_line(spare.process) or f'they end with {status}'}")
        self._fill()

    def _report(self, reason: str) -> None:
        if reason != self._reported:
            self._reported = reason
            self._supervisor.send(m.SparesFailed(reason))


def _last_line(process: ChildProcess) -> str:
    """Return the last line of a process's stderr, or of its stdout if stderr is empty."""
    for fd, _ in sorted(process.streams.items(), key=lambda stream: stream[1]):
        text = b"".join(process.rest(fd)).decode(errors="replace").strip()
        if text:
            return text.splitlines()[-1][-_TAIL:]
    return ""


_DEATHS = 3
"""Consecutive exits of waiting spares after which spares are given up, as a slot is after failures."""


class SpareQuota:
    """Counts spares. The exit of a spare is no failure of a rank: it uses up no restart, and excludes no slot. Pure.

    Parameters
    ----------
    target
        The number of spares that are to wait.

    Examples
    --------
    >>> quota = SpareQuota(2)
    >>> quota.start(quota.missing)
    >>> quota.end()
    >>> quota.missing
    1
    """

    def __init__(self, target: int) -> None:
        self._target = target
        self._waiting = 0
        self._deaths = 0

    @property
    def missing(self) -> int:
        """The number of spares to start."""
        return 0 if self.is_used_up else max(0, self._target - self._waiting)

    @property
    def is_used_up(self) -> bool:
        """True if too many spares have exited to start more."""
        return self._deaths >= _DEATHS

    def start(self, count: int = 1) -> None:
        """Count started spares."""
        self._waiting += count

    def use(self) -> None:
        """Count a spare that becomes a rank; forget earlier exits."""
        self._waiting -= 1
        self._deaths = 0

    def end(self) -> None:
        """Count a spare that has exited while it waited."""
        self._waiting -= 1
        self._deaths += 1


# One spare


_ROOM_BYTES = 1 << 30
"""Memory that must be free to start a spare, which needs about a quarter of that with torch."""


class Spare:
    """One spare process. ``start`` starts it, with a descriptor as its stdin."""

    def __init__(self, start: Callable[[int], ChildProcess]) -> None:
        self.is_ready = False
        connection, stdin = socket.socketpair()
        self.channel = ControlChannel(connection, connection)
        with stdin:
            self.process = start(stdin.fileno())

    def send(self, message: Message) -> None:
        """Send a message; errors are ignored, because the pidfd shows if the spare has exited."""
        self.channel.send(message)

    def poll(self) -> bool:
        """Read the messages that have arrived; return whether none will follow: it is ready, or has closed."""
        self.is_ready = any(isinstance(message, Preloaded) for message in self.channel.receive())
        return self.is_ready or self.channel.closed


def has_room() -> bool:
    """Return whether there is memory for another spare."""
    return free_memory() > _ROOM_BYTES
