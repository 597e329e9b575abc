"""The plan of each fixture, word by word: what a platform's page promised is what is planned."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hvd_kernel.jobs import JobSpec, Variable, formats
from hvd_kernel.jobs.plan import as_json, as_text, plan

DATA = Path(__file__).parents[2] / "data"
GIB = 2**30
MIB = 2**20


def spec_of(file: str) -> JobSpec:
    return formats.read((DATA / file).read_text(), file)


def tasks_of(file: str) -> list[dict]:
    return json.loads(as_json(plan(spec_of(file))))["tasks"]


POLYAXON = """\
rank  where     cpus  memory          gpus  command
0     master 0  1..2  256 MiB..1 GiB  1     python train.py
1     worker 0  1..2  256 MiB..1 GiB  1     python train.py
2     worker 1  1..2  256 MiB..1 GiB  1     python train.py
3     worker 2  2..4  512 MiB..2 GiB  1     python train.py
4     worker 3  1..2  256 MiB..1 GiB  1     python train.py
5     worker 4  1..2  256 MiB..1 GiB  1     python train.py
6     worker 5  1..2  256 MiB..1 GiB  1     python train.py
7     worker 6  1..2  256 MiB..1 GiB  1     python train.py"""
FRAGMENT = """\
rank  where     cpus  memory  gpus  command
0     master 0  -     -       -     -
1     worker 0  -     -       -     -
2     worker 1  -     -       -     -
3     worker 2  -     -       -     -
warning: run.cmd is missing: `job run` needs a command"""
MPIRUN = """\
rank  where      cpus  memory  gpus  command
0-3   localhost  -     -       -     python train.py
warning: -bind-to none is ignored: ranks fill the hosts in order and are not bound to cores
warning: -mca pml ob1 is ignored: ranks choose their links (shared memory, TCP) themselves, without Open MPI
warning: -mca btl ^openib is ignored: ranks choose their links (shared memory, TCP) themselves, without Open MPI"""
MASTER = (
    "mpirun --allow-run-as-root --hostfile /generated/hostfile -bind-to none -map-by slot -mca pml ob1 "
    "-mca btl ^openib python main.py"
)
GRADIENT = f"""\
rank  where     cpus  memory  gpus  command
0     master 0  -     -       1     {MASTER}
1     worker 0  -     -       1     sleep infinity
2     worker 1  -     -       1     sleep infinity
warning: --clusterId is ignored: meaningful only at Paperspace
warning: --workspaceUrl is ignored: ranks run in the folder in which the job is started
warning: -bind-to none is ignored: ranks fill the hosts in order and are not bound to cores
warning: -mca pml ob1 is ignored: ranks choose their links (shared memory, TCP) themselves, without Open MPI
warning: -mca btl ^openib is ignored: ranks choose their links (shared memory, TCP) themselves, without Open MPI"""


@pytest.mark.parametrize(
    ("file", "table"),
    [
        ("polyaxonfile.yml", POLYAXON),
        ("polyaxonfile-fragment.yml", FRAGMENT),
        ("mpirun.sh", MPIRUN),
        ("gradient.sh", GRADIENT),
    ],
)
def test_the_table_is_what_the_file_says(file: str, table: str) -> None:
    assert as_text(plan(spec_of(file))) == table


def task(rank: int, role: str, index: int, **more) -> dict:
    bounds = {"request": None, "limit": None}
    empty = {"host": "", "cpu": bounds, "memory_bytes": bounds, "gpus": None, "command": "python train.py"}
    return {"rank": rank, "role": role, "index": index} | empty | more


def test_a_polyaxonfile_has_a_master_and_seven_workers_of_which_one_has_its_own_resources() -> None:
    common = {
        "cpu": {"request": 1, "limit": 2},
        "memory_bytes": {"request": 256 * MIB, "limit": GIB},
        "gpus": 1,
    }
    own = {"cpu": {"request": 2, "limit": 4}, "memory_bytes": {"request": 512 * MIB, "limit": 2 * GIB}, "gpus": 1}
    workers = [task(1 + index, "worker", index, **(own if index == 2 else common)) for index in range(7)]
    assert json.loads(as_json(plan(spec_of("polyaxonfile.yml")))) == {
        "kind": "polyaxonfile",
        "tasks": [task(0, "master", 0, **common), *workers],
        "steps": ["python train.py"],
        "warnings": [],
    }
    assert spec_of("polyaxonfile.yml").image == "python:3.11"


def test_a_riseml_file_has_a_rank_for_each_of_128_gpus_and_two_steps() -> None:
    both = "python prepare.py && python train.py"
    share = {"cpu": {"request": None, "limit": 3}, "memory_bytes": {"request": None, "limit": GIB}, "gpus": 1}
    assert tasks_of("riseml.yml") == [task(n, "worker", n // 4, command=both, **share) for n in range(128)]
    assert spec_of("riseml.yml").steps == ("python prepare.py", "python train.py")


def test_a_riseml_file_with_processes_has_32_ranks_that_see_four_gpus_each() -> None:
    share = {"cpu": {"request": None, "limit": 12}, "memory_bytes": {"request": None, "limit": 4 * GIB}, "gpus": 4}
    assert tasks_of("riseml-processes.yml") == [task(n, "worker", n, **share) for n in range(32)]


def test_an_mpirun_line_has_four_ranks_on_this_host_and_takes_variables_over() -> None:
    assert tasks_of("mpirun.sh") == [task(n, "host", 0, host="localhost") for n in range(4)]
    spec = spec_of("mpirun.sh")
    taken = (Variable("NCCL_DEBUG", "INFO"), Variable("LD_LIBRARY_PATH"), Variable("PATH"))
    assert (spec.kind, spec.np, spec.environment) == ("mpirun", 4, taken)


def test_a_gradient_line_has_a_master_that_starts_the_ranks_and_two_workers_that_wait() -> None:
    spec = spec_of("gradient.sh")
    assert tasks_of("gradient.sh") == [
        task(0, "master", 0, gpus=1, command=MASTER),
        task(1, "worker", 0, gpus=1, command="sleep infinity"),
        task(2, "worker", 1, gpus=1, command="sleep infinity"),
    ]
    assert (spec.kind, spec.name, spec.image) == ("gradient", "distributed-example", "horovod/horovod:0.18.1")
    assert (spec.steps, spec.hostfile) == (("python main.py",), "/generated/hostfile")


@pytest.mark.parametrize(
    ("file", "kind"),
    [
        ("polyaxonfile.yml", "polyaxonfile"),
        ("polyaxonfile-fragment.yml", "polyaxonfile"),
        ("riseml.yml", "riseml"),
        ("riseml-processes.yml", "riseml"),
        ("mpirun.sh", "mpirun"),
        ("gradient.sh", "gradient"),
    ],
)
def test_each_file_is_known_by_one_reader_alone(file: str, kind: str) -> None:
    text = (DATA / file).read_text()
    assert [each.kind for each in formats.READERS if each.matches(text, file)] == [kind]
