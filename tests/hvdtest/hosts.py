"""Several hosts on one machine: network namespaces joined by a bridge. Everything goes with the processes that hold it.

Terms.
  holder   a process that does nothing but keep one host's namespaces alive, of its network and its name; it ends when
           its input is closed, also by our death
  switch   the host with the bridge; the others see it as the wire between them
"""

from __future__ import annotations

import ctypes
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from hvdtest.launch import RankPool, _Rank, free_port

_SPACES = {"net": 0x40000000, "uts": 0x04000000}  # namespace -> its CLONE_NEW*
_APART = ("unshare", "--net", "--uts", "--")
_HOLD = [*_APART, "sh", "-c", "ip link set lo up && echo && exec cat >/dev/null"]
_DOCKER = "ip link add docker0 type bridge && ip addr add 172.17.0.1/16 dev docker0 && ip link set docker0 up"
_SSH = """#!/bin/bash
while [[ $1 == -* ]]; do case $1 in -T | -x) shift ;; *) shift 2 ;; esac; done
host=$1; shift
case $host in
{cases}
esac
"""


def why_not() -> str:
    """Return why this machine cannot emulate several hosts; empty if it can."""
    for program in ("unshare", "nsenter", "ip"):
        if shutil.which(program) is None:
            return f"the program {program} is missing"
    tried = subprocess.run(
        [*_APART, "ip", "link", "add", "hvd0", "type", "veth", "peer", "name", "hvd1"],
        capture_output=True,
        text=True,
        check=False,
    )
    return "" if tried.returncode == 0 else f"no network namespaces with veth: {tried.stderr.strip()}"


class Hosts:
    """``count`` hosts; number i has the address 10.77.0.(i+1), and is called host<i> or by ``name``, which all have then.

    ``docker``: their first interface is Docker's, which has the same address on all of them.
    """

    def __init__(self, count: int, *, name: str = "", docker: bool = False) -> None:
        self._own = {space: os.open(f"/proc/self/ns/{space}", os.O_RDONLY | os.O_CLOEXEC) for space in _SPACES}
        self._holders: list[subprocess.Popen[str]] = []
        try:
            switch = self._hold()
            _inside_of(switch, "ip link add hvd type bridge && ip link set hvd up")
            for number in range(count):
                host = self._hold()
                _inside_of(host, f"hostname {name or f'host{number}'}")
                if docker:
                    _inside_of(host, _DOCKER)
                _inside_of(switch, f"ip link add h{number} type veth peer name eth0 netns {host.pid}")
                _inside_of(switch, f"ip link set h{number} master hvd up")
                _inside_of(host, f"ip addr add {address(number)}/24 dev eth0 && ip link set eth0 up")
        except BaseException:
            self.close()
            raise

    def _hold(self) -> subprocess.Popen[str]:
        holder = subprocess.Popen(_HOLD, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._holders.append(holder)
        assert holder.stdout is not None
        assert holder.stdout.readline() == "\n", "no network namespace"
        return holder

    @contextmanager
    def inside(self, host: int) -> Iterator[None]:
        """Run this thread, and the processes that it starts, on that host."""
        for space in _SPACES:
            with Path(f"/proc/{self._holders[1 + host].pid}/ns/{space}").open() as there:
                _enter(there.fileno(), space)
        try:
            yield
        finally:
            for space, own in self._own.items():
                _enter(own, space)

    def ssh(self, folder: Path) -> dict[str, str]:
        """Put a program ``ssh`` there that runs commands on these hosts; return the variable by which it is found."""
        cases = [
            f'{address(number)}) exec nsenter --net --uts --target={holder.pid} -- bash -c "$*" ;;'
            for number, holder in enumerate(self._holders[1:])
        ]
        program = folder / "ssh"
        program.write_text(_SSH.format(cases="\n".join(cases)))
        program.chmod(0o755)
        return {"PATH": f"{folder}:{os.environ['PATH']}"}

    def close(self) -> None:
        for holder in self._holders:
            for stream in (holder.stdin, holder.stdout):
                assert stream is not None
                stream.close()
            holder.wait(60)
        for own in self._own.values():
            os.close(own)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def address(host: int) -> str:
    return f"10.77.0.{host + 1}"


def _enter(namespace: int, space: str) -> None:
    if ctypes.CDLL(None, use_errno=True).setns(namespace, _SPACES[space]) != 0:
        raise OSError(ctypes.get_errno(), "setns")


def _inside_of(holder: subprocess.Popen[str], command: str) -> None:
    subprocess.run(["nsenter", "--net", "--uts", f"--target={holder.pid}", "--", "sh", "-c", command], check=True)


class HostPool(RankPool):
    """A RankPool over several hosts: ``where[r]`` is the host of rank r. ``more(rank)`` gives further variables."""

    def __init__(
        self, hosts: Hosts, where: list[int], more: Callable[[int], dict[str, str]] = lambda _: {}, **env: str
    ) -> None:
        self.np, self.transport, self.broken = len(where), "auto", False
        self.folder = tempfile.TemporaryDirectory(prefix="hvdtest-")
        with hosts.inside(where[0]):
            self.port = free_port()
        self.ranks: list[Any] = []
        for rank, host in enumerate(where):
            variables = {
                "HOROVOD_RANK": str(rank),
                "HOROVOD_SIZE": str(len(where)),
                "HOROVOD_CONTROLLER_ADDR": address(where[0]),
                "HOROVOD_CONTROLLER_PORT": str(self.port),
                "HVDTEST_RANK": "1",
            }
            with hosts.inside(host):
                self.ranks.append(_Rank(Path(self.folder.name), {**variables, **env, **more(rank)}, rank))


def connected(hosts: Hosts, host: int, to: tuple[str, int]) -> socket.socket | None:
    """Return a connection from that host, or None if no process listens."""
    with hosts.inside(host):
        try:
            return socket.create_connection(to, timeout=2)
        except OSError:
            return None
