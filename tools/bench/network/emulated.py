"""Hosts joined by links of a rate and a latency: network namespaces whose packets pass through a link emulator.

netem would do, but not every kernel has it (nor fq); TUN devices are everywhere. What the links are like is measured, by a
plain TCP connection, in the functions at the end. The congestion control is the machine's own.
"""

from __future__ import annotations

import fcntl
import os
import select
import socket
import statistics
import struct
import subprocess
import tempfile
import time
from pathlib import Path

from hvdtest.hosts import Hosts, address

_TUNSETIFF, _TUNSETOFFLOAD = 0x400454CA, 0x400454D0
_IFF_TUN, _IFF_NO_PI, _IFF_VNET_HDR = 0x0001, 0x1000, 0x4000
_CHECKSUM, _SEGMENTATION = 1, 2  # TUN_F_CSUM, TUN_F_TSO4: the kernel passes on what TCP sent in one piece
_MTU, _PIECE = 9000, 17_000
_PORT = 40_078
_SOURCE = Path(__file__).with_name("emulator.cc")


class EmulatedHosts(Hosts):
    """``count`` hosts with the addresses of ``Hosts``; ``rate`` in bits per second, ``latency`` one way, in seconds."""

    def __init__(self, count: int, rate: float, latency: float) -> None:
        super().__init__(count)
        self._folder = tempfile.TemporaryDirectory(prefix="hvd-emulator-")
        self._emulator: subprocess.Popen[bytes] | None = None
        devices: list[int] = []
        try:
            for host in range(count):
                devices.append(self._device(host))  # noqa: PERF401 - what is open is closed, whatever comes
            program = f"{self._folder.name}/emulator"
            subprocess.run(["c++", "-std=c++17", "-O2", "-o", program, str(_SOURCE)], check=True)
            self._emulator = subprocess.Popen(
                [program, str(rate), str(round(latency * 1e9)), *map(str, devices)],
                stdin=subprocess.PIPE,
                pass_fds=devices,
            )
        except BaseException:
            self.close()
            raise
        finally:
            for device in devices:
                os.close(device)

    def _device(self, host: int) -> int:
        with self.inside(host):
            subprocess.run(["ip", "link", "del", "eth0"], check=True)
            device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            flags = _IFF_TUN | _IFF_NO_PI | _IFF_VNET_HDR
            fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", b"eth0", flags))
            fcntl.ioctl(device, _TUNSETOFFLOAD, _CHECKSUM | _SEGMENTATION)
            for command in (
                f"link set eth0 mtu {_MTU} gso_max_size {_PIECE} up",
                f"addr add {address(host)}/24 dev eth0",
            ):
                subprocess.run(["ip", *command.split()], check=True)
        return device

    def close(self) -> None:
        if self._emulator is not None:
            assert self._emulator.stdin is not None
            self._emulator.stdin.close()
            self._emulator.wait(60)
        self._folder.cleanup()
        super().close()

    def connection(self) -> tuple[socket.socket, socket.socket]:
        """Yield the two ends of a TCP connection from host 0 to host 1."""
        with self.inside(1):
            listener = socket.create_server((address(1), _PORT))
        with self.inside(0):
            near = socket.create_connection((address(1), _PORT))
        with listener:
            far, _ = listener.accept()
        for end in (near, far):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return near, far


def latency_of(hosts: EmulatedHosts, times: int = 100) -> float:
    """Return the median seconds of a byte from host 0 to host 1."""
    near, far = hosts.connection()
    with near, far:
        taken = []
        for _ in range(times):
            began = time.perf_counter()
            near.sendall(b"x")
            far.recv(1)
            taken.append(time.perf_counter() - began)
            far.sendall(b"x")
            near.recv(1)
    return statistics.median(taken)


def rate_of(hosts: EmulatedHosts, size: int) -> float:
    """Return the bits per second of a transfer in one connection."""
    near, far = hosts.connection()
    with near, far:
        near.setblocking(False)
        outgoing, incoming = memoryview(bytes(size)), bytearray(1 << 18)
        sent = received = 0
        began = time.perf_counter()
        while received < size:
            reading, writing, _ = select.select([far], [near] if sent < size else [], [])
            received += far.recv_into(incoming) if reading else 0
            sent += near.send(outgoing[sent : sent + (1 << 18)]) if writing else 0
        return 8 * size / (time.perf_counter() - began)


def message_cost_of(hosts: EmulatedHosts, times: int = 100) -> float:
    """Return the processor seconds that sending or receiving a small message costs."""
    near, far = hosts.connection()
    with near, far:
        began = time.process_time()
        for _ in range(times):
            near.sendall(b"x")
            far.recv(1)
            far.sendall(b"x")
            near.recv(1)
        return (time.process_time() - began) / (4 * times)
