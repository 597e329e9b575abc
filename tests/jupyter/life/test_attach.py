"""Ranks that are kept: they outlive their kernel, and the next one finds them with their variables and their cell."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hvdtest.cluster import PATIENCE_S, Traces, drain, execute, living, processes_below, until
from hvdtest.kernel import Kernel, tagged

from hvd_kernel.cluster import Session
from hvd_kernel.cluster.attach import attach, end
from hvd_kernel.errors import ClusterError
from hvd_kernel.processes import detached
from hvd_kernel.processes.channel.control_channel import ControlChannel
from hvd_kernel.processes.channel.messages import Attached, Detached, Message
from hvd_kernel.processes.cluster_spec import ClusterSpec

pytestmark = [pytest.mark.jupyter, pytest.mark.mp, pytest.mark.timeout(300)]

PLACE = str(Path(__file__).parents[2] / "hvdtest")  # where a test's kernel starts

CAST = f"2 ranks of {PLACE}, without a kernel for "

STAND_IN = """
import os, sys, time
from hvd_kernel.cluster import Session
from hvd_kernel.processes.cluster_spec import ClusterSpec
session = Session.start(ClusterSpec(2))
session.keep("train", sys.argv[1])
print("kept", flush=True)
time.sleep(600)
"""

SUM = "import torch\nint(hvd.allreduce(torch.tensor(x), op=hvd.Sum))"

WAITS = """
import pathlib, time
here = pathlib.Path({home!r})
(here / f"begun-{name}-{{rank}}").touch()
who = input("who? ") if rank == {asks} else ""
(here / f"asked-{name}-{{rank}}").touch()
while not (here / "go").exists():
    time.sleep(0.02)
print("went on")
seen = 100 + rank
"""


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Have a temporary folder of our own: detached clusters are found in it, and a test that fails leaves none there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(folder))
        patch.setenv("TMPDIR", str(folder))
        yield
        for each in detached.clusters():
            os.kill(supervisor_of(each), signal.SIGKILL)


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    with alone(tmp_path):
        yield tmp_path


def supervisor_of(found: detached.DetachedCluster) -> int:
    return int(found.holder.partition(":")[0])


def kill_9(kernel: Kernel) -> None:
    """Kill the kernel, and have Jupyter start another one in its place."""
    os.kill(kernel.pid, signal.SIGKILL)
    kernel.client.stop_channels()
    kernel.manager.restart_kernel(now=True)
    kernel._connect()


def pids(status: str) -> list[str]:
    return re.findall(r"^\d +alive +(\d+)", status, re.MULTILINE)


def in_cell(home: Path, name: str, where: str = "begun") -> None:
    until(lambda: all((home / f"{where}-{name}-{rank}").exists() for rank in (0, 1)), "both ranks are in the cell")


def test_a17_a18_detached_ranks_outlive_kill_9_end_by_stop(home: Path) -> None:
    with Kernel(home) as kernel:
        assert kernel.run("%hvd start -np 2 --keep train", timeout=120).text() == (
            "ranks 0-1 ready\nkept as train: after a restart of this kernel `%hvd attach` has them\n"
        )
        kernel.run("%%hvdrun\nx = 10 + rank")
        before = kernel.run("%hvd status").text()
        assert before.endswith("kept as train: they go on when this kernel ends, `%hvd stop` ends them\n")
        [found] = detached.clusters()
        supervisor, first = supervisor_of(found), kernel.pid
        everything = {supervisor} | processes_below(supervisor)
        assert (found.note.name, found.note.place, found.note.n, found.note.kernel) == ("train", PLACE, 2, first)
        with pytest.raises(ClusterError, match=rf"^train is used by kernel {first}: "):
            attach(found, print)

        kill_9(kernel)
        until(lambda: detached.clusters()[0].note.kernel == 0, "the supervisor has seen the kernel's end")
        assert living(everything) == everything
        assert "`%hvd attach train`" in kernel.run("%hvd status").text()
        listed = kernel.run("%hvd clean --dry-run").text()  # not more: other tests' orphans are theirs
        assert (
            f"1 detached cluster; `%hvd attach NAME` goes on, `%hvd clean --kept NAME` ends it:\n  train: {CAST}"
            in listed
        )
        assert not {pid for pid in everything if f"\n  {pid}  " in listed}, "it is no orphan"
        assert (
            kernel.run("%hvd start -np 2 --keep train", allow_error=True)
            .reply["evalue"]
            .startswith("--keep train: there is train: 2 ranks of ")
        )

        assert kernel.run("%hvd attach").text() == "train: ranks 0-1 ready, with all variables\n"
        assert detached.clusters()[0].note.kernel == kernel.pid != first
        assert pids(kernel.run("%hvd status").text()) == pids(before), "the same processes"
        assert kernel.run(f"%%hvdrun\n{SUM}").shown == ["[0-1] 21"]
        assert "already" in kernel.run("%hvd attach", allow_error=True).reply["evalue"]

        assert kernel.run("%hvd stop").text() == "the ranks are stopped\n"
        until(lambda: not living(everything), "all processes are gone")
        assert detached.clusters() == []
        assert list(home.glob("hvd-*")) == []
        assert set(tagged(kernel.tag)) == {kernel.pid}


def test_running_cell_becomes_a_job_of_the_restarted_kernel(home: Path) -> None:
    with Kernel(home) as kernel:
        kernel.run("%%hvdrun -np 2 --keep\nx = rank\ndef old():\n    1 / 0", timeout=120)
        kernel.start("%%hvdrun\n" + WAITS.format(home=str(home), name="cell", asks=1), prompts=True)
        in_cell(home, "cell")
        kill_9(kernel)
        assert kernel.run("%hvd attach", prompts=True).text() == (
            "ranks: ranks 0-1 ready, with all variables\n"
            "ranks 0-1 still run cell 2, now as a job; what was printed before is in %hvdlogs --cell 2\n"
            "job cell2 on ranks 0-1: %hvdjobs, %hvdcancel cell2\n"
        )
        refused = kernel.run("%%hvdrun\n1", allow_error=True).reply["evalue"]
        assert re.sub(r" \(\d+ s so far\)", "", refused) == (
            "the ranks are busy with job cell2: wait with %hvdjobs --wait cell2, or %hvdcancel cell2"
        )
        asked = "[1] who?"
        until(
            lambda: asked in kernel.run("%hvdpdb", prompts=True, allow_error=True).text(), "rank 1's question is heard"
        )
        kernel.run("%hvdpdb --ranks 1 ann", prompts=True)
        in_cell(home, "cell", "asked")
        kernel.run("%hvdcancel cell2", allow_error=True)
        assert kernel.run("%hvdjobs --wait cell2", allow_error=True).reply["ename"] == "KeyboardInterrupt"
        assert kernel.run("%%hvdrun\nx, who").shown == ["[0] (0, '')\n[1] (1, 'ann')"]
        failed = kernel.run("%%hvdrun\nold()", allow_error=True)
        assert f"Cell In[{failed.reply['execution_count']}], line 1\n" in failed.error
        assert "Cell In[1] (earlier kernel), line 3, in old()\n" in failed.error

        train = kernel.run("%%hvdrun --bg train\n" + WAITS.format(home=str(home), name="job", asks=None))
        name = f"cell{train.reply['execution_count']}"
        in_cell(home, "job")
        kernel.restart()  # as the menu does: Jupyter presses the interrupt key first, which is not meant for a job
        said = f"ranks 0-1 still run cell {train.reply['execution_count']}, now as a job"
        assert said in kernel.run("%hvd attach").text()
        (home / "go").touch()
        kernel.run(f"%hvdjobs --wait {name}")
        assert kernel.run(f"%hvdjobs {name}").text() == "[0-1] went on\n"
        assert kernel.run("%%hvdrun\nseen").shown == ["[0] 100\n[1] 101"]
        kernel.run("%hvd stop")


@pytest.fixture(scope="module")
def orphaned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return the home of a detached cluster of two ranks whose kernel was killed; every test leaves it without a kernel again."""
    home = tmp_path_factory.mktemp("orphaned")
    path = os.pathsep.join(filter(None, (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", ""))))
    with alone(home):
        process = subprocess.Popen(
            [sys.executable, "-c", STAND_IN, str(home)], env=os.environ | {"PYTHONPATH": path}, stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        assert process.stdout.readline() == b"kept\n"
        process.kill()
        process.wait()
        process.stdout.close()
        yield home
        end(only_one())
        assert detached.clusters() == []


def only_one() -> detached.DetachedCluster:
    [found] = detached.clusters()
    return found


@pytest.mark.nightly
def test_s6_a1_rank_dead_between_kernels_is_replaced_no_key(orphaned: Path) -> None:
    session = attach(only_one(), print)
    assert execute(session, "x = 10 + rank\nx", cell=7).results() == {0: "10", 1: "11"}
    victim = session.status()[1].pid
    session.end()
    os.kill(victim, signal.SIGKILL)
    until(lambda: not living({victim}), "rank 1 is dead")

    session = attach(only_one(), print)
    try:
        assert session.dead == (1,)
        assert session.latest is not None
        assert session.latest.cell == 7, "cells are counted on, so that their logs are found"
        with pytest.raises(ClusterError, match=r"^rank 1 \(it ended for an unknown reason\) is dead"):
            session.run("1")
        assert session.respawn().ranks == (1,)
        assert execute(session, "x = globals().get('x', 0) + 1\nx").results() == {0: "11", 1: "1"}
        secret = session._wire.session.key
        files = [path for path in orphaned.rglob("*") if path.is_file()]
        assert {path.name for path in files} >= {"kept", "holder", "cluster.log"}
        assert [path for path in files if secret in path.read_bytes()] == []
    finally:
        session.end()

    session = attach(only_one(), print)
    try:
        assert session.dead == (), "the next kernel knows who has replaced whom"
        assert execute(session, SUM).results() == {0: "12", 1: "12"}
    finally:
        session.end()


def test_messages_sent_with_the_supervisors_welcome_arrive(orphaned: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    receive = ControlChannel.receive

    def both(channel: ControlChannel) -> list[Message]:
        received = receive(channel)
        return [*received, Detached("another name")] if received and isinstance(received[0], Attached) else received

    monkeypatch.setattr(ControlChannel, "receive", both)
    session = attach(only_one(), print)
    try:
        until(lambda: session.detached_name == "another name", "both words are heard")
    finally:
        session.end()


def test_interrupted_attach_releases_the_ranks(orphaned: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def press(*_: object) -> None:
        raise KeyboardInterrupt

    threads = set(threading.enumerate())
    with monkeypatch.context() as patch:
        patch.setattr("hvd_kernel.cluster.attach._resume_cell", press)
        with pytest.raises(KeyboardInterrupt):
            attach(only_one(), print)
    assert set(threading.enumerate()) <= threads, f"nobody hears of the ranks of {orphaned} any more"
    session = attach(only_one(), print)
    try:
        assert execute(session, "rank").results() == {0: "0", 1: "1"}
    finally:
        session.end()


def test_ranks_work_after_a_cell_failed_without_a_kernel(orphaned: Path) -> None:
    """It fails on one rank, which breaks the communication."""
    session = attach(only_one(), print)
    session.run(
        "x = 6\n" + WAITS.format(home=str(orphaned), name="cell", asks=None) + "hvd.barrier() if rank else 1 / 0"
    )
    in_cell(orphaned, "cell")
    session.end()
    (orphaned / "go").touch()
    session = attach(only_one(), print)
    try:
        if session.running and session.latest is not None:
            drain(session.latest)
        assert execute(session, SUM).results() == {0: "12", 1: "12"}
    finally:
        session.end()


@pytest.mark.nightly
def test_a17_detached_ranks_exit_if_no_kernel_returns(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HVD_KEEP_HOURS", "0.0001")
    session = Session.start(ClusterSpec(1))
    session.keep("short", str(home))
    traces = Traces.of(session)
    session.end()
    traces.wait_none_left(within=PATIENCE_S)
    assert list(home.glob("hvd-*")) == []
