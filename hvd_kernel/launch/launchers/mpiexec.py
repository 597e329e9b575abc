"""Output of mpiexec itself, and the errors of ranks that do not connect or that it has ended."""

from __future__ import annotations

import os
from pathlib import Path

from hvd_kernel.errors import ClusterError
from hvd_kernel.launch.agents import AgentHandle
from hvd_kernel.launch.launchers import mpi_command
from hvd_kernel.launch.line_output import OutputStream, Write
from hvd_kernel.processes.channel.messages import ChannelClosed, Message, Output, RankExited, StartFailed
from hvd_kernel.processes.lifetime import children, stat_of
from hvd_kernel.processes.limits import descendants

_MAX_OUTPUT = 1 << 14  # bytes that are kept for error messages
_STATES = {"R": "running", "S": "sleeping", "D": "in the kernel", "T": "stopped", "t": "stopped", "Z": "ended"}


class Mpiexec:
    """The output of mpiexec, shown until a rank has failed: after that it would only repeat the failure.

    ``name``: mpiexec, or the launcher used in its place.
    """

    def __init__(self, write: Write, name: str = "mpiexec") -> None:
        self._name = name
        self._output = OutputStream(write, lambda: b"", None, holds=False)
        self._tail = b""

    def receive(self, data: bytes, *, shown: bool) -> None:
        """Keep output for error messages, and write it if ``shown``."""
        self._tail = (self._tail + data)[-_MAX_OUTPUT:]
        if shown:
            self._output.write(data)

    def up(self) -> None:
        """Write the output that was kept until every rank has connected."""
        if self._tail:
            self._output.write(self._tail)

    def close(self) -> None:
        """Write the pending output."""
        self._output.close()

    def first_failure(self) -> tuple[int | None, int]:
        """Return the rank that mpiexec reports as the first to fail, or None, and its code."""
        return mpi_command.first_failure(self._text.splitlines())

    def on_message(self, _agent: AgentHandle, message: Message, ready: int, np: int) -> None:
        """Keep its output while the ranks start; raise if it has ended."""
        match message:
            case Output():
                self.receive(message.data, shown=False)
            case RankExited():
                raise self.start_error(str(message.status), ready, np)
            case StartFailed():
                raise self.start_error(message.reason, ready, np)
            case ChannelClosed():
                raise self.start_error("", ready, np)

    def start_error(self, status: str, ready: int, np: int) -> ClusterError:
        """Explain that it ended before the ranks were up."""
        suffix = f" ({status})" if status else ""
        return ClusterError(f"{self._name} ended{suffix} when {ready} of {np} ranks were up.{self._quoted()}")

    def wrong_ranks_error(self, np: int) -> ClusterError:
        """Explain that other ranks were started than requested."""
        return ClusterError(f"mpiexec did not start {np} rank(s), as -np says: leave -n and -np out of --mpi-args.")

    def timeout_error(self, seconds: float, ready: int, np: int) -> ClusterError:
        """Explain that the ranks did not connect in time."""
        return ClusterError(
            f"{self._name} has brought up {ready} of {np} ranks within {seconds:g} s: look at what it says with "
            f"--verbose, or raise --start-timeout.{self._quoted()}\n"
            f"What was started on this host: {_descendants_text(os.getpid()) or 'nothing'}."
        )

    def spurious_end_error(self) -> ClusterError:
        """Explain that it has ended ranks that had not failed."""
        return ClusterError(f"{self._name} ended the ranks, none of which had failed.{self._quoted()}")

    @property
    def _text(self) -> str:
        return self._tail.decode(errors="replace")

    def _quoted(self) -> str:
        text = self._text.strip()
        return f" It said:\n{text}" if text else " It said nothing."


def _descendants_text(pid: int) -> str:
    """Return the descendants of a process with state and wait channel: ``mpiexec (71), sleeping in do_poll; ...``.

    Command lines are not read: that takes a lock of the process's memory, for which the reader may have to wait.
    Source: https://docs.kernel.org/filesystems/proc.html (``stat``, ``wchan``).
    """
    texts = (_process_text(descendant) for descendant in descendants(pid, children) if descendant != pid)
    return "; ".join(filter(None, texts))


def _process_text(pid: int) -> str:
    fields = stat_of(pid)
    try:
        name = Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""
    if not fields:
        return ""
    channel = _wait_channel(pid)
    return f"{name} ({pid}), {_STATES.get(fields[0], fields[0])}{f' in {channel}' if channel else ''}"


def _wait_channel(pid: int) -> str:
    try:
        channel = Path(f"/proc/{pid}/wchan").read_text()
    except OSError:  # another user's process, or a kernel that does not report it
        return ""
    return "" if channel == "0" else channel
