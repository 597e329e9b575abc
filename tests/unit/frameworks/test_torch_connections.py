"""torch.distributed while another thread imports it, and which sockets are closed as those of its default group."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from hvd_kernel.frameworks import torch_backend, torch_connections
from hvd_kernel.frameworks.after_import import AfterImport


@pytest.fixture
def half_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Let a thread import a ``torch.distributed`` that has no content before the event is set."""
    started, released = threading.Event(), threading.Event()
    (tmp_path / "hvd_half.py").write_text("import events\nevents.started.set()\nevents.released.wait()\nVALUE = 7\n")
    events = type(sys)("events")
    events.started, events.released = started, released  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "events", events)
    monkeypatch.syspath_prepend(str(tmp_path))
    thread = threading.Thread(target=__import__, args=("hvd_half",))
    thread.start()
    assert started.wait(60)
    monkeypatch.setitem(sys.modules, "torch.distributed", sys.modules["hvd_half"])
    try:
        yield released
    finally:
        released.set()
        thread.join()
        sys.modules.pop("hvd_half", None)


@pytest.mark.usefixtures("half_imported")
def test_group_of_a_half_imported_module_is_not_looked_for() -> None:
    torch_connections.discard_groups()
    with torch_backend.independent():
        pass


def test_a_finder_waits_for_the_thread_that_imports_its_module(half_imported: threading.Event) -> None:
    values: list[int] = []
    finder = AfterImport("hvd_half", lambda module: values.append(module.VALUE))
    begin = threading.Thread(target=finder.begin)
    begin.start()
    half_imported.set()
    begin.join()
    assert values == [7]


def test_only_tcp_connections_are_closed() -> None:
    with ExitStack() as opened:
        before = torch_connections.sockets()
        listener = opened.enter_context(socket.create_server(("127.0.0.1", 0)))
        client = opened.enter_context(socket.create_connection(listener.getsockname()))
        server = opened.enter_context(listener.accept()[0])
        left, right = map(opened.enter_context, socket.socketpair())
        torch_connections.record(before)
        torch_connections.close()
        assert (client.recv(1), server.recv(1)) == (b"", b"")
        left.sendall(b"1")
        assert right.recv(1) == b"1"
        opened.enter_context(socket.create_connection(listener.getsockname()))
    torch_connections.discard_groups()
