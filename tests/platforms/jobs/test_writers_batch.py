"""Batch scripts for Slurm and LSF: as writers make them, replica by replica, and as people have them."""

from __future__ import annotations

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
