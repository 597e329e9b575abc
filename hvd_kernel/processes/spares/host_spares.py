"""Spares of a host, which its agent holds: processes that become the ranks that are started in failed ones' places.

What they import a rank of the host says, when it comes to ``elastic.run``: by then it has imported what it needs. So
there is no spare before, and the next one is started when the one that was taken has come there, too.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from hvd_kernel.processes.channel import messages as m
from hvd_kernel.processes.child_process import ChildProcess
from hvd_kernel.processes.spares.program import Program, program_of
from hvd_kernel.processes.spares.quota import SpareQuota
from hvd_kernel.processes.spares.spare import Spare, has_room
from hvd_kernel.processes.supervise import ProcessSupervisor

ENTRY = "hvd_kernel.worker.job_spare"
"""The module that a spare begins with."""

_WORDS = 300  # of a spare's last ones


class HostSpares:
    """All of them: of one program, in one environment.

    Parameters
    ----------
    supervisor
        Holds the processes.
    """

    def __init__(self, supervisor: ProcessSupervisor) -> None:
        self._supervisor = supervisor
        self._waiting: list[Spare] = []
        self._on_end: dict[Spare, Callable[[int], None]] = {}  # of those that have become ranks
        self._plan: tuple[Any, ...] = ()
        self._program: Program | None = None
        self._cwd, self._env = "", dict[str, str]()
        self._quota = SpareQuota(0)
        self._preload: m.Preload | None = None  # None: no rank has said what to import
        self._said = ""

    def plan(self, wanted: int, command: Sequence[str], cwd: str, env: Mapping[str, str]) -> None:
        """Take note of what ranks are here: a spare of another program, or with other variables, is of no use."""
        plan = (wanted, [*command], cwd, dict(env))
        if plan == self._plan:
            return
        self.close()
        self._plan, self._cwd, self._env = plan, cwd, dict(env)
        self._program = program_of(command)
        self._quota = SpareQuota(wanted if self._program else 0)
        if wanted and not self._program:
            self._say(f"{command[0]}: only programs of Python's can wait, `python train.py` or `python -m training`")

    def learn(self, imports: dict[str, Any]) -> None:
        """Take note of what a rank has imported, and have as many spares as are wanted."""
        self._preload = m.Preload(imports["modules"], imports["variables"])
        self._fill()

    def take(
        self, command: Sequence[str], env: Mapping[str, str], on_end: Callable[[int], None]
    ) -> ChildProcess | None:
        """Return a process that becomes the rank of this command and environment; None: none is ready.

        ``on_end`` is called with its status.
        """
        spare = next((each for each in self._waiting if each.is_ready and not each.process.has_ended), None)
        if spare is None or self._program is None:
            return None
        self._waiting.remove(spare)
        self._quota.take()
        self._on_end[spare] = on_end
        spare.send(m.RunProgram(dict(env), [*command]))
        return spare.process

    def close(self) -> None:
        """End those that wait."""
        waiting, self._waiting = self._waiting, []
        for spare in waiting:
            self._hang_up(spare)
            self._supervisor.end(spare.process)
        self._quota = SpareQuota(0)

    def _fill(self) -> None:
        if self._preload is None or self._supervisor.is_stopping:
            return
        for _ in range(self._quota.missing):
            if not has_room():
                self._say("less than 1 GB of memory is free")
                return
            try:
                self._start()
            except OSError as error:
                self._say(f"{error.strerror}: {error.filename}")
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
                stdout=subprocess.PIPE,  # which nobody reads before it is a rank
                stderr=subprocess.PIPE,
                new_session=True,
            )
        )
        self._quota.start()
        self._waiting.append(spare)
        self._supervisor.hold(spare.process, partial(self._ended, spare))
        self._supervisor.loop.add_reader(spare.channel.fileno(), partial(self._note_ready, spare))
        spare.send(self._preload)

    def _note_ready(self, spare: Spare) -> None:
        said_all = spare.poll()
        if spare.is_ready:
            self._supervisor.send(m.SparesReady(sum(each.is_ready for each in self._waiting)))
        elif said_all:
            self._hang_up(spare)

    def _hang_up(self, spare: Spare) -> None:
        if spare.channel.fileno() >= 0:
            self._supervisor.loop.remove_reader(spare.channel.fileno())
            spare.channel.close()

    def _ended(self, spare: Spare, status: int) -> None:
        self._hang_up(spare)
        if on_end := self._on_end.pop(spare, None):
            on_end(status)
            return
        if spare not in self._waiting:
            return
        self._waiting.remove(spare)
        self._quota.end()
        if self._quota.is_used_up:
            self._say(f"{_last_line(spare.process) or f'they end with {status}'}")
        self._fill()

    def _say(self, why: str) -> None:
        if why != self._said:
            self._said = why
            self._supervisor.send(m.SparesFailed(why))


def _last_line(process: ChildProcess) -> str:
    """Return the last line that a process has written, on stderr if there."""
    for fd, _ in sorted(process.streams.items(), key=lambda one: one[1]):
        text = b"".join(process.rest(fd)).decode(errors="replace").strip()
        if text:
            return text.splitlines()[-1][-_WORDS:]
    return ""
