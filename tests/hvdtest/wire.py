"""The line between the hosts 0 and 1 of hvdtest.hosts, in our hands: every frame on it goes through this process.

Terms.
  frame   what one host sends to the other; the kernel's segmentation makes some of them larger than the line would
  silent  a host whose frames are thrown away: nobody is told, and what it is sent still arrives
"""

from __future__ import annotations

import random
import selectors
import socket
import subprocess
import threading
from typing import Self

from hvdtest.hosts import Hosts

_ALL = 3  # ETH_P_ALL
_PACKET, _VNET_HDR = 263, 15  # SOL_PACKET, PACKET_VNET_HDR: a frame comes with what its segmentation left undone
_OWN = 4  # PACKET_OUTGOING
_SWITCH = -1
_LARGEST = 1 << 17


class Wire:
    """Between two hosts that have been joined by the switch so far; as long as the ``with`` block."""

    def __init__(self, hosts: Hosts, seed: int = 1) -> None:
        self.loss = 0.0  # the share of frames that are thrown away
        self.silent: frozenset[int] = frozenset()
        self.lost = self.passed = 0
        self._hosts, self._chance = hosts, random.Random(seed)
        self._woken, self._wake = socket.socketpair()
        self._thread = threading.Thread(target=self._carry, name="wire", daemon=True)
        with hosts.inside(_SWITCH):
            self._ports = [_port(f"h{host}") for host in (0, 1)]

    def slow_down(self, rate: str) -> None:
        """Let both directions carry so much, in tc's words: 1mbit."""
        for host in (0, 1):
            self._tc("add", host, "tbf", "rate", rate, "burst", "16kb", "latency", "400ms")

    def speed_up(self) -> None:
        for host in (0, 1):
            self._tc("del", host)

    def _tc(self, what: str, host: int, *how: str) -> None:
        with self._hosts.inside(_SWITCH):
            subprocess.run(["tc", "qdisc", what, "dev", f"h{host}", "root", *how], check=True)

    def _carry(self) -> None:
        with selectors.DefaultSelector() as ready:
            for number, port in enumerate(self._ports):
                ready.register(port, selectors.EVENT_READ, number)
            ready.register(self._woken, selectors.EVENT_READ)
            while True:
                for key, _ in ready.select():
                    if key.fileobj is self._woken:
                        return
                    self._pass(key.data)

    def _pass(self, host: int) -> None:
        try:
            frame, (_, _, kind, *_) = self._ports[host].recvfrom(_LARGEST, socket.MSG_DONTWAIT)
        except OSError:  # nothing after all, or the port is down
            return
        if kind == _OWN:
            return
        if host in self.silent or self._chance.random() < self.loss:
            self.lost += 1
            return
        self.passed += 1
        try:
            self._ports[1 - host].send(frame)
        except OSError:  # the line is full, or down: lost as on any other
            self.lost += 1

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._wake.close()
        self._thread.join(10)
        self._woken.close()
        for port in self._ports:
            port.close()
        with self._hosts.inside(_SWITCH):
            for host in (0, 1):
                subprocess.run(["ip", "link", "set", f"h{host}", "master", "hvd"], check=True)


def _port(device: str) -> socket.socket:
    """Unplug the host from the switch."""
    subprocess.run(["ip", "link", "set", device, "nomaster"], check=True)
    port = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL))
    port.setsockopt(_PACKET, _VNET_HDR, 1)
    port.bind((device, 0))
    return port
