"""Output of mpiexec itself, and the errors it explains: the ranks do not come, or are ended."""

from __future__ import annotations

import os

from hvd_kernel.errors import ClusterError
from hvd_kernel.launch.agents import AgentHandle
from hvd_kernel.launch.launchers import mpi_command
from hvd_kernel.launch.launchers.started_processes import below
from hvd_kernel.launch.line_output import OutputStream, Write
from hvd_kernel.processes.channel.messages import ChannelClosed, Message, Output, RankExited, StartFailed

_SAID = 1 << 14  # bytes that are kept for messages


class Mpiexec:
    """What it writes is shown until a rank has failed: from there on it would tell the same in other words.

    ``name``: mpiexec, or the launcher that stands for it.
    """

    def __init__(self, write: Write, name: str = "mpiexec") -> None:
        self._name = name
        self._output = OutputStream(write, lambda: b"", None, holds=False)
        self._said = b""

    def receive(self, data: bytes, *, shown: bool) -> None:
        """Take bytes as they come."""
        self._said = (self._said + data)[-_SAID:]
        if shown:
            self._output.write(data)

    def up(self) -> None:
        """Every rank is there: show what was kept for the message about their absence."""
        if self._said:
            self._output.write(self._said)

    def close(self) -> None:
        """Write what is left."""
        self._output.close()

    def blamed(self) -> tuple[int | None, int]:
        """Return the rank that it names as the first to fail, if it does, and its code."""
        return mpi_command.first_to_fail(self._text.splitlines())

    def hear(self, _agent: AgentHandle, message: Message, there: int, np: int) -> None:
        """Note what it says while the ranks come; raise where it has ended."""
        match message:
            case Output():
                self.receive(message.data, shown=False)
            case RankExited():
                raise self.failed(str(message.status), there, np)
            case StartFailed():
                raise self.failed(message.why, there, np)
            case ChannelClosed():
                raise self.failed("", there, np)

    def others(self, np: int) -> ClusterError:
        """Explain that it has started other ranks than it was asked for."""
        return ClusterError(f"mpiexec did not start {np} rank(s), as -np says: leave -n and -np out of --mpi-args.")

    def failed(self, status: str, there: int, np: int) -> ClusterError:
        """Explain that it ended before the ranks were up."""
        how = f" ({status})" if status else ""
        return ClusterError(f"{self._name} ended{how} when {there} of {np} ranks were up.{self._quoted()}")

    def slow(self, seconds: float, there: int, np: int) -> ClusterError:
        """Explain that the ranks have not come in time."""
        return ClusterError(
            f"{self._name} has brought up {there} of {np} ranks within {seconds:g} s: look at what it says with "
            f"--verbose, or raise --start-timeout.{self._quoted()}\n"
            f"What was started on this host: {below(os.getpid()) or 'nothing'}."
        )

    def ended(self) -> ClusterError:
        """Explain that it has ended ranks which had not failed."""
        return ClusterError(f"{self._name} ended the ranks, none of which had failed.{self._quoted()}")

    @property
    def _text(self) -> str:
        return self._said.decode(errors="replace")

    def _quoted(self) -> str:
        said = self._text.strip()
        return f" It said:\n{said}" if said else " It said nothing."
