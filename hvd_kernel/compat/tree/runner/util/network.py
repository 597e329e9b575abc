"""``horovod.runner.util.network``: the addresses of this host."""

from __future__ import annotations

import socket
from collections.abc import Callable, Collection, Iterable
from typing import Any

import psutil

_LOOPBACK = "127.0.0.1"


def _addresses() -> dict[str, list[str]]:
    found = psutil.net_if_addrs().items()
    return {name: [each.address for each in listed if each.family == socket.AF_INET] for name, listed in found}


def get_local_host_addresses() -> set[str]:
    """Return every IPv4 address of this host."""
    return {address for listed in _addresses().values() for address in listed}


def get_local_intfs(nic: str | None = None) -> set[str]:
    """Return the interfaces with the address 127.0.0.1; with ``nic`` that one alone, if it has it."""
    return {name for name, listed in _addresses().items() if _LOOPBACK in listed and nic in {None, name}}


def resolve_host_address(host_name: str) -> str | None:
    """Return a host's IPv4 address; None where its name is not known."""
    try:
        return socket.gethostbyname(host_name)
    except socket.gaierror:
        return None


def filter_local_addresses(all_host_names: Iterable[str]) -> list[str]:
    """Return the hosts that are not this one."""
    here = get_local_host_addresses()
    return [name for name in all_host_names if resolve_host_address(name) not in here]


def find_port(server_factory: Callable[[tuple[str, int]], Any]) -> tuple[Any, int]:
    """Return what ``server_factory`` makes of a free port, and the port.

    Raises
    ------
    OSError
        It can have none.
    """
    server = server_factory(("", 0))
    return server, int(getattr(server, "socket", server).getsockname()[1])


def get_driver_ip(nics: Collection[str]) -> str:
    """Return the address of the first of these interfaces.

    Raises
    ------
    RuntimeError
        It has none.
    """
    first = next(iter(nics))
    found = _addresses().get(first)
    if not found:
        raise RuntimeError(f"The interface {first} has no IPv4 address; this host has {', '.join(_addresses())}.")
    return found[-1]
