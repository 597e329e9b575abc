"""Placement of ranks: from the user's list of hosts to places. Pure, except for reading the hostfile.

Terms.
  slot    room for one rank on a host
  place   one rank and the host it runs on
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hvd_kernel.errors import ConfigError
from hvd_kernel.jobs.readers import hostfile as hostfile_reader

_LOCAL = {"localhost", "127.0.0.1", "::1"}


@dataclass(frozen=True)
class Host:
    """A host as the user names it, and its number of slots."""

    name: str
    slots: int
    machine: str = ""  # identifies the machine if several names belong to one; empty: the name identifies it

    def __post_init__(self) -> None:
        # ssh would parse such a name as an option.
        if self.name.startswith("-") or not self.name:
            raise ConfigError(f"{self.name!r} is not a host: write -H host:slots,other:slots.")


def parse(hosts: str, slots: int = 1) -> list[Host]:
    """Parse ``h1:2,h2:4``; a host without a number has ``slots``, an IPv6 address has brackets.

    Raises
    ------
    ConfigError
        Naming the entry that cannot be parsed.
    """
    return [Host(name, count) for name, count in hostfile_reader.host_list(hosts, f"-H {hosts}", slots)]


def read_hostfile(path: str, slots: int = 1) -> list[Host]:
    """Read a file of lines ``host slots=4`` (or ``host:4``, or ``host``: ``slots``), each host once.

    Raises
    ------
    ConfigError
        The file cannot be read, or names no host; a line that cannot be parsed is named, with its column.
    """
    try:
        text = Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the hostfile {path} cannot be read: {error}.") from None
    return [Host(replica.host, replica.slots) for replica in hostfile_reader.read(text, path, slots).replicas]


def job_hosts(hosts: str | None, hostfile: str | None, np: int, slots: int = 1) -> list[Host]:
    """Return the hosts of a job; by default this one, with a slot for every rank.

    ``slots``: of a host without a number.

    Raises
    ------
    ConfigError
        Both were given, or one of them cannot be parsed.
    """
    if hosts and hostfile:
        raise ConfigError("hosts and hostfile were both given: they say the same thing, keep one of them.")
    if hosts:
        return parse(hosts, slots)
    return read_hostfile(hostfile, slots) if hostfile else [Host("localhost", np)]


def with_slots(hosts: str | None, hostfile: str | None, slots: int | None) -> tuple[str | None, str | None]:
    """Return hosts and hostfile; with ``slots`` all hosts in the syntax of -H, each with its number of slots.

    >>> with_slots("a,b:2", None, 3)
    ('a:3,b:2', None)

    Raises
    ------
    ConfigError
        With ``slots``: both were given, or one of them cannot be parsed.
    """
    if slots is None or not (hosts or hostfile):
        return hosts, hostfile
    return ",".join(map(_spell, job_hosts(hosts, hostfile, 1, slots))), None


def _spell(host: Host) -> str:
    return hostfile_reader.spelled(host.name, host.slots)


def places(hosts: Sequence[Host], np: int) -> list[int]:
    """Return for each rank the index of its host; hosts are filled one after another.

    Raises
    ------
    ConfigError
        There are fewer slots than ranks.
    """
    slots = [index for index, host in enumerate(hosts) for _ in range(host.slots)]
    if len(slots) < np:
        names = ", ".join(map(_spell, hosts))
        raise ConfigError(
            f"np={np} ranks do not fit on {names}, which has {len(slots)} slot(s) in all: give a host more slots "
            "(host:8; they may be more than its cores), or ask for fewer ranks."
        )
    return slots[:np]


def is_local(name: str) -> bool:
    """Return whether the name is this host's: by its spelling, or because its address can be bound here."""
    if name in _LOCAL or name == socket.gethostname():
        return True
    try:
        infos = socket.getaddrinfo(name, 0, type=socket.SOCK_STREAM)
    except OSError:
        return False  # a name that only ssh knows
    return any(_binds(family, address) for family, _, _, _, address in infos)


def _binds(family: int, address: Iterable[object]) -> bool:
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind(tuple(address))
    except OSError:
        return False
    return True
