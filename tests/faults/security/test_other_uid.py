"""Another user of the machine, a child that runs as user nobody: it cannot read, attach or contact anything of ours.

Rows I7, B6, S1, S9.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import socket
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hvdtest.cluster import Traces, living
from hvdtest.kernel import Kernel
from hvdtest.place import Place
from hvdtest.surface import descriptors, family, listeners, proc_file

pytestmark = [pytest.mark.jupyter, pytest.mark.mp, pytest.mark.timeout(400)]
# ruff: noqa: PTH123, PTH208, SIM115 - a probe after fork() uses what needs no import

NOBODY = 65534
PTRACE_ATTACH = 16
HALF = b"\xff" + bytes(8) + b"\x7f\x03\x01NULL" + bytes(48)


def as_nobody(probe: Callable[[], Any]) -> Any:
    """Run a function in a child of another user and group, and return its result (JSON)."""
    if os.geteuid() != 0:
        pytest.skip("to become another user the tests must run as root")
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        code = 1
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            os.write(writing, json.dumps(probe()).encode())
            code = 0
        finally:
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading, "rb") as said:
        text = said.read()
    assert os.waitpid(child, 0)[1] == 0, "the probe itself failed"
    return json.loads(text)


def allowed(what: Callable[[], Any]) -> bool:
    try:
        what()
    except OSError:
        return False
    return True


def folders_of(pid: int) -> list[str]:
    words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    found: list[str] = next(json.loads(word) for word in words if word.startswith("{"))["folders"]
    return found


def test_i7_no_file_of_the_cluster_can_be_read_or_listed(place: Place) -> None:
    pid = next(pid for pid, room in place.family().items() if room == "supervisor")
    folders = folders_of(pid)
    files = [str(path) for folder in folders for path in Path(folder).rglob("*")]
    connection = place.kernel.manager.connection_file
    assert len(files) >= 5

    def probe() -> list[str]:
        seen = [path for path in (*files, connection) if allowed(lambda path=path: os.open(path, os.O_RDONLY))]
        return seen + [path for path in folders if allowed(lambda path=path: os.listdir(path))]

    assert as_nobody(probe) == []


def test_i7_other_users_cannot_read_our_processes(place: Place) -> None:
    pids = list(place.family())
    names = ("environ", "mem", "maps", "fd", "io", "syscall", "stack")

    def probe() -> list[str]:
        seen = []
        for pid in pids:
            for name in names:
                path = f"/proc/{pid}/{name}"
                if allowed(lambda path=path: os.listdir(path) if path.endswith("/fd") else open(path, "rb").read(1)):
                    seen.append(path)
            if ctypes.CDLL(None).ptrace(PTRACE_ATTACH, pid, None, None) == 0:
                seen.append(f"ptrace {pid}")
            if allowed(lambda pid=pid: os.kill(pid, 0)):
                seen.append(f"kill {pid}")
        return seen

    assert len(pids) >= 5
    assert as_nobody(probe) == []


def test_i7_no_command_line_shows_a_key(place: Place) -> None:
    """Every user may read command lines."""
    for pid in place.family():
        assert place.seen_in(proc_file(pid, "cmdline")) == []


def test_i7_s1_no_port_answers_another_user(place: Place) -> None:
    ports = [(each.kind, each.port) for each in listeners(place.family()) if each.room != "launcher"]

    def probe() -> list[Any]:
        heard, strangers = [], []
        for kind, port in ports:  # all at once: each is left waiting for two seconds
            try:
                stranger = socket.create_connection(("::1" if kind == "tcp6" else "127.0.0.1", port), timeout=20)
                stranger.sendall(HALF)
            except OSError:
                continue
            strangers.append((port, stranger))
        for port, stranger in strangers:
            said = b""
            try:
                while part := stranger.recv(4096):
                    said += part
            except OSError:
                pass
            if len(said) > 64 or b"READY" in said:
                heard.append([port, said.hex()])
        return heard

    assert len(ports) >= 20
    assert as_nobody(probe) == []


def test_s9_shared_memory_of_ranks_cannot_be_opened(place: Place) -> None:
    pids = [pid for pid, room in place.family().items() if room == "rank"]
    names = [str(entry) for pid in pids for entry, target in descriptors(pid).items() if "memfd" in target]
    assert names

    def probe() -> list[str]:
        shown = [
            name
            for name in os.listdir("/dev/shm")
            if allowed(lambda name=name: os.open(f"/dev/shm/{name}", os.O_RDONLY))
        ]
        ours = [name for name in shown if name.startswith(("hvd", "open_mpi", "sm_segment"))]
        return ours + [name for name in names if allowed(lambda name=name: os.open(name, os.O_RDWR))]

    assert as_nobody(probe) == []


@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.nightly)])
def test_b6_concurrent_kernels_are_independent(tmp_path: Path, count: int) -> None:
    with ExitStack() as stack:
        kernels = [stack.enter_context(Kernel(tmp_path)) for _ in range(count)]
        started = [kernel.start(f"%%hvdrun -np 1\nmine = {at}\nmine") for at, kernel in enumerate(kernels)]
        for at, (kernel, cell) in enumerate(zip(kernels, started, strict=True)):
            assert kernel.finish(cell, timeout=150).shown == [f"[0] {at}"]
        families = [family(kernel.pid) for kernel in kernels]
        places = [folders_of(next(p for p, room in each.items() if room == "supervisor")) for each in families]
        ports = [{each.port for each in listeners(members) if each.kind != "unix"} for members in families]
        assert len({folder for each in places for folder in each}) == 2 * count
        assert len(set().union(*ports)) == sum(map(len, ports))
        assert len(set().union(*families)) == sum(map(len, families))
        order = random.Random(6).sample(range(count), count)
        dying, staying = order[: count // 2], order[count // 2 :]
        for at in dying:
            kernels[at].manager.provisioner.process.kill()
            Traces(set(families[at]), set(places[at]), set()).wait_none_left()
        for at in staying:
            assert living(set(families[at])) == set(families[at])
            assert kernels[at].run("%%hvdrun\nmine, hvd.size()").shown == [f"[0] ({at}, 1)"]
