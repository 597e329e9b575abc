"""Detached clusters without processes: their notes, names and sockets, and the time limit without a kernel."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import tempfile
import threading
import time
from dataclasses import asdict
from pathlib import Path

import msgspec
import pytest

from hvd_kernel.cluster.supervisor import Detachment
from hvd_kernel.errors import ClusterError
from hvd_kernel.magics import messages
from hvd_kernel.magics.cluster_manager import ClusterManager
from hvd_kernel.processes import detached, leftovers
from hvd_kernel.processes.channel import attachment
from hvd_kernel.processes.channel.control_channel import ControlChannel, pack
from hvd_kernel.processes.channel.messages import ChannelClosed, Detach, Message, Remember, SetSpares, Stop
from hvd_kernel.processes.cluster_spec import ClusterSpec
from hvd_kernel.processes.detached import DetachedCluster, DetachedNote
from hvd_kernel.processes.event_loop import EventLoop
from hvd_kernel.processes.lifetime import HOLDER, claim, environment_of, holder_of, mark
from hvd_kernel.processes.limits import Limits

PATIENCE_S = 60.0
WISH = Detach("train", "/home/ann", 4, 12.0)


def cluster(name: str, place: str = "/home/ann", kernel: int = 0) -> DetachedCluster:
    return DetachedCluster(
        DetachedNote(name, place, 4, kernel, time.time() - 200_000, 12.0), Path("/tmp", f"hvd-{name}"), "1:2:3:4"
    )


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cluster's private folder, where its path is longer than a socket's may be."""
    place = tmp_path / ("long" * 30)
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    made = place / "hvd-one"
    made.mkdir(mode=0o700)
    return made


def pair() -> tuple[ControlChannel, ControlChannel]:
    """The controller's end, and the agent's."""
    here, there = socket.socketpair()
    return ControlChannel(here, here), ControlChannel(there, there, is_agent=True)


def until_it_has_its_environment(pid: int) -> None:
    """Wait until /proc shows the program's environment, which is later than Popen's return."""
    deadline = time.monotonic() + PATIENCE_S
    while HOLDER not in environment_of(pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_only_cluster_of_a_folder_needs_no_name() -> None:
    found = [cluster("other", "/home/bob"), cluster("train")]
    assert detached.choose(found, "", "/home/ann") is found[1]
    assert detached.choose(found, "other", "/home/ann") is found[0]


def test_attach_prefers_a_cluster_without_a_kernel() -> None:
    used, free = cluster("a", kernel=7), cluster("b")
    assert detached.choose([used, free], "", "/home/ann") is free
    assert detached.choose([used], "", "/home/ann") is used, "whoever asks for it is told who has it"


def test_several_clusters_of_a_folder_are_named() -> None:
    with pytest.raises(ClusterError) as said:
        detached.choose([cluster("a"), cluster("b")], "", "/home/ann")
    assert str(said.value) == (
        "2 detached clusters are of /home/ann; say which: `%hvd attach NAME`:"
        "\n  a: 4 ranks of /home/ann, without a kernel for 2 d"
        "\n  b: 4 ranks of /home/ann, without a kernel for 2 d"
    )


@pytest.mark.parametrize(
    ("found", "name", "said"),
    [
        ([], "", "no detached cluster is of /home/ann: `%hvd start -np 4 --keep` starts one"),
        ([], "train", "no detached cluster is of the name train: `%hvd start -np 4 --keep` starts one"),
        (
            [cluster("b", "/home/bob", kernel=7)],
            "",
            """no detached cluster is of /home/ann; `%hvd attach NAME` takes one of these:
  b: 4 ranks of /home/bob, used by kernel 7 for 2 d""",
        ),
    ],
)
def test_attach_without_a_cluster_names_the_remedy(found: list[DetachedCluster], name: str, said: str) -> None:
    with pytest.raises(ClusterError) as raised:
        detached.choose(found, name, "/home/ann")
    assert str(raised.value) == said


def test_first_free_name() -> None:
    assert detached.free_name([]) == "ranks"
    assert detached.free_name([cluster("ranks"), cluster("ranks3"), cluster("train")]) == "ranks2"


@pytest.mark.parametrize(
    ("seconds", "text"), [(-1, "0 s"), (59.9, "59 s"), (60, "1 min"), (7300, "2 h"), (90000, "1 d")]
)
def test_ages(seconds: float, text: str) -> None:
    assert detached.age(seconds) == text


def detachment(folder: Path, wish: Detach = WISH) -> tuple[Detachment, EventLoop]:
    """Return a cluster that kernel 7 has detached; its loop ends when no kernel has attached for too long."""
    loop = EventLoop()
    return Detachment([folder], wish, 7, loop, loop.stop), loop


def test_s6_detached_cluster_files_are_private(folder: Path) -> None:
    claim(folder)
    before = os.umask(0)
    try:
        detached_cluster, _ = detachment(folder)
    finally:
        os.umask(before)
    [found] = detached.clusters()
    assert (found.folder, found.holder) == (folder, mark(os.getpid()))
    assert (found.note.name, found.note.place, found.note.n, found.note.kernel) == ("train", "/home/ann", 4, 7)
    modes = {path.name: oct(stat.S_IMODE(path.stat().st_mode)) for path in folder.iterdir()}
    assert modes == dict.fromkeys(("holder", "kept", "control"), "0o600")
    detached_cluster.released()
    assert detached.clusters()[0].note.kernel == 0


def test_time_limit_runs_while_no_kernel_is_attached(folder: Path) -> None:
    cluster, loop = detachment(folder, Detach("train", "/home/ann", 4, 1e-9))
    assert loop._patience() is None
    cluster.released()
    cluster.attached(8)
    assert loop._patience() is None, "a kernel has it"
    cluster.released()
    loop.run()  # until it has expired
    patient, loop = detachment(folder)
    patient.released()
    left = loop._patience()
    assert left is not None
    assert 11 * 3600 < left <= 12 * 3600


def test_both_ends_of_a_socket_know_the_peers_process(folder: Path) -> None:
    listening = attachment.listen(folder)
    channel, supervisor = attachment.connect(folder)
    kernel = attachment.accept(listening)
    assert kernel is not None
    assert (supervisor, kernel.pid, kernel.is_gone) == (os.getpid(), os.getpid(), False)
    channel.send(Stop(1.5))
    assert kernel.channel.receive() == [Stop(1.5)]
    kernel.close()
    assert channel.receive() == [ChannelClosed()]
    channel.send(Stop(0.0))  # into the void
    channel.close()
    channel.close()


def test_channel_reassembles_fragmented_messages() -> None:
    here, there = pair()
    long = Remember({"x": "x" * 100_000})
    sending = threading.Thread(target=lambda: (there.send(long), there.send(SetSpares(2)), there.close()))
    sending.start()
    received: list[Message] = []
    while not here.closed:
        received += here.receive()
    sending.join()
    assert received == [long, SetSpares(2), ChannelClosed()]


def test_later_messages_are_skipped_and_invalid_ones_raise() -> None:
    _, there = pair()
    later = msgspec.msgpack.encode({"type": "Teleport", "ranks": [1]})
    assert there.feed(len(later).to_bytes(4) + later + pack(SetSpares(2))) == [SetSpares(2)]
    wrong = msgspec.msgpack.encode({"type": "SetSpares", "count": "many"})
    with pytest.raises(msgspec.ValidationError, match="Expected `int`, got `str`"):
        there.feed(len(wrong).to_bytes(4) + wrong)


def test_specification_of_a_detached_cluster_round_trips() -> None:
    spec = ClusterSpec(2, mpi_args=("--mca", "x"), limits=(Limits(0.5, 2**30), Limits()))
    here, there = pair()
    here.send(Remember({"spec": asdict(spec)}))
    (message,) = there.receive()
    assert isinstance(message, Remember)
    assert msgspec.convert(message.state["spec"], ClusterSpec) == spec


def test_new_ranks_are_not_mistaken_for_waiting_ones(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manager, said = ClusterManager(), list[str]()
    cluster, _ = detachment(folder, Detach("train", manager.place, 4, 12.0))
    monkeypatch.setattr(ClusterManager, "start", lambda *_, **__: None)
    manager.ensure(ClusterSpec(1), said.append, print)
    assert said == [], "another kernel has them"
    cluster.released()
    manager.ensure(ClusterSpec(1), said.append, print)
    assert said == [messages.detached_cluster_exists("train")]


def test_a17_detached_cluster_is_neither_orphan_nor_leftover(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leftovers, "_MOMENT_S", 0.0)
    gone = subprocess.Popen(["sleep", "600"])
    of_gone = mark(gone.pid)
    gone.kill()
    gone.wait()
    supervisor = subprocess.Popen(["sleep", "600"], env={HOLDER: of_gone, "PATH": os.environ["PATH"]})
    try:
        until_it_has_its_environment(supervisor.pid)
        assert supervisor.pid in {each.pid for each in leftovers.orphans()}
        detached.write(folder, DetachedNote("train", "/home/ann", 4, kernel=0, since=0.0, hours=12.0))
        (folder / "holder").write_text(mark(supervisor.pid))
        assert supervisor.pid not in {each.pid for each in leftovers.orphans()}
        leftovers.sweep()
        assert holder_of(folder) == mark(supervisor.pid)
    finally:
        supervisor.kill()
        supervisor.wait()
    assert detached.clusters() == []
    assert folder in leftovers.folders(), "without its supervisor it is kept no more"
