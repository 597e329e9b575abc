"""Slurm's environment: what each place in a job says, in the words of a real Slurm (tests/platforms/data/slurm)."""

from __future__ import annotations

from pathlib import Path

import pytest

from hvd_kernel.jobs import JobError
from hvd_kernel.jobs.readers import slurm

DATA = Path(__file__).parents[2] / "data" / "slurm"
MIB = 2**20
NOT_HERE = (
    "Slurm does not say here how many GPUs each node has: in a step it would (srun --overlap -N1 -n1 -w NODE env)"
)
A_STEPS = "of the job's 2 nodes only this step's are used: start hvdrun outside of srun to have them all"
NODES = {"SLURM_JOB_ID": "42", "SLURM_JOB_NODELIST": "n[1-2]", "SLURMD_NODENAME": "n1"}


def environment(name: str) -> dict[str, str]:
    lines = (DATA / f"{name}.env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if not line.startswith("#"))


def nodes(env: dict[str, str]) -> list[tuple[object, ...]]:
    spec = slurm.read(env)
    assert spec.kind == "slurm"
    assert [(each.role, each.index) for each in spec.replicas] == [("host", at) for at in range(len(spec.replicas))]
    of = [(each, each.resources) for each in spec.replicas]
    assert all(own.cpu.limit is None and own.memory_bytes.limit is None for _, own in of), "Slurm sees to limits"
    return [(each.host, each.slots, own.cpu.request, own.memory_bytes.request, own.gpus) for each, own in of]


@pytest.mark.parametrize(
    ("name", "wanted", "warnings"),
    [  # host, slots, cores, memory, GPUs
        ("batch", [("n1", 3, 3, 600 * MIB, 2), ("n2", 1, 1, 600 * MIB, 2)], ()),
        ("batch-gpus", [("n1", 2, 1, 100 * MIB, 2), ("n2", 2, 1, 100 * MIB, 2)], ()),
        ("interactive-step", [("n1", 3, 3, 100 * MIB, 2), ("n2", 1, 1, 100 * MIB, 2)], ()),
        ("srun-shell", [("n1", 2, 1, None, 2)], ()),
        ("step", [("n2", 2, 1, 600 * MIB, 2)], (A_STEPS,)),
        ("salloc", [("n1", 2, 2, 500 * MIB, None), ("n2", 1, 1, 500 * MIB, None)], (NOT_HERE,)),
        ("salloc-gpus-per-node", [("n1", 2, 2, 500 * MIB, 2), ("n2", 1, 1, 500 * MIB, 2)], ()),
        ("salloc-gpus-per-task", [("n1", 2, 2, 10 * MIB, 2), ("n2", 2, 2, 10 * MIB, 2)], ()),
        ("salloc-tasks-per-node", [("n1", 2, 4, 400 * MIB, None), ("n2", 2, 4, 400 * MIB, None)], (NOT_HERE,)),
        ("salloc-gpus", [("n1", 1, 1, 100 * MIB, None), ("n2", 1, 1, 100 * MIB, None)], (NOT_HERE,)),
        ("salloc-exclusive", [("n1", 4, 4, None, None), ("n2", 4, 4, None, None)], (NOT_HERE,)),
        ("het-batch", [("n1", 2, 2, 100 * MIB, None), ("n2", 3, 3, 200 * MIB, None), ("n3", 1, 1, 200 * MIB, None)], ()),
        ("het-salloc", [("n1", 2, 2, 100 * MIB, None), ("n2", 3, 3, 200 * MIB, 1), ("n3", 1, 1, 200 * MIB, 1)], (NOT_HERE,)),
    ],
)  # fmt: skip
def test_what_slurm_says(name: str, wanted: list[tuple[object, ...]], warnings: tuple[str, ...]) -> None:
    env = environment(name)
    assert slurm.in_allocation(env)
    assert not slurm.is_task(env)
    assert nodes(env) == wanted
    assert slurm.read(env).warnings == warnings


def test_old_names_of_heterogeneous_jobs() -> None:
    old = {name.replace("HET_GROUP", "PACK_GROUP"): value for name, value in environment("het-salloc").items()}
    old["SLURM_PACK_SIZE"] = old.pop("SLURM_HET_SIZE")
    assert slurm.in_allocation(old)
    assert nodes(old) == nodes(environment("het-salloc"))


def test_a_task_of_several_starts_no_ranks() -> None:
    env = environment("task")
    assert slurm.is_task(env)
    with pytest.raises(JobError) as caught:
        slurm.read(env)
    assert str(caught.value) == (
        "srun has started this process as task 1 of 2 of Slurm step 17.0, so each of them would start ranks: leave hvdrun "
        "out (srun python train.py), or srun (hvdrun python train.py)."
    )


def test_names_for_people() -> None:
    assert slurm.title(environment("batch")) == "Slurm job 6"
    assert slurm.title(environment("interactive-step")) == "Slurm job 21"
    assert slurm.title(environment("step")) == "Slurm step 6.0"
    assert slurm.read(environment("batch")).name == "b.sh"


@pytest.mark.parametrize("env", [{}, {"SLURM_JOB_ID": "1"}, {"SLURM_JOB_NODELIST": "n1"}, {"SLURM_CONF": "/etc/slurm"}])
def test_without_a_job_slurm_does_not_speak(env: dict[str, str]) -> None:
    assert not slurm.in_allocation(env)


@pytest.mark.parametrize(
    ("names", "wanted"),
    [
        ("n1", ["n1"]),
        ("a,b-1.x,c_2", ["a", "b-1.x", "c_2"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("n[08-11,7,100]", ["n08", "n09", "n10", "n11", "n7", "n100"]),
        ("n[001-003]-ib", ["n001-ib", "n002-ib", "n003-ib"]),
        ("a[1-2]b[01-02],c", ["a1b01", "a1b02", "a2b01", "a2b02", "c"]),
        ("r[1,3]c[0-1]n[5-6]", ["r1c0n5", "r1c0n6", "r1c1n5", "r1c1n6", "r3c0n5", "r3c0n6", "r3c1n5", "r3c1n6"]),
    ],
)
def test_node_lists(names: str, wanted: list[str]) -> None:
    assert slurm.expand(names) == wanted


@pytest.mark.parametrize("names", ["", "n[1-3", "n1]", "n[[1]]", "a,,b", ",a", "a b", "[1-2]x["])
def test_texts_that_are_no_node_list(names: str) -> None:
    with pytest.raises(JobError) as caught:
        slurm.expand(names)
    assert str(caught.value) == (
        f"SLURM_JOB_NODELIST={names!r} is not a list of nodes, as in n[1-3,07],m: a bracket or a name is missing."
    )


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ("n[3-1]", "SLURM_JOB_NODELIST: [3-1] has '3-1', which is not a range of numbers: 1, 1-3 or 001-100."),
        ("n[1,a]", "SLURM_JOB_NODELIST: [1,a] has 'a', which is not a range of numbers: 1, 1-3 or 001-100."),
        ("n[]", "SLURM_JOB_NODELIST: [] has '', which is not a range of numbers: 1, 1-3 or 001-100."),
        ("n[0-999999999]", "SLURM_JOB_NODELIST: [0-999999999] has '0-999999999', which is not a range of numbers: 1, 1-3 or 001-100."),
        ("a[1-999]b[1-999]", "SLURM_JOB_NODELIST='a[1-999]b[1-999]' has more than 100000 nodes."),
    ],
)  # fmt: skip
def test_ranges_that_are_none(names: str, said: str) -> None:
    with pytest.raises(JobError) as caught:
        slurm.expand(names)
    assert str(caught.value) == said


def test_counts() -> None:
    assert slurm.counts("4(x2),3", "X") == [4, 4, 3]
    assert slurm.counts("16", "X") == [16]


@pytest.mark.parametrize("wrong", ["", "4(x2", "4x2", "-1", "4(x)", "1(x999999999)"])
def test_texts_that_are_no_counts(wrong: str) -> None:
    with pytest.raises(JobError) as caught:
        slurm.counts(wrong, "SLURM_TASKS_PER_NODE")
    assert str(caught.value) == f"SLURM_TASKS_PER_NODE={wrong!r} is not a number for each node, as in 4(x2),3."


@pytest.mark.parametrize(
    ("more", "gpus"),
    [
        ({}, None),
        ({"SLURM_GPUS_ON_NODE": "4"}, 4),
        ({"SLURM_JOB_GPUS": "0,1,3"}, 3),
        ({"SLURM_GPUS_PER_NODE": "a100:2,v100:1"}, 3),
        ({"SLURM_GPUS_PER_NODE": "gpu:a100:8"}, 8),
        ({"SLURM_GPUS": "8", "SLURM_GPUS_ON_NODE": "4"}, 4),
        ({"SLURM_GPUS": "5", "SLURM_GPUS_ON_NODE": "4"}, None),  # the other node has one
        ({"SLURM_GPUS": "4", "SLURM_JOB_NODELIST": "n1"}, 4),
        ({"SLURM_GPUS_PER_TASK": "2", "SLURM_TASKS_PER_NODE": "3(x2)"}, 6),
        ({"SLURM_GPUS_PER_TASK": "2", "SLURM_TASKS_PER_NODE": "3,1"}, None),
    ],
)
def test_gpus(more: dict[str, str], gpus: int | None) -> None:
    assert {node[4] for node in nodes(NODES | more)} == {gpus}


@pytest.mark.parametrize(
    ("more", "slots"),
    [
        ({}, [1, 1]),  # a job that has been resized has lost its SLURM_TASKS_PER_NODE
        ({"SLURM_NTASKS_PER_NODE": "3"}, [3, 3]),
        ({"SLURM_TASKS_PER_NODE": "8(x2)"}, [8, 8]),
        ({"SLURM_TASKS_PER_NODE": "8(x2)", "SLURM_GPUS_ON_NODE": "4"}, [4, 4]),
        ({"SLURM_TASKS_PER_NODE": "1(x2)", "SLURM_GPUS_ON_NODE": "4", "SLURM_NTASKS": "2"}, [1, 1]),
        ({"SLURM_TASKS_PER_NODE": "1", "SLURM_STEP_ID": "4294967290", "SLURM_STEP_NUM_TASKS": "1"}, [1, 1]),
    ],
)
def test_slots(more: dict[str, str], slots: list[int]) -> None:
    assert [node[1] for node in nodes(NODES | more)] == slots


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"SLURM_TASKS_PER_NODE": "4(x3)"}, "SLURM_TASKS_PER_NODE='4(x3)' is for 3 node(s), but there are 2: if the job was resized, unset SLURM_TASKS_PER_NODE."),
        ({"SLURM_GPUS_ON_NODE": "two"}, "SLURM_GPUS_ON_NODE='two' is not a whole number."),
        ({"SLURM_GPUS_PER_NODE": "a100:many"}, "SLURM_GPUS_PER_NODE='a100:many' is not a number of GPUs, as in 2 or a100:2."),
        ({"SLURM_MEM_PER_NODE": "lots"}, "SLURM_MEM_PER_NODE or SLURM_MEM_PER_CPU: 'lots' is not an amount of memory: write 4096, 512M or 4G."),
        ({"SLURM_HET_SIZE": "2"}, "SLURM_JOB_NODELIST_HET_GROUP_0 is not set: the heterogeneous job has lost a component."),
        ({"SLURM_HET_SIZE": "x"}, "SLURM_HET_SIZE='x' is not a whole number."),
    ],
)  # fmt: skip
def test_wrong_variables(more: dict[str, str], said: str) -> None:
    with pytest.raises(JobError) as caught:
        slurm.read(NODES | more)
    assert str(caught.value) == said
