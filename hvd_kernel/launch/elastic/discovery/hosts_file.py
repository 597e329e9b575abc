"""Hosts file of an elastic job, read again and again: whoever writes it says which hosts there are now."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hvd_kernel.errors import ConfigError
from hvd_kernel.launch.elastic.discovery.answers import read


@dataclass(frozen=True)
class HostsFile:
    """A file of lines as a discovery script prints them; write it anew and rename it into place.

    Parameters
    ----------
    path
        The file. An empty one: no hosts now.
    slots
        Of hosts that do not say; None: 1.

    Examples
    --------
    >>> HostsFile("/tmp/hosts.txt", slots=2).find_available_hosts_and_slots()  # doctest: +SKIP
    {'a': 4, 'b': 2}
    """

    path: str
    slots: int | None = None

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """Read it.

        Raises
        ------
        ConfigError
            It is not there, or a line cannot be read.
        """
        try:
            text = Path(self.path).read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"the hosts file {self.path} cannot be read: {error}.") from None
        try:
            return {host.name: host.slots for host in read(text, self.slots)}
        except ConfigError as error:
            raise ConfigError(f"{self.path}: {error}") from None
