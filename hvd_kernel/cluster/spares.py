"""Spare processes, and the replacements of dead ranks that they become; the supervisor holds them.

Terms.
  spare        has imported what a rank needs ("ready"), or does so in idle time; it waits to be told who to be
  replacement  was told; it registers as that rank and ends with the supervisor, as every process here
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from hvd_kernel.processes.channel.messages import Introduce
from hvd_kernel.processes.child_process import ChildProcess
from hvd_kernel.processes.spares.spare import Spare, has_room
from hvd_kernel.processes.supervise import ProcessSupervisor


class Spares:
    """All of them. ``on_ready`` is called when the number of those that could start at once has changed."""

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
        """How many could start at once."""
        return sum(spare.is_ready for spare in self._waiting)

    def keep(self, wanted: int) -> None:
        """Have that many, as far as there is memory for them."""
        while len(self._waiting) < wanted and has_room():
            spare = self._started("spare")
            self._waiting.append(spare)
            self._supervisor.loop.add_reader(spare.channel.fileno(), partial(self._note_ready, spare))

    def put(self, rank: int, connection: dict[str, Any]) -> int:
        """Make a spare that is ready, or a new process where there is none, that rank; return its process id."""
        if rank in self._replacing:  # it was to be that rank and has not come so far
            before = self._replacing.pop(rank)
            self._supervisor.end(before.process)
            before.channel.close()
        spare = next((each for each in self._waiting if each.is_ready), None)
        if spare is None:
            spare = self._started("now")
        else:
            self._waiting.remove(spare)
            self._on_ready(self.ready)
        self._replacing[rank] = spare
        spare.tell(Introduce(rank, self._ranks, connection))
        return spare.process.pid

    def renumber(self, ranks: int, numbers: Mapping[int, int]) -> None:
        """Have so many ranks; those that stay have other numbers, before -> now. Who is none of them ends."""
        self._ranks = ranks
        before, self._replacing = self._replacing, {}
        for rank, spare in before.items():
            if rank in numbers:
                self._replacing[numbers[rank]] = spare
            else:
                self._supervisor.end(spare.process)
                spare.channel.close()

    def _started(self, haste: str) -> Spare:
        command = [sys.executable, "-P", "-m", "hvd_kernel.worker", haste, str(self._ranks)]
        stdout = sys.stderr.fileno()
        spare = Spare(lambda stdin: ChildProcess(command, stdin=stdin, stdout=stdout, ties_itself=True))
        self._supervisor.hold(spare.process, lambda _status: self._ended(spare))
        return spare

    def _note_ready(self, spare: Spare) -> None:
        if not spare.hear():
            return
        self._supervisor.loop.remove_reader(spare.channel.fileno())
        self._on_ready(self.ready)

    def _ended(self, spare: Spare) -> None:
        self._supervisor.loop.remove_reader(spare.channel.fileno())
        spare.channel.close()
        if spare in self._waiting:
            self._waiting.remove(spare)
            self._on_ready(self.ready)
        self._replacing = {rank: each for rank, each in self._replacing.items() if each is not spare}
