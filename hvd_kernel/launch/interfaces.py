"""The network interfaces of this host."""

from __future__ import annotations

import fcntl
import socket
import struct

_SIOCGIFADDR = 0x8915
_IFNAMSIZ = 16


def addresses() -> dict[str, str]:
    """Return the IPv4 address of each interface that has one."""
    found: dict[str, str] = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
        for _, name in socket.if_nameindex():
            asked = struct.pack(f"{_IFNAMSIZ}s24x", name.encode()[: _IFNAMSIZ - 1])
            try:
                answer = fcntl.ioctl(asker, _SIOCGIFADDR, asked)
            except OSError:
                continue  # no IPv4 address
            found[name] = socket.inet_ntoa(answer[20:24])
    return found
