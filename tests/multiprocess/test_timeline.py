"""The timeline: valid JSON at every moment, written by rank 0, and its events."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hvdtest.exact import raises
from hvdtest.launch import RankPool

from hvd_kernel.widgets.timeline import parse

pytestmark = pytest.mark.mp


def as_it_is(path: Path) -> str:
    """Return the file at one moment: two reads could differ. None while it is written, since a read may see half of a write."""
    while True:
        before = writer()
        with path.open("rb", buffering=0) as file:
            found = file.read(1 << 26)
        if "State:\tS" in before and before == writer():  # it slept all the while
            return found.decode()


def writer() -> str:
    """Return the state of the thread that writes this process's timeline, and how often it has started to run."""
    for task in Path("/proc/self/task").iterdir():
        try:
            name, status = (task / "comm").read_text(), (task / "status").read_text()
        except OSError:  # it has ended
            continue
        if name == "hvd-timeline\n":
            return "\n".join(
                line for line in status.splitlines() if line.startswith("State") or "ctxt_switches" in line
            )
    return ""  # its first step is to take that name


def recorded(folder: str) -> dict[str, object]:
    import torch

    import hvd_kernel.torch as hvd

    hvd.init()
    found = {}
    for number in range(2):
        path = Path(folder, f"{number}.json")
        hvd.start_timeline(str(path), mark_cycles=bool(number))
        for step in range(200):
            hvd.allreduce(torch.ones(100), name=f"x{number}.{step % 5}", op=hvd.Sum)
            if hvd.rank() == 0 and step % 10 == 0 and path.exists():
                json.loads(as_it_is(path))  # while it is being written
        hvd.grouped_allreduce([torch.ones(2), torch.ones(3)], name=f"group{number}")
        hvd.allgather(torch.ones(hvd.rank() + 1, 2), name=f"rows{number}")
        hvd.broadcast(torch.ones(4), 0, name=f"root{number}")
        hvd.stop_timeline()
        if hvd.rank() == 0:
            events = json.loads(path.read_text())
            found[path.name] = {
                "names": sorted({e["args"]["name"] for e in events if e.get("name") == "process_name"}),
                "phases": sorted({e["name"] for e in events if "name" in e and e.get("ph") in "BX"}),
                "given": sorted({(a["dtype"], a["shape"]) for e in events if "dtype" in (a := e.get("args", {}))}),
                "cycles": sum(e.get("name") == "CYCLE_START" for e in events),
            }
    hvd.shutdown()
    return found


@pytest.fixture(scope="module")
def dynamic() -> Iterator[RankPool]:
    """Ranks that may start timelines; not initialised."""
    with RankPool(2, HOROVOD_TIMELINE="DYNAMIC") as pool:
        yield pool


def test_start_and_stop(dynamic: RankPool, tmp_path: Path) -> None:
    first, second = dynamic.run(recorded, str(tmp_path))
    assert second == {}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.json", "1.json"]
    for number in range(2):
        one = first[f"{number}.json"]
        wanted = {f"allreduce.x{number}.{i}" for i in range(5)} | {f"allgather.rows{number}", f"broadcast.root{number}"}
        assert wanted <= set(one["names"]), one["names"]
        assert {"NEGOTIATE_ALLREDUCE", "ALLREDUCE", "ALLGATHER", "BROADCAST"} <= set(one["phases"]), one["phases"]
        assert {"QUEUE", "ALLOCATE_OUTPUT", "0", "1"} <= set(one["phases"]), one["phases"]
        assert not [name for name in one["phases"] if "FUSION_BUFFER" in name], "nothing is copied into one"
        shapes = ("[100]", "[1, 2]", "[4]", "[2], [3]")
        assert one["given"] == [["float32", shape] for shape in sorted(shapes)]
    assert first["0.json"]["cycles"] == 0
    assert first["1.json"]["cycles"] > 0


def refused(folder: str) -> list[str]:
    import hvd_kernel.torch as hvd

    hvd.init()
    hvd.start_timeline(f"{folder}/good.json")
    said = []
    for path in (f"{folder}/none/t.json", folder):
        with pytest.raises(ValueError, match="cannot be written") as caught:
            hvd.start_timeline(path)
        said.append(str(caught.value))
    hvd.barrier()
    hvd.stop_timeline()
    hvd.shutdown()
    return said


def test_unwritable_path_is_refused_on_every_rank(dynamic: RankPool, tmp_path: Path) -> None:
    first, second = dynamic.run(refused, str(tmp_path))
    no_folder = f"there is no folder {tmp_path}/none; make it first"
    assert first == second
    assert first == [
        f"the timeline {tmp_path}/none/t.json cannot be written: {no_folder}.",
        f"the timeline {tmp_path} cannot be written: it is a folder; name a file in it.",
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["good.json"]
    assert any("BARRIER" in event.get("name", "") for event in json.loads((tmp_path / "good.json").read_text()))


def static() -> None:
    import torch

    import hvd_kernel.torch as hvd

    hvd.init()
    hvd.allreduce(torch.ones(3), name="once")
    hvd.shutdown()


def test_from_the_start(tmp_path: Path) -> None:
    with RankPool(2, HOROVOD_TIMELINE=str(tmp_path / "t.json")) as pool:
        pool.run(static)
    text = (tmp_path / "t.json").read_text()
    assert any(e.get("args", {}).get("name") == "allreduce.once" for e in json.loads(text))


KILLED = """
import os, signal, sys, torch, hvd_kernel.torch as hvd
hvd.init()
for step in range(200): hvd.allreduce(torch.ones(4), name=f"x{step}")
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.nightly
def test_file_of_a_killed_job_is_readable(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    env = {**os.environ, "HOROVOD_TIMELINE": str(path)}
    ended = subprocess.run([sys.executable, "-c", KILLED], env=env, check=False)
    assert ended.returncode == -signal.SIGKILL
    recording = parse(path.read_text())
    assert set(recording.rows) <= {f"allreduce.x{step}" for step in range(200)}


def unset(path: str) -> None:
    import hvd_kernel.torch as hvd

    text = "Set HOROVOD_TIMELINE=DYNAMIC to enable dynamic timeline usage."
    raises(ValueError, text, hvd.start_timeline, path)
    hvd.stop_timeline()


def test_without_the_variable(ranks: RankPool, tmp_path: Path) -> None:
    ranks.run(unset, str(tmp_path / "t.json"))
    assert not list(tmp_path.iterdir())
