"""Batch scripts for Slurm and LSF: as writers make them, replica by replica, and as people have them."""

from __future__ import annotations

import time

import msgspec
import pytest

from hvd_kernel.jobs import Bounds, JobError, JobSpec, RendezvousAddress, Replica, Resources, Variable, formats, writers

SMALL = Resources(Bounds(1, 2), Bounds(2**28, 2**30), 1)
LARGE = Resources(Bounds(2, 4), Bounds(2**29, 2**31), 1)
SPEC = JobSpec(
    "polyaxonfile", (Replica(resources=SMALL), Replica(index=1, resources=SMALL)), steps=("python train.py",)
)
THREE = msgspec.structs.replace(SPEC, replicas=(*SPEC.replicas, Replica(index=2, resources=LARGE, slots=2)))


def lines(spec: JobSpec, kind: str, start: str = "#SBATCH") -> list[str]:
    return [line for line in writers.write(spec, kind).splitlines() if line.startswith(start)]


def notes(spec: JobSpec, kind: str) -> list[str]:
    return [line.removeprefix("# note: ") for line in lines(spec, kind, "# note: ")]


def refused(spec: JobSpec, kind: str) -> str:
    with pytest.raises(JobError) as error:
        writers.write(spec, kind)
    return str(error.value)


def test_replicas_that_differ_are_components_which_one_srun_joins() -> None:
    assert lines(THREE, "slurm") == [
        *("#SBATCH --nodes=2", "#SBATCH --ntasks-per-node=1", "#SBATCH --cpus-per-task=2", "#SBATCH --mem=1024M"),
        *("#SBATCH --gpus-per-node=1", "#SBATCH hetjob"),
        *("#SBATCH --nodes=1", "#SBATCH --ntasks-per-node=2", "#SBATCH --cpus-per-task=2", "#SBATCH --mem=2048M"),
        "#SBATCH --gpus-per-node=1",
    ]
    assert lines(THREE, "slurm", "srun") == ["srun --het-group=0-1 --cpu-bind=none python train.py"]


def test_a_component_says_what_another_says() -> None:
    """Slurm takes over for a component what the first one says."""
    spec = msgspec.structs.replace(SPEC, replicas=(SPEC.replicas[0], Replica(index=1)))
    second = lines(spec, "slurm")[lines(spec, "slurm").index("#SBATCH hetjob") :]
    assert second[-3:] == ["#SBATCH --cpus-per-task=1", "#SBATCH --mem=0M", "#SBATCH --gpus-per-node=0"]


def test_fewer_ranks_than_slots_fill_node_by_node() -> None:
    spec = msgspec.structs.replace(SPEC, replicas=tuple(Replica(index=index, slots=4) for index in range(3)), np=6)
    assert lines(spec, "slurm", "srun") == ["srun --ntasks=6 --distribution=plane=4 python train.py"]
    assert lines(spec, "slurm")[:2] == ["#SBATCH --nodes=2", "#SBATCH --ntasks-per-node=4"]
    assert notes(spec, "slurm") == ["worker 2 left out: np 6 gives them no rank"]
    mixed = msgspec.structs.replace(THREE, np=3)
    assert notes(mixed, "slurm")[0] == "worker 2 has 1 of its 2 slots: the others stay free"
    assert lines(mixed, "slurm").count("#SBATCH --ntasks-per-node=1") == 2
    assert lines(spec, "lsf", "#BSUB -n") == ["#BSUB -n 6"]
    assert formats.read(writers.write(spec, "lsf"), "x").np == 6


def test_what_a_scheduler_cannot_say_is_noted() -> None:
    odd = Resources(Bounds(0.5, 1.5), Bounds(1000, 3 * 2**20 + 1))
    spec = msgspec.structs.replace(
        SPEC,
        replicas=(Replica(slots=2, host="n1", resources=odd),),
        image="train:1",
        interfaces=("eth0",),
        rendezvous=RendezvousAddress("n1"),
        environment=(Variable("HOROVOD_SECRET_KEY", "hidden"),),
    )
    common = [
        "hosts n1 are left out: {} chooses",
        "the image train:1 is left out: ranks run in the environment of the cluster",
    ]
    common.append("HOROVOD_SECRET_KEY of the environment left out: each run has one of its own")
    assert notes(spec, "slurm") == [
        *(each.format("Slurm") for each in common),
        "the ranks meet at the first node",
        "interfaces eth0 left out: HVD_TCP_INTERFACE names one",
        "1.5 cores for 2 ranks became 1 for each: Slurm counts whole ones",
        "memory of 3145729 bytes became 4 MiB: only whole MiB can be requested",
        "cpu: the limit is requested, as in Slurm request and limit are the same",
        "memory: the limit is requested, as in Slurm request and limit are the same",
    ]
    assert notes(spec, "lsf") == [
        *(each.format("LSF") for each in common),
        "the ranks meet at the address of hvdrun",
        "1.5 cores for 2 ranks became 1 for each: LSF counts whole ones",
        "memory of 1000 bytes became 1 MiB: only whole MiB can be requested",
        "memory of 3145729 bytes became 4 MiB: only whole MiB can be requested",
        "cpu: the limit is requested, as in LSF request and limit are the same",
    ]
    assert "hidden" not in writers.write(spec, "slurm")


@pytest.mark.parametrize(
    ("change", "kind", "text"),
    [
        ({"steps": ()}, "slurm", "steps: the job does not say what to run: give a command."),
        ({"name": "a\nb"}, "slurm", "job-name: 'a\\nb' has a line end: a script's head takes it in one line."),
        ({"workdir": "a\nb"}, "lsf", "cwd: 'a\\nb' has a line end: a script's head takes it in one line."),
        (
            {"steps": ("a\rb",)},
            "lsf",
            "steps: \"hvdrun sh -c 'a\\rb'\" has the control character '\\r', which no script can hold: leave it out.",
        ),
        (
            {"environment": (Variable("a.b", "1"),)},
            "slurm",
            "environment: a script takes no variable 'a.b': rename it, or leave it out.",
        ),
        (
            {"replicas": THREE.replicas},
            "lsf",
            ("worker 2: slots differ from those of worker 0, and all of one LSF job are alike: give all the larger ones, or "
            "write a slurm script, where they may differ."),
        ),
        ({"name": "a b", "image": "x"}, "swarm", "name: 'a b' is not a service's name: letters, digits, dots, dashes, at most 63."),
        ({}, "swarm", "image: a task needs one that has hvd_kernel in it: give it."),
    ],
)  # fmt: skip
def test_what_no_file_can_hold_is_refused(change: dict[str, object], kind: str, text: str) -> None:
    assert refused(msgspec.structs.replace(SPEC, **change), kind) == text


SBATCH = """#!/bin/bash
#SBATCH -J resnet -N 2-4 --ntasks-per-node 4   # comment
#SBATCH --time=01:00:00
#SBATCH --gres=gpu:a100:4,license:1
#SBATCH --mem=64G --cpus-per-task=8 --exclusive
#SBATCH -D /work
module load cuda   # it's on every node
export NCCL_DEBUG=INFO "TITLE=a b"
export PATH=/opt/bin:$PATH
srun --mpi=pmix -u \\
     --cpu-bind cores python prepare.py
mpirun -np 8 -x LR=0.1 python train.py
"""


def test_a_persons_sbatch_script() -> None:
    spec = formats.read(SBATCH, "train.sbatch")
    each = Resources(Bounds(32, 32), Bounds(2**36, 2**36), 4)
    assert (spec.kind, spec.name, spec.workdir, spec.np) == ("slurm", "resnet", "/work", 0)
    assert spec.replicas == tuple(Replica(index=index, slots=4, resources=each) for index in range(2))
    assert spec.steps == ("python prepare.py", "python train.py")
    assert spec.environment == (Variable("NCCL_DEBUG", "INFO"), Variable("TITLE", "a b"), Variable("LR", "0.1"))
    assert spec.warnings == (
        "train.sbatch:7: `module load cuda` is ignored: it is run once, not by the ranks",
        "train.sbatch:9: `export PATH=/opt/bin:$PATH` is ignored: it is run once, not by the ranks",
    )


@pytest.mark.parametrize(
    ("head", "replicas", "np"),
    [
        ("-n5 --ntasks-per-node=2", [2, 2, 2], 5),
        ("-n 6 -N 2", [3, 3], 0),
        ("-n4", [4], 0),
        ("", [1], 0),
    ],
)
def test_nodes_and_tasks(head: str, replicas: list[int], np: int) -> None:
    spec = formats.read(f"#!/bin/sh\n#SBATCH {head}\nsrun python x.py\n", "x")
    assert ([each.slots for each in spec.replicas], spec.np) == (replicas, np)


@pytest.mark.parametrize(
    ("head", "gpus"),
    [
        ("--gpus-per-node=4", 4),
        ("--gpus-per-node=a100:4", 4),
        ("--gpus-per-task=2 --ntasks-per-node=3", 6),
        ("-G 8 -N 2", 4),
        ("--gres=gpu", 1),
        ("--gres=license:1", None),
    ],
)
def test_devices_of_a_node(head: str, gpus: int | None) -> None:
    assert formats.read(f"#SBATCH {head}\nsrun x\n", "x").replicas[0].resources.gpus == gpus


def test_srun_of_a_heterogeneous_job_without_a_group_is_the_first_components() -> None:
    script = "#SBATCH -N 2\n#SBATCH hetjob\n#SBATCH -N 1\nsrun python x.py\n"
    spec = formats.read(script, "x")
    assert (len(spec.replicas), spec.warnings) == (2, ("srun without --het-group uses the first component alone",))
    assert len(formats.read(script.replace("srun", "srun --het-group=0,1"), "x").replicas) == 3


@pytest.mark.parametrize(
    ("script", "text"),
    [
        ("#SBATCH --nodes=many\nsrun x\n", ("x:1: #SBATCH: nodes 'many' must be a number of nodes, at least 1, or two of them, as in "
         "2-4.")),
        ("\n#SBATCH -n 0\nsrun x\n", "x:2: #SBATCH: ntasks '0' must be a whole number, at least 1."),
        ("#SBATCH --mem=lots\nsrun x\n", "x:1: #SBATCH: mem: 'lots' is not an amount of memory: write 4096, 512M or 4G."),
        ("#SBATCH --gpus-per-node=some\nsrun x\n", "x:1: #SBATCH: gpus-per-node 'some' must be a number of GPUs, as in 4 or a100:4."),
        ("#SBATCH nodes=2\nsrun x\n", "x:1: #SBATCH: nodes=2 '' is not a flag of sbatch."),
        ("#SBATCH --job-name='a\nsrun x\n", "x:1: #SBATCH: no closing quotation: close it."),
        ("#SBATCH -N1\nsrun -n many x\n", "x:2: -n many: must be a whole number of tasks, at least 1."),
        ("#SBATCH -N1\necho 'a\nsrun x\n", "x:2: a quote is not closed: close it, or write a backslash before it."),
        ("#BSUB -n 4 -R span[ptile=2]\nmpirun -np 8 x\n", "x: 8 ranks do not fit: -n gives 4 slot(s)."),
        ("#BSUB -n four\nhvdrun x\n", "x:1: #BSUB: n 'four' must be a whole number, at least 1."),
    ],
)  # fmt: skip
def test_errors_name_the_line(script: str, text: str) -> None:
    with pytest.raises(JobError) as error:
        formats.read(script, "x")
    assert str(error.value) == text


def test_what_a_pipe_of_the_batch_shell_is_refused_with() -> None:
    with pytest.raises(JobError, match="'>' belongs to the shell"):
        formats.read("#SBATCH -N1\nsrun python x.py > log\n", "x")


BSUB = """#!/bin/bash
#BSUB -J resnet -n 8 -q gpu -W 2:00
#BSUB -R "select[type==any] span[ptile=4] rusage[mem=1GB/task]"
#BSUB -R affinity[core(2):distribute=pack]
#BSUB -gpu num=1/task:mode=exclusive_process
#BSUB -M 2097152
jsrun -n 8 python other.py
mpirun python train.py
"""


def test_a_persons_bsub_script() -> None:
    spec = formats.read(BSUB, "train.bsub")
    each = Resources(Bounds(8, 8), Bounds(2**32, 2**33), 4)
    assert (spec.kind, spec.name, spec.np, spec.steps) == ("lsf", "resnet", 0, ("python train.py",))
    assert spec.replicas == (Replica(slots=4, resources=each), Replica(index=1, slots=4, resources=each))
    assert spec.warnings == ("train.bsub:7: `jsrun -n 8 python other.py` is ignored: it is run once, not by the ranks",)


def test_a_hostile_requirement_takes_no_time_that_anybody_notices() -> None:
    """It took 14 s of CPU time: each bracket was tried with all that follow it."""
    script = f"#BSUB -n 2 -R '{'span[' * 12_000}ptile=2]'\nhvdrun x\n"
    before = time.process_time()
    assert [each.slots for each in formats.read(script, "x").replicas] == [2]
    assert time.process_time() - before < 0.5
