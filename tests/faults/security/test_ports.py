"""Strangers at every port: all listeners are in a table, peers without the key are ignored, and the job continues.

Rows I1, I4, I5, S1, S5, S13, S14, R28, R29. Every test prints what it tried.
"""

from __future__ import annotations

import json
import os
import pickle
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self

import pytest
import zmq
from hvdtest.cluster import until
from hvdtest.place import Place
from hvdtest.surface import Listener, ask, listeners
from jupyter_client.session import Session as Wire
from zmq.utils.monitor import recv_monitor_message

pytestmark = [pytest.mark.jupyter, pytest.mark.mp, pytest.mark.timeout(400)]

EXPECTED = {  # (room, kind, address) -> (at most, why). What is not here fails the run.
    ("kernel", "tcp", "127.0.0.1"): (6, "Jupyter's five channels, and the pipe of forked children"),
    ("supervisor", "tcp", "127.0.0.1"): (18, "ipyparallel's controller"),
    ("rank", "tcp", "127.0.0.1"): (2, "ipyparallel's own view of its heartbeat, one a rank"),
    ("launcher", "tcp", "127.0.0.1"): (1, "PMIx, for the ranks"),
    ("launcher", "tcp", "0.0.0.0"): (1, "PRRTE for other hosts: no setting switches it off"),
    ("launcher", "tcp6", "::"): (1, "the same"),
}
HALF_OPEN = int(os.environ.get("HVD_TEST_HALF_OPEN", "50"))  # at once at each port; a soak takes 1000
GREETING = 64  # bytes of ZMTP's, all that either side says before keys are asked for


def zmtp(mechanism: bytes, *commands: bytes) -> bytes:
    """Send ZMTP 3.1's greeting and the following frames."""
    return b"\xff" + bytes(8) + b"\x7f\x03\x01" + mechanism.ljust(20, b"\0") + bytes(32) + b"".join(commands)


EXPLODED = Path(tempfile.gettempdir(), f"hvd-test-pickle-{os.getpid()}")


class Bomb:
    """A pickle that leaves a file when it is loaded."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(EXPLODED),)


READY = b"\x04\x1a\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER"
STRANGERS = {
    "HTTP": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "TLS hello": bytes.fromhex("16030100c8010000c40303") + bytes(192),
    "ZMTP without a key": zmtp(b"NULL", READY, b"\x00\x04ping"),
    "ZMTP with a password": zmtp(b"PLAIN", b"\x04\x10\x05HELLO\x04root\x04root"),
    "ZMTP with a broken key": zmtp(b"CURVE", b"\x04\xc8\x05HELLO\x01\x00" + bytes(192)),
    "ZMTP 1": b"\x01\x00\x05\x00ping",
    "one byte": b"\xa7",
    "a length of 2**63": zmtp(b"CURVE", b"\x06\x7f" + b"\xff" * 7 + b"A" * 64),
    "a pickle": pickle.dumps(Bomb()),
    "zeros": bytes(4096),
}


def kind(each: Listener) -> tuple[str, str, str]:
    return each.room, each.kind, each.address


def ports(place: Place) -> list[Listener]:
    return listeners(place.family())


def test_r28_s14_every_listener_is_in_the_table(place: Place) -> None:
    found = Counter(map(kind, ports(place)))
    for each, count in sorted(found.items()):
        print(count, *each, EXPECTED.get(each, "NOT IN THE TABLE"))
    assert set(found) == set(EXPECTED)
    assert {each: count for each, count in found.items() if count > EXPECTED[each][0]} == {}


def test_i1_s1_r29_unauthenticated_bytes_get_no_answer(place: Place) -> None:
    ours = [each for each in ports(place) if each.room != "launcher"]
    foreign = [each for each in ports(place) if each.room == "launcher"]
    with place.at_work(), ThreadPoolExecutor(len(STRANGERS)) as all_at_once:
        heard = all_at_once.map(lambda data: ask(ours, data, seconds=60), STRANGERS.values())
        for (name, data), answers in zip(STRANGERS.items(), heard, strict=True):
            print(name, Counter((a.listener.room, len(a.said), a.closed) for a in answers))
            for answer in answers:
                assert len(answer.said) <= GREETING, (name, answer)
                assert answer.said[:1] in (b"", b"\xff"), (name, answer)
                assert answer.closed, (name, answer)
            assert [a for a in ask(foreign, data, seconds=0.3) if a.said] == [], name
    assert not EXPLODED.exists()


@pytest.mark.parametrize("key", ["no key", "a wrong key"])
def test_i1_s1_zeromq_without_the_key_never_shakes_hands(place: Place, key: str) -> None:
    where = [each for each in ports(place) if each.room != "launcher"]
    with place.at_work(), zmq.Context() as context:
        context.setsockopt(zmq.LINGER, 0)  # else a failure would wait for unsent messages
        strangers = [(listener, *_stranger(context, listener.port, wrong=key == "a wrong key")) for listener in where]
        for listener, _, monitor in strangers:
            assert monitor.poll(60_000), f"nobody at {listener}"
        time.sleep(1.0)  # what must not happen has time to
        heard = {listener: (_events(monitor), stranger.poll(0)) for listener, stranger, monitor in strangers}
        context.destroy(linger=0)
    for listener, (events, answered) in heard.items():
        assert events == {zmq.EVENT_CONNECTED}, listener
        assert not answered, listener


def _stranger(context: zmq.Context, port: int, *, wrong: bool) -> tuple[zmq.Socket, zmq.Socket]:
    stranger = context.socket(zmq.DEALER)
    if wrong:
        stranger.curve_serverkey, _ = zmq.curve_keypair()
        stranger.curve_publickey, stranger.curve_secretkey = zmq.curve_keypair()
    monitor = stranger.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_CONNECTED)
    stranger.connect(f"tcp://127.0.0.1:{port}")
    with suppress(zmq.Again):  # the listener has refused the connection already, and ZeroMQ does not connect again
        stranger.send(b"hello", zmq.NOBLOCK)
    return stranger, monitor


def _events(monitor: zmq.Socket) -> set[int]:
    found = set()
    while monitor.poll(0):
        found.add(recv_monitor_message(monitor)["event"])
    return found


def test_s1_server_key_without_session_key_is_refused(place: Place, tmp_path: Path) -> None:
    """Curve hides, the key admits: a signed request of a stranger does nothing."""
    canary = tmp_path / "obeyed"
    forged = Wire(key=b"0" * 64)
    _send_cell(place, forged, f"open({str(canary)!r}, 'w')", place.client["mux"])
    assert place.run("%%hvdrun\nrank").shown == ["[0] 0\n[1] 1"]
    assert not canary.exists()


def test_i4_s5_half_open_connections_are_closed(place: Place) -> None:
    where = [each for each in ports(place) if each.room in {"supervisor", "rank"} and each.kind == "tcp"]
    pid = next(pid for pid, room in place.family().items() if room == "supervisor")
    before, began = _descriptors(pid), time.monotonic()
    with place.at_work():
        answers = ask([each for each in where for _ in range(HALF_OPEN)], b"\xff", seconds=60)
        took = time.monotonic() - began
    print(f"{len(answers)} half-open connections at {len(where)} ports were ended within {took:.1f} s")
    assert {a.listener for a in answers if not a.closed} == set()
    assert max(len(a.said) for a in answers) <= GREETING
    until(lambda: _descriptors(pid) <= before, "the supervisor has let go of all of them")
    assert place.run("%%hvdrun\nhvd.allreduce(torch.ones(1), op=hvd.Sum).item()").shown == ["[0-1] 2.0"]


def test_i5_s3_replayed_requests_are_ignored(place: Place, tmp_path: Path) -> None:
    """Record a request at a proxy; sent again, to the same port and to another, it has no effect."""
    counted = tmp_path / "count"
    code = f"with open({str(counted)!r}, 'a') as file: file.write('x')"
    with Recorder(_port(place.client["mux"])) as recorder:
        _send_cell(
            place,
            _wire(place),
            code,
            f"tcp://127.0.0.1:{recorder.port}",
            until=lambda: counted.exists() and counted.read_text(),
        )
    assert counted.read_text() == "x"
    assert len(recorder.said) > 300, "the greeting, HELLO, INITIATE and the request"
    assert not place.seen_in(recorder.said)
    assert code.encode() not in recorder.said
    with ExitStack() as open_ones:  # both at once: ZeroMQ gives a stranger half a minute to greet it
        strangers = [
            open_ones.enter_context(socket.create_connection(("127.0.0.1", _port(place.client[target])), 60))
            for target in ("mux", "control")
        ]
        for stranger in strangers:
            stranger.sendall(recorder.said)
        for stranger in strangers:
            _until_closed(stranger)
    assert place.run("%%hvdrun\nrank").shown == ["[0] 0\n[1] 1"]
    assert counted.read_text() == "x"


def test_s13_second_process_as_rank_1_gets_no_cells(place: Place) -> None:
    engine = (
        "import sys, json\nfrom ipyparallel.engine.app import IPEngine\nfrom traitlets.config import Config\n"
        "config = Config()\nconfig.IPEngine.enable_nanny = False\n"
        "app = IPEngine.instance(config=config, id=1, connection_info_env=sys.stdin.readline())\n"
        "app.initialize([])\nprint('ready', flush=True)\napp.start()"
    )
    cell = "%%hvdrun\nimport os\nos.getpid()"
    before = place.run(cell).shown
    rogue = subprocess.Popen(
        [sys.executable, "-P", "-c", engine], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        assert rogue.stdin is not None
        assert rogue.stdout is not None
        rogue.stdin.write(json.dumps(place.engine).encode() + b"\n")
        rogue.stdin.flush()
        assert rogue.stdout.readline() == b"ready\n"
        for _ in range(5):
            assert place.run(cell).shown == before
            assert str(rogue.pid) not in place.run("%hvd status").text()
    finally:
        rogue.kill()
        rogue.wait()
    assert place.run(cell).shown == before


def _port(url: str) -> int:
    return int(url.rpartition(":")[2])


def _wire(place: Place) -> Wire:
    return Wire(key=place.client["key"].encode())


def _send_cell(place: Place, wire: Wire, code: str, url: str, until: object = None) -> None:
    """Ask rank 0 to run code as the notebook would, over a connection of our own; wait for ``until``, or a moment."""
    uuids = "import json\nprint(json.dumps(__import__('hvd_kernel.magics').magics.manager_of(get_ipython()).session._wire.uuids))"
    uuid = json.loads(place.run(uuids).text())["0"]
    context = zmq.Context()
    stranger = context.socket(zmq.DEALER)
    stranger.linger = 1000
    stranger.curve_serverkey = place.client["curve_serverkey"].encode()
    stranger.curve_publickey, stranger.curve_secretkey = zmq.curve_keypair()
    stranger.connect(url)
    content = {"code": code, "silent": True, "hvd": {"cell": 0, "run": 10**6, "kernel": ""}}
    wire.send(stranger, "execute_request", content, ident=uuid.encode())
    deadline = time.monotonic() + 60
    while callable(until) and not until() and time.monotonic() < deadline:
        time.sleep(0.02)
    stranger.poll(1000)
    stranger.close()
    context.term()


def _descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def _until_closed(stranger: socket.socket) -> None:
    with suppress(ConnectionResetError):
        while stranger.recv(65536):
            pass


class Recorder:
    """A proxy between a client and a port that forwards everything and records the client's bytes."""

    def __init__(self, port: int) -> None:
        self.said = b""
        self._to = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self._open: list[socket.socket] = [self._listening]

    def __enter__(self) -> Self:
        threading.Thread(target=self._serve, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._open:
            each.close()

    def _serve(self) -> None:
        try:
            client, _ = self._listening.accept()
        except OSError:
            return
        server = socket.create_connection(("127.0.0.1", self._to))
        self._open += [client, server]
        threading.Thread(target=self._pass, args=(server, client, False), daemon=True).start()
        self._pass(client, server, True)

    def _pass(self, source: socket.socket, sink: socket.socket, keep: bool) -> None:
        try:
            while part := source.recv(65536):
                self.said += part if keep else b""
                sink.sendall(part)
        except OSError:
            return
