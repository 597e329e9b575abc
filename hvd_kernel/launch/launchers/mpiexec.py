"""mpiexec as the launcher hears it: its own words, and what to make of it where the ranks do not come, or are ended."""

from __future__ import annotations

from hvd_kernel.errors import ClusterError
from hvd_kernel.launch.launchers import mpi_command
from hvd_kernel.launch.line_output import Voice, Write

_SAID = 1 << 14  # bytes that are kept for messages


class Starter:
    """Its words are shown until a rank has failed: from there on it would tell the same in other words."""

    def __init__(self, write: Write, name: str = "mpiexec") -> None:
        self._name = name
        self._voice = Voice(write, lambda: b"", None, holds=False)
        self._said = b""

    def hear(self, data: bytes, *, aloud: bool) -> None:
        """Take bytes as they come."""
        self._said = (self._said + data)[-_SAID:]
        if aloud:
            self._voice.say(data)

    def up(self) -> None:
        """Every rank is there: show what was kept for the message about their absence."""
        if self._said:
            self._voice.say(self._said)

    def close(self) -> None:
        """Write what is left."""
        self._voice.close()

    def blamed(self) -> tuple[int | None, int]:
        """Return the rank that it names as the first to fail, if it does, and its code."""
        return mpi_command.first_to_fail(self._text.splitlines())

    def failed(self, status: str, there: int, np: int) -> ClusterError:
        """Explain that it ended before the ranks were up."""
        how = f" ({status})" if status else ""
        return ClusterError(f"{self._name} ended{how} when {there} of {np} ranks were up.{self._quoted()}")

    def slow(self, seconds: float, there: int, np: int) -> ClusterError:
        """Explain that the ranks have not come in time."""
        return ClusterError(
            f"{self._name} has brought up {there} of {np} ranks within {seconds:g} s: look at what it says with "
            f"--verbose, or raise --start-timeout.{self._quoted()}"
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
