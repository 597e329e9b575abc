"""``hvd_kernel.run`` from a script: new processes, results in rank order, the worker's exception, no process left."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from hvdtest.hvdrun import good, ran

pytestmark = pytest.mark.mp

# A script as users write it: functions of its own file, and no `if __name__ == "__main__"`.
HEAD = """
import json, os, sys, threading, time
import hvd_kernel
from beside import Bad, scale

def joined(offset, factor=1):
    import numpy, hvd_kernel
    from hvd_kernel.core import session, ops
    session.init()
    total = ops.allreduce(numpy.array([session.rank() + offset]), "x", ops.Sum)
    return {"rank": session.rank(), "size": session.size(), "sum": scale(int(total[0]), factor), "pid": os.getpid(),
            "cwd": os.getcwd(), "extra": os.environ.get("EXTRA")}

def fails(failing):
    from hvd_kernel.core import session, ops
    session.init()
    if session.rank() == failing:
        raise Bad("shard", failing)
    ops.barrier()

def lingers():
    import atexit
    atexit.register(lambda: print("still at work", file=sys.stderr, flush=True))
    raise Bad("slow", 0)

def vanishes():
    if os.environ["HOROVOD_RANK"] == "1":
        os._exit(7)
    time.sleep(100)

def caught(function, *args, **options):
    began = time.monotonic()
    try:
        hvd_kernel.run(function, args, **options)
    except RuntimeError as error:
        cause = error.__cause__
        return {"type": type(error).__name__, "text": str(error), "rank": error.rank, "seconds": time.monotonic() - began,
                "cause": [type(cause).__name__, isinstance(cause, Bad), list(getattr(cause, "args", ()))]}
"""
BESIDE = """
class Bad(Exception):
    def __init__(self, what, rank):
        super().__init__(what, rank)

def scale(value, factor):
    return value * factor
"""


def script(tmp_path: Path, body: str, **env: str) -> tuple[object, str]:
    """Run the body after HEAD; return the last JSON line on stdout, and all output."""
    (tmp_path / "beside.py").write_text(BESIDE)
    (tmp_path / "script.py").write_text(f"{HEAD}\nsaid = {body}\nprint(json.dumps(said))\n")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    done = ran([sys.executable, str(tmp_path / "script.py")], tmp_path, seconds=110, TMPDIR=str(scratch), **env)
    good(done)
    assert list(scratch.iterdir()) == [], "private folders are gone"
    return json.loads(done.stdout.splitlines()[-1]), done.stdout + done.stderr


def test_results_are_in_rank_order(tmp_path: Path) -> None:
    found, _ = script(tmp_path, "hvd_kernel.run(joined, (10,), {'factor': 3}, np=3, env={'EXTRA': 'yes'})")
    assert isinstance(found, list)
    assert [one["rank"] for one in found] == [0, 1, 2]
    assert {(one["size"], one["sum"], one["extra"], one["cwd"]) for one in found} == {(3, 99, "yes", str(tmp_path))}
    assert len({one["pid"] for one in found}) == 3


def test_default_is_one_rank_and_its_output_is_shown(tmp_path: Path) -> None:
    found, said = script(tmp_path, "hvd_kernel.run(lambda: print('hello', flush=True), verbose=2)")
    assert found == [None]
    assert "hello" in said


@pytest.mark.parametrize("how", ["use_gloo=True", "use_mpi=True", "hosts='localhost:2', use_gloo=True"])
def test_results_under_every_launcher(tmp_path: Path, how: str) -> None:
    found, _ = script(tmp_path, f"hvd_kernel.run(joined, (1,), num_proc=2, {how})")
    assert isinstance(found, list)
    assert [(one["rank"], one["size"], one["sum"]) for one in found] == [(0, 2, 3), (1, 2, 3)]


def test_output_files(tmp_path: Path) -> None:
    script(tmp_path, "hvd_kernel.run(lambda: print('said'), np=2, output_filename='out')")
    assert [(tmp_path / f"out/rank.{rank}/stdout").read_text() for rank in range(2)] == ["said\n"] * 2


@pytest.mark.parametrize("how", ["", pytest.param(", use_mpi=True", marks=pytest.mark.nightly)])
def test_exception_of_a_worker_is_the_cause_and_ranks_exit(tmp_path: Path, how: str) -> None:
    found, said = script(tmp_path, f"caught(fails, 1, np=3{how})")
    assert isinstance(found, dict)
    assert (found["type"], found["rank"]) == ("RankFailed", 1)
    assert found["cause"] == ["Bad", True, ["shard", 1]]
    assert found["text"].startswith("rank 1 of 3 raised Bad: ('shard', 1)\n\nTraceback (most recent call last):\n")
    assert 'raise Bad("shard", failing)' in found["text"]
    assert said.count("Traceback (most recent call last)") == 1, "what the exception tells is not on stderr too"
    assert "hvdrun: rank" not in said
    assert found["seconds"] < 60


def test_traceback_of_the_exception_is_not_on_stderr(tmp_path: Path) -> None:
    """A traceback of a living rank is shown with a delay: this checks that none follows."""
    found, said = script(tmp_path, "caught(lingers, output_filename='out')")
    assert isinstance(found, dict)
    assert found["cause"] == ["Bad", True, ["slow", 0]]
    heard = (tmp_path / "out/rank.0/stderr").read_text().splitlines()
    assert heard[:2] == ["still at work", "Traceback (most recent call last):"]
    assert said.count("Traceback (most recent call last)") == 1


def test_vanished_rank_is_named_and_the_others_are_stopped(tmp_path: Path) -> None:
    found, _ = script(tmp_path, "caught(vanishes, np=2)")
    assert isinstance(found, dict)
    assert (found["type"], found["rank"]) == ("RankDied", 1)
    assert found["text"].startswith("rank 1 of 2 ended with exit status 7 before its function returned.")
    assert found["seconds"] < 95, "the other one would have slept for 100 s"


def test_a_rank_does_not_start_ranks(tmp_path: Path) -> None:
    (tmp_path / "nested.py").write_text(
        "import hvd_kernel\ndef inner():\n    from hvd_kernel.core import session\n    session.init()\n"
        "    return hvd_kernel.run(int)\n"
    )
    found, _ = script(tmp_path, "caught(__import__('nested').inner, np=2)")
    assert isinstance(found, dict)
    assert "UsageError: run() starts ranks, but this process is one itself" in found["text"]
