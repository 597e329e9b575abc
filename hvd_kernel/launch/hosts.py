"""Which rank runs where: from the user's list of hosts to places. Pure, but for the hostfile.

Words.
  slot    room for one rank on a host
  place   one rank and the host it runs on
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hvd_kernel.errors import ConfigError

_LOCAL = {"localhost", "127.0.0.1", "::1"}
_LINE = re.compile(r"(?P<name>[^\s:#]+)(?:\s*:\s*(?P<short>\S+)|\s+slots\s*=\s*(?P<slots>\S+))?")


@dataclass(frozen=True)
class Host:
    """A host as the user names it, and how many ranks it takes."""

    name: str
    slots: int

    def __post_init__(self) -> None:
        # ssh would take such a name for an option.
        if self.name.startswith("-") or not self.name:
            raise ConfigError(f"{self.name!r} is no host: write -H host:slots,other:slots.")


def parse(hosts: str) -> list[Host]:
    """Read ``h1:2,h2:4``; a host without a number has one slot.

    Raises
    ------
    ConfigError
        Naming the entry that cannot be read.
    """
    return [_host(entry.strip(), f"-H {hosts}") for entry in hosts.split(",")]


def read_hostfile(path: str) -> list[Host]:
    """Read a file of lines ``host slots=4`` (or ``host:4``, or ``host``); # begins a comment.

    Raises
    ------
    ConfigError
        The file cannot be read, or names no host; a line that cannot be read is named.
    """
    try:
        lines = Path(path).read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the hostfile {path} cannot be read: {error}.") from None
    bare = [(number, line.partition("#")[0].strip()) for number, line in enumerate(lines, 1)]
    found = [_host(text, f"{path}, line {number}") for number, text in bare if text]
    if not found:
        raise ConfigError(f"the hostfile {path} names no host: write lines like `host slots=4`.")
    return found


def _host(text: str, where: str) -> Host:
    found = _LINE.fullmatch(text)
    count = (found["short"] or found["slots"] or "1") if found else ""
    if found is None or not count.isdecimal() or int(count) < 1:
        raise ConfigError(f"{where}: {text!r} is no host with its slots: write host:4 (in a file: host slots=4).")
    return Host(found["name"], int(count))


def named(hosts: str | None, hostfile: str | None, np: int) -> list[Host]:
    """Return the hosts of a job; without a word of the user's this one, with room for every rank.

    Raises
    ------
    ConfigError
        Both were given, or one of them cannot be read.
    """
    if hosts and hostfile:
        raise ConfigError("hosts and hostfile were both given: they say the same thing, keep one of them.")
    if hosts:
        return parse(hosts)
    return read_hostfile(hostfile) if hostfile else [Host("localhost", np)]


def places(hosts: Sequence[Host], np: int) -> list[int]:
    """Return for each rank the index of its host: host by host, as many as it has slots.

    Raises
    ------
    ConfigError
        There are fewer slots than ranks.
    """
    slots = [index for index, host in enumerate(hosts) for _ in range(host.slots)]
    if len(slots) < np:
        raise ConfigError(
            f"np={np} ranks do not fit on {', '.join(f'{h.name}:{h.slots}' for h in hosts)}, which has {len(slots)} "
            "slot(s) in all: give a host more slots (host:8; they may be more than its cores), or ask for fewer ranks."
        )
    return slots[:np]


def is_local(name: str) -> bool:
    """Tell whether the name is this host's: by its spelling, or because its address can be bound here."""
    if name in _LOCAL or name == socket.gethostname():
        return True
    try:
        found = socket.getaddrinfo(name, 0, type=socket.SOCK_STREAM)
    except OSError:
        return False  # a name that only ssh knows
    return any(_binds(family, address) for family, _, _, _, address in found)


def _binds(family: int, address: Iterable[object]) -> bool:
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind(tuple(address))
    except OSError:
        return False
    return True
