"""Spares of an elastic job's hosts: their number, the programs they can run, their imports, and their environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import threading
from pathlib import Path
from types import ModuleType

import pytest
from hvdtest.launch import clean_environment
from hypothesis import given
from hypothesis import strategies as st

from hvd_kernel.core import elastic_worker
from hvd_kernel.processes import rank_channel
from hvd_kernel.processes.channel.messages import Preload, RunProgram
from hvd_kernel.processes.child_process import ChildProcess
from hvd_kernel.processes.program import Program, program_of
from hvd_kernel.processes.spares import ENTRY, Spare, SpareQuota

PATIENCE_S = 60.0


@given(st.integers(0, 4), st.lists(st.sampled_from(["fill", "take", "end"]), max_size=40))
def test_spares_are_kept_until_three_in_a_row_exit(wanted: int, events: list[str]) -> None:
    quota, there, ended = SpareQuota(wanted), 0, 0
    for event in events:
        if event == "fill":
            there += quota.missing
            quota.start(quota.missing)
            assert there == wanted or (ended >= 3 and there < wanted)
        elif there:
            there -= 1
            quota.use() if event == "take" else quota.end()
            ended = 0 if event == "take" else ended + 1
        assert quota.is_used_up == (ended >= 3)
        assert quota.missing == (0 if ended >= 3 else wanted - there)


@pytest.mark.parametrize(
    ("words", "program"),
    [
        ("python train.py --lr 1 -m", Program("python", (), False, "train.py", ("--lr", "1", "-m"))),
        (
            "/usr/bin/python3.12 -uB -X dev t.py",
            Program("/usr/bin/python3.12", ("-uB", "-X", "dev"), False, "t.py", ()),
        ),
        ("python -P -Werror -m my.training x", Program("python", ("-P", "-Werror"), True, "my.training", ("x",))),
        ("python -OO t.py", Program("python", ("-OO",), False, "t.py", ())),
    ],
)
def test_programs_of_python(words: str, program: Program) -> None:
    assert program_of(words.split()) == program
    assert program.waiting("entry")[-3 - len(program.arguments) :][:3] == ["-m", "entry", program.name]


@pytest.mark.parametrize(
    "words",
    ["bash t.sh", "./t.py", "python", "python -c pass", "python -", "python -i t.py", "python -V", "python folder",
     "python -W", "python -m", "python --help", "pythonic t.py", "numactl python t.py"],
)  # fmt: skip
def test_commands_that_spares_cannot_run(words: str) -> None:
    assert program_of(words.split()) is None


def test_module_search_path_of_a_spare() -> None:
    for words, has_folder in (("", True), ("-u", True), ("-P", False), ("-I", False), ("-uP", False), ("-X P", True)):
        program = program_of(["python", *words.split(), "t.py"])
        assert program is not None
        assert program.has_folder is has_folder, words


def test_modules_with_side_effects_are_not_preloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_model.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    import my_model  # noqa: F401

    stub = ModuleType("mpi4py.MPI")
    stub.__spec__ = type(
        "Spec", (), {"name": "mpi4py.MPI", "origin": sysconfig.get_path("purelib") + "/mpi4py/MPI.so"}
    )()  # type: ignore[assignment]
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", stub)
    names = elastic_worker.imported_modules()
    assert {"json", "numpy", "pytest", "hvd_kernel.core.session"} <= {*names}
    assert not {"my_model", "mpi4py.MPI", "__main__", "sys", __name__} & {*names}
    assert names.index("json") < names.index("hypothesis") < names.index("hvd_kernel.core.elastic_worker")


def test_variables_set_by_the_program_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    monkeypatch.setenv("HVD_WORKER", "7")
    found = elastic_worker.set_variables()
    assert found["KERAS_BACKEND"] == "torch"
    assert not {"HVD_WORKER", "HOME"} & found.keys()


def test_list_of_imports_fits_into_a_datagram() -> None:
    names = [f"tensorflow.python.framework.some_module_{number}" for number in range(6000)]
    said = rank_channel.imports({"modules": names, "variables": {}})
    assert rank_channel.imports_of(said)["modules"] == names
    assert len(said) < 100_000, "a datagram may have 200 kB"


SCRIPT = """
import json, os, pickle, sys, threading, multiprocessing
import {module}

def double(x):
    return 2 * x

def after():
    threading.main_thread().join()
    print(pickle.loads(pickle.dumps(double))(4), __name__)

if __name__ == "__main__":
    threading.Thread(target=after).start()
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(double, [1, 2]))
    where = sys.path[0], sys.argv, __file__, __spec__ is None, os.environ["HVD_WORKER"], os.environ.get("OF_IMPORTS")
    print(json.dumps([*where, {module}.SEEN, sys.stdin.read()]))
"""


class Run:
    """A program that a spare has run."""

    def __init__(self, words: list[str], folder: Path, imports: Preload, **variables: str) -> None:
        command = [sys.executable, *words]
        program = program_of(command)
        assert program is not None
        waiting, env = program.waiting(ENTRY), clean_environment(**variables)
        spare = Spare(
            lambda stdin: ChildProcess(
                waiting, env=env, cwd=str(folder), stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
        )
        guard = threading.Timer(PATIENCE_S, lambda: spare.process.signal(9))
        guard.start()
        spare.send(imports)
        while not spare.poll():
            pass
        self.was_ready = spare.is_ready
        spare.send(RunProgram(env | {"HVD_WORKER": "3"}, command))
        written = {"stdout": b"", "stderr": b""}
        for descriptor, name in [*spare.process.streams.items()]:
            os.set_blocking(descriptor, True)
            while data := spare.process.read(descriptor):
                written[name] += data
        self.status = spare.process.wait()
        guard.cancel()
        spare.channel.close()
        self.out, self.err = written["stdout"].decode(), written["stderr"].decode()


@pytest.mark.mp
@pytest.mark.parametrize("way", ["file", "module"])
def test_a_spare_runs_the_program_as_python_does(tmp_path: Path, way: str) -> None:
    packages = tmp_path / "packages"
    packages.mkdir()
    (packages / "framework.py").write_text("import os\nSEEN = os.environ.get('OF_IMPORTS')\n")
    (tmp_path / "train.py").write_text(SCRIPT.format(module="framework"))
    words = ["train.py"] if way == "file" else ["-m", "train"]
    imports = Preload(["framework", "no_such_module"], {"OF_IMPORTS": "1"})
    done = Run([*words, "--lr", "1"], tmp_path, imports, PYTHONPATH=str(packages))
    assert (done.was_ready, done.status) == (True, 0), done.err
    pool, told, after = done.out.splitlines()
    script = str(tmp_path / "train.py")
    name = "train.py" if way == "file" else script
    assert (pool, after) == ("[2, 4]", "8 __main__")
    assert json.loads(told) == [str(tmp_path), [name, "--lr", "1"], script, way == "file", "3", None, "1", ""]
    assert not (tmp_path / "__pycache__").exists() or way == "module"


@pytest.mark.mp
def test_an_exceptions_traceback_begins_in_the_program(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("def fail():\n    raise ValueError('my bug')\n\nfail()\n")
    done = Run(["train.py"], tmp_path, Preload([], {}))
    alone = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, env=clean_environment(), capture_output=True, text=True, check=False
    )
    assert (done.status, done.out, done.err) == (1, "", alone.stderr)
