"""The environment of the ranks: what stays of the launcher's, and what tells a rank who it is. Pure.

Terms.
  carried  what goes along to another host: not what describes the launcher's own machine or session
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hvd_kernel.settings.network import addresses, reached

Env = dict[str, str]

_STAYS = ("SSH_", "XDG_", "DBUS_", "BASH_FUNC_")
_STAYS_NAMES = frozenset(
    {
        *("_", "OLDPWD", "PWD", "SHLVL", "HOSTNAME", "DISPLAY", "XAUTHORITY", "TMPDIR"),
        *("HOME", "USER", "LOGNAME", "MAIL", "SHELL"),
    }
)


def carried(env: Mapping[str, str]) -> Env:
    """Return the variables that make sense on another host."""
    return {n: v for n, v in env.items() if not n.startswith(_STAYS) and n not in _STAYS_NAMES}


def shared(np: int, rendezvous: tuple[str, int], secret: str) -> Env:
    """Return what every rank is told; Horovod's own names for the rendezvous are there for scripts that look."""
    address, port = rendezvous[0], str(rendezvous[1])
    return {
        "HOROVOD_SIZE": str(np),
        "HOROVOD_CONTROLLER_ADDR": address,
        "HOROVOD_CONTROLLER_PORT": port,
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": address,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": port,
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HVD_SECRET_KEY": secret,
        "PYTHONUNBUFFERED": "1",
    }


def own(hosts: Sequence[str], names: Sequence[str]) -> list[Env]:
    """Return what each rank alone is told: ``hosts[r]`` tells rank r's host from others, ``names[r]`` is its name."""
    return [_own(rank, hosts, names[rank]) for rank in range(len(hosts))]


def _own(rank: int, hosts: Sequence[str], name: str) -> Env:
    beside = [other for other, host in enumerate(hosts) if host == hosts[rank]]
    local = beside.index(rank)
    like_me = [r for r, host in enumerate(hosts) if hosts[:r].count(host) == local]
    return place(rank, name, (local, len(beside)), (like_me.index(rank), len(like_me)))


def place(rank: int, name: str, local: tuple[int, int], cross: tuple[int, int]) -> Env:
    """Return the variables of one rank; ``local`` and ``cross`` are (rank, size)."""
    words = {"RANK": rank, "HOSTNAME": name, "LOCAL_RANK": local[0], "LOCAL_SIZE": local[1]}
    words |= {"CROSS_RANK": cross[0], "CROSS_SIZE": cross[1]}
    return {f"HOROVOD_{word}": str(value) for word, value in words.items()}


@dataclass(frozen=True)
class Part:
    """One of several launchers of a job: each starts its own ranks, in a pod of an Indexed Job for example.

    ``index`` of ``parts``, each with as many ranks; all have the same ``rendezvous`` and ``secret``.
    """

    index: int
    parts: int
    rendezvous: tuple[str, int]
    secret: str

    def own(self, slots: int, name: str) -> list[Env]:
        """Return what each rank of this part alone is told."""
        first, cross = self.index * slots, (self.index, self.parts)
        return [place(first + local, name, (local, slots), cross) for local in range(slots)]


def rendezvous(hellos: Sequence[Mapping[str, Any]], remote: Sequence[bool], interface: str) -> tuple[str, int]:
    """Return the address of the rendezvous, on the host of rank 0, which is the first.

    ``hellos``: what the agents of the hosts said; ``remote``: which of them were reached through ssh;
    ``interface``: the user's choice.
    """
    first = hellos[0]
    port = int(first["port"])
    if all(hello["machine"] == first["machine"] for hello in hellos):
        return "127.0.0.1", port
    if interface in (here := addresses(first)):
        return here[interface], port
    # ssh knows by which address each side of a connection is reached.
    if remote[0] and len(first["ssh"]) == 4:  # noqa: PLR2004 - SSH_CONNECTION's words
        return str(first["ssh"][2]), port
    seen = [hello["ssh"][0] for hello, far in zip(hellos, remote, strict=True) if far and hello["ssh"]]
    if not remote[0] and seen:
        return str(seen[0]), port
    return reached(first, hellos) or str(first["name"]), port
