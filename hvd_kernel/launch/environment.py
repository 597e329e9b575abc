"""The environment of the ranks: the launcher's variables, and those that define a rank. Pure.

Terms.
  carried  passed to another host: not what describes the launcher's own machine or session
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hvd_kernel.settings.network import addresses, reached

Env = dict[str, str]

_LOCAL_PREFIXES = ("SSH_", "XDG_", "DBUS_", "BASH_FUNC_")
_LOCAL_NAMES = frozenset(
    {
        *("_", "OLDPWD", "PWD", "SHLVL", "HOSTNAME", "DISPLAY", "XAUTHORITY", "TMPDIR"),
        *("HOME", "USER", "LOGNAME", "MAIL", "SHELL"),
    }
)


def carried(env: Mapping[str, str]) -> Env:
    """Return the variables that make sense on another host."""
    return {n: v for n, v in env.items() if not n.startswith(_LOCAL_PREFIXES) and n not in _LOCAL_NAMES}


def shared(np: int, rendezvous: tuple[str, int], secret: str) -> Env:
    """Return the variables of all ranks; Horovod's names for the rendezvous are set for scripts that read them."""
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
    """Return the variables of each rank alone: ``hosts[r]`` identifies the host of rank r, ``names[r]`` is its name."""
    return [_own(rank, hosts, names[rank]) for rank in range(len(hosts))]


def _own(rank: int, hosts: Sequence[str], name: str) -> Env:
    on_host = [other for other, host in enumerate(hosts) if host == hosts[rank]]
    local = on_host.index(rank)
    across = [other for other, host in enumerate(hosts) if hosts[:other].count(host) == local]
    return place(rank, name, (local, len(on_host)), (across.index(rank), len(across)))


def place(rank: int, name: str, local: tuple[int, int], cross: tuple[int, int]) -> Env:
    """Return the variables of one rank; ``local`` and ``cross`` are (rank, size)."""
    values = {"RANK": rank, "HOSTNAME": name, "LOCAL_RANK": local[0], "LOCAL_SIZE": local[1]}
    values |= {"CROSS_RANK": cross[0], "CROSS_SIZE": cross[1]}
    return {f"HOROVOD_{key}": str(value) for key, value in values.items()}


@dataclass(frozen=True)
class Part:
    """One of several launchers of a job, each of which starts its own ranks, for example in a pod of an Indexed Job.

    All ``parts`` have the same number of ranks, ``rendezvous`` and ``secret``.
    """

    index: int
    parts: int
    rendezvous: tuple[str, int]
    secret: str

    def own(self, slots: int, name: str) -> list[Env]:
        """Return the variables of each rank of this part alone."""
        first, cross = self.index * slots, (self.index, self.parts)
        return [place(first + local, name, (local, slots), cross) for local in range(slots)]


def rendezvous(hellos: Sequence[Mapping[str, Any]], remote: Sequence[bool], interface: str) -> tuple[str, int]:
    """Return the address of the rendezvous on the host of rank 0, which is the first host.

    ``hellos``: the hellos of the hosts' agents; ``remote``: whether each was reached through ssh;
    ``interface``: the user's choice.
    """
    first = hellos[0]
    port = int(first["port"])
    if all(hello["machine"] == first["machine"] for hello in hellos):
        return "127.0.0.1", port
    if interface in (here := addresses(first)):
        return here[interface], port
    # SSH_CONNECTION has the address by which each side of a connection is reached.
    if remote[0] and len(first["ssh"]) == 4:  # noqa: PLR2004 - SSH_CONNECTION's words
        return str(first["ssh"][2]), port
    seen = [hello["ssh"][0] for hello, far in zip(hellos, remote, strict=True) if far and hello["ssh"]]
    if not remote[0] and seen:
        return str(seen[0]), port
    return reached(first, hellos) or str(first["name"]), port
