"""Spare processes of a supervisor, and the replacements of dead ranks that they become.

Terms.
  spare        a process that has imported the modules of a rank ("ready"), or does so in idle time; it has no rank yet
  replacement  a spare that was assigned a rank; it registers as that rank, and exits with the supervisor like a spare
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from hvd_kernel.processes.channel.messages import Introduce
from hvd_kernel.processes.child_process import ChildProcess
from hvd_kernel.processes.spare import Spare, has_room
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
