"""Attack surface of a process tree: its listeners, and their answers to unauthenticated bytes.

Terms.
  room       which of our processes: kernel, supervisor, launcher (Open MPI's), rank
  listener   a socket that any process may connect to: a TCP address, or the name of a unix socket
"""

from __future__ import annotations

import selectors
import socket
import struct
import time
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hvdtest.cluster import processes_below

ROOMS = {"hvd_kernel.kernel": "kernel", "hvd_kernel.cluster.supervisor": "supervisor", "hvd_kernel.worker": "rank"}
_LISTENS = {"tcp": "0A", "tcp6": "0A", "udp": "07", "udp6": "07"}
_ACCEPTS = 0x10000


@dataclass(frozen=True, order=True)
class Listener:
    """``address`` is an IP address, or the name of a unix socket (@ for an abstract one), which has no port."""

    room: str
    kind: str
    address: str
    port: int
    pid: int

    def connect(self) -> socket.socket:
        if self.kind == "unix":
            client = socket.socket(socket.AF_UNIX)
            client.connect(self.address.replace("@", "\0", 1))
            return client
        return socket.create_connection(("::1" if self.kind == "tcp6" else "127.0.0.1", self.port), timeout=60)


def room(pid: int) -> str:
    """Return the room of a process; the name of its command for other processes."""
    words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    name = Path(f"/proc/{pid}/comm").read_text().strip()
    if name == "prterun":  # its arguments contain the command of the ranks
        return "launcher"
    return next((ROOMS[word] for word in words if word in ROOMS), name)


def family(pid: int) -> dict[int, str]:
    """Return the rooms of a process and all its descendants by pid."""
    return rooms({pid} | processes_below(pid))


def rooms(pids: Iterable[int]) -> dict[int, str]:
    """Return the rooms of processes by pid, without exited processes."""
    found = {}
    for pid in pids:
        with suppress(OSError):
            found[pid] = room(pid)
    return found


def proc_file(pid: int, name: str) -> bytes:
    """Return a file of a process below /proc; empty if the process has exited."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def listeners(pids: Iterable[int]) -> list[Listener]:
    """Return all TCP, UDP and unix listeners of the processes, sorted."""
    known = rooms(pids)
    owner = {inode: pid for pid in known for inode in _sockets(pid)}
    found = [_unix(line, owner, known) for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    for kind, state in _LISTENS.items():
        for line in Path(f"/proc/net/{kind}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == state and fields[9] in owner:
                address, _, port = fields[1].partition(":")
                pid = owner[fields[9]]
                found.append(Listener(known[pid], kind, _ip(address), int(port, 16), pid))
    return sorted(each for each in found if each is not None)


def _unix(line: str, owner: dict[str, int], known: dict[int, str]) -> Listener | None:
    fields = line.split()
    if fields[6] not in owner or not int(fields[3], 16) & _ACCEPTS:
        return None
    pid = owner[fields[6]]
    return Listener(known[pid], "unix", fields[7] if len(fields) > 7 else "", 0, pid)


def descriptors(pid: int) -> dict[Path, str]:
    """Return the open descriptors of a process: path below /proc -> target. The process may close some meanwhile."""
    found = {}
    with suppress(OSError):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                found[entry] = str(entry.readlink())
    return found


def _sockets(pid: int) -> set[str]:
    return {link[8:-1] for link in descriptors(pid).values() if link.startswith("socket:[")}


def _ip(text: str) -> str:
    words = [struct.pack("<I", int(text[at : at + 8], 16)) for at in range(0, len(text), 8)]
    packed = b"".join(words)
    return socket.inet_ntop(socket.AF_INET if len(packed) == 4 else socket.AF_INET6, packed)


@dataclass
class Answer:
    """Answer of a listener to unauthenticated bytes."""

    listener: Listener
    said: bytes = b""
    closed: bool = False


def ask(where: Iterable[Listener], data: bytes, seconds: float) -> list[Answer]:
    """Send the same bytes to all listeners, and receive until all have closed or the time is over."""
    answers = []
    with selectors.DefaultSelector() as waiting, ExitStack() as open_:
        for listener in where:
            client = open_.enter_context(listener.connect())
            answers.append(Answer(listener))
            client.setblocking(False)
            waiting.register(client, selectors.EVENT_READ, answers[-1])
            with suppress(OSError):
                client.send(data)
        deadline = time.monotonic() + seconds
        while waiting.get_map() and time.monotonic() < deadline:
            for key, _ in waiting.select(0.1):
                _receive(key.fileobj, key.data)
                if key.data.closed:
                    waiting.unregister(key.fileobj)
    return answers


def _receive(client: Any, answer: Answer) -> None:
    try:
        part = client.recv(65536)
    except OSError:
        part = b""
    answer.said += part
    answer.closed = not part
