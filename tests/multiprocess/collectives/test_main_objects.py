"""Classes and functions of ``__main__`` in objects that travel: each rank's own where its definition is the same."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from hvdtest.launch import clean_environment

from hvd_kernel.launch.job_run import Job, launch

DEFINITIONS = """
import abc, dataclasses, enum
from typing import NamedTuple

STEP = {step}

class Color(enum.Enum):
    RED = {value}
    BLUE = 7

class Access(enum.Flag):
    READ = enum.auto()
    WRITE = enum.auto()

@dataclasses.dataclass
class Point:
    x: int = 3
    tags: list = dataclasses.field(default_factory=list)
    def other(self):
        return Pair, Point

class Pair(NamedTuple):
    left: int

class Outer(Point):
    "Comments and line numbers do not matter."
    seen = []
    limit = {limit}
    class Inner:
        pass
    @property
    def size(self):
        return self.limit
    @staticmethod
    def cut(n):
        return n in {{"a", "b", "c"}}

class Base(abc.ABC):
    @abc.abstractmethod
    def f(self): ...

def plain(n, *, factor=2):
    return [plain, Color, n * factor]

def scaled(n):
    return n * STEP
"""
VALUES = (
    "[Color.RED, Access.READ | Access.WRITE, Point(1), Pair(2), Outer(4), Outer.Inner, Base, plain, scaled, "
    "Outer().cut, Color]"
)
TRANSFER = """
import pickle, sys
from hvd_kernel.protocol import main_objects
if sys.argv[1] == "write":
    sys.stdout.buffer.write(main_objects.dumps({values}))
else:
    read = pickle.loads(sys.stdin.buffer.read())
    print([a == b for a, b in zip(read, {values})])
    print(read[6].__name__, read[7](3)[2], read[8](1), read[4].limit, read[0].value)
"""
USUAL = {"step": 10, "value": 1, "limit": 5}
NAMES = ("Color.RED", "Access", "Point", "Pair", "Outer", "Inner", "Base", "plain", "scaled", "cut", "Color")


def python(script: str, *words: str, data: bytes = b"") -> bytes:
    command = [sys.executable, "-P", "-c", script, *words]
    done = subprocess.run(command, input=data, env=clean_environment(), capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def transferred(change: dict[str, int], before: str = "") -> tuple[set[str], str]:
    """Return the values that the reader does not identify with its own, and the results of the copies."""
    script = TRANSFER.format(values=VALUES)
    data = python(DEFINITIONS.format(**USUAL) + script, "write")
    equal, results = (
        python(before + DEFINITIONS.format(**(USUAL | change)) + script, "read", data=data).decode().splitlines()
    )
    return {name for name, is_equal in zip(NAMES, json.loads(equal.lower()), strict=True) if not is_equal}, results


@pytest.mark.parametrize(
    ("change", "before", "copies"),
    [
        ({}, "", set()),
        ({}, "# other lines\n\n\n", set()),
        pytest.param({"step": 11}, "", {"scaled"}, marks=pytest.mark.nightly),
        pytest.param({"limit": 6}, "", {"Outer"}, marks=pytest.mark.nightly),
        ({"value": 2}, "", {"Color.RED", "Color"}),
    ],
)
def test_a_reader_uses_its_own_definitions_if_they_are_the_same(
    change: dict[str, int], before: str, copies: set[str]
) -> None:
    assert transferred(change, before) == (copies, "Base 6 10 5 1")


def test_a_reader_without_the_definitions_gets_copies() -> None:
    data = python(DEFINITIONS.format(**USUAL) + TRANSFER.format(values=VALUES), "write")
    script = (
        "import pickle, sys; a, *_, f, _, _ = pickle.loads(sys.stdin.buffer.read()); print(a, f(2), type(a).__name__)"
    )
    assert python(script, data=data).decode() == "Color.RED 20 Color\n"


def test_present_state_of_a_class_is_not_its_definition() -> None:
    change = "\nOuter.seen.append(1)\nOuter.cache = {}\nimport copy; copy.copy(Outer()); abc.ABC.register.__call__\n"
    data = python(DEFINITIONS.format(**USUAL) + change + TRANSFER.format(values=VALUES), "write")
    script = DEFINITIONS.format(**USUAL) + TRANSFER.format(values=VALUES)
    assert python(script, "read", data=data).decode().splitlines()[0] == str([True] * len(NAMES))


RANKS = (
    DEFINITIONS.format(**USUAL)
    + """
import hvd_kernel.numpy as hvd
from hvd_kernel import elastic
hvd.init()
red = hvd.broadcast_object(Color.RED, 0)
points = hvd.allgather_object(Point(hvd.rank()))
state = elastic.ObjectState(color=Color.BLUE if hvd.rank() else Color.RED)
state.sync()
checks = [red is Color.RED, [type(p) is Point for p in points], points == [Point(0), Point(1)], state.color is Color.RED]
if hvd.rank() == 1:
    del Color
copy = hvd.broadcast_object(red, 0)
print(checks, copy.value, hvd.broadcast_object(scaled, 0) is scaled, hvd.broadcast_object(plain, 0)(3)[1].RED.value)
"""
)


@pytest.mark.mp
def test_objects_of_a_script_are_the_ranks_own(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(RANKS)
    out = io.StringIO()
    job = Job([sys.executable, "-P", str(script)], 2, prefix=False)
    assert launch(job, stdout=out, stderr=sys.stderr).status == 0
    assert out.getvalue().splitlines() == ["[True, [True, True], True, True] 1 True 1"] * 2


RUN = (
    DEFINITIONS.format(**USUAL)
    + """
import hvd_kernel
if __name__ == "__main__":
    print(hvd_kernel.run(lambda point: (Color.RED, type(point) is Point, point), (Point(5),), np=2)
          == [(Color.RED, True, Point(5))] * 2)
"""
)


@pytest.mark.mp
def test_results_of_run_have_the_callers_classes(tmp_path: Path) -> None:
    script = tmp_path / "call.py"
    script.write_text(RUN)
    done = subprocess.run(
        [sys.executable, "-P", script], env=clean_environment(), capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
