"""Docker stack files as people have them: lists or maps, shell lines, several services, and what is wrong in them."""

from __future__ import annotations

import pytest

from hvd_kernel.jobs import Bounds, JobError, Replica, Resources, Variable, formats
from hvd_kernel.jobs.quantities import quantity

STACK = """
services:
  train:
    image: train:1
    command: sh -c "mpirun -np 4 python train.py --price=$$5"
    environment: [A=1, B=, C]
    working_dir: /work
    deploy:
      replicas: 2
      resources: {limits: {cpus: "1.5", memory: 512M}, reservations: {generic_resources: [
        {discrete_resource_spec: {kind: NVIDIA-GPU, value: 2}}]}}
"""


def test_a_stack_of_others() -> None:
    with pytest.raises(JobError) as error:
        formats.read(STACK, "stack.yml")
    assert str(error.value) == (
        "stack.yml:5:14: services.train.command: -np 4 ranks do not fit: there are 2 slot(s). Lower -np or add workers."
    )
    spec = formats.read(STACK.replace("-np 4", "-np 2").replace("[A=1", "[HVD_JOB_SLOTS=1, A=1"), "stack.yml")
    each = Resources(Bounds(None, 1.5), Bounds(None, 2**29), 2)
    assert (spec.kind, spec.name, spec.image, spec.workdir) == ("swarm", "train", "train:1", "/work")
    assert spec.replicas == (Replica(resources=each), Replica(index=1, resources=each))
    assert spec.steps == ("python train.py --price=$5",)
    assert spec.environment == (Variable("A", "1"), Variable("B", ""), Variable("C"))


def test_of_several_services_ours_has_the_ranks() -> None:
    other = STACK + "  db: {image: db}\n"
    with pytest.raises(JobError) as error:
        formats.read(other, "stack.yml")
    assert str(error.value) == (
        "stack.yml:3:3: services: one service with ranks is expected, but there are 2: leave the others out."
    )
    ours = other.replace("[A=1", '["HVD_SWARM_SLOT={{.Task.Slot}}", HVD_JOB_SLOTS=2, HVD_JOB_PORT=5, A=1')
    spec = formats.read(ours, "stack.yml")
    assert (spec.size, spec.rendezvous.host if spec.rendezvous else "") == (4, "tasks.train")


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        (
            "replicas: 2",
            "mode: global",
            "9:13: services.train.deploy.mode: 'global' has no number of tasks: write replicated.",
        ),
        ("replicas: 2", "replicas: 0", "9:17: services.train.deploy.replicas: must be a whole number, >= 1."),
        ("512M", "lots", "{}.memory: 'lots' is not an amount of memory: write 4096, 512M or 4G."),
        ('"1.5"', "many", "{}.cpus: 'many' is not a number of cores."),
        (
            "[A=1",
            "[HVD_JOB_SLOTS=x, A=1",
            "6:18: services.train.environment.HVD_JOB_SLOTS: 'x' must be a whole number.",
        ),
    ],
)
def test_errors_name_the_place(old: str, new: str, text: str) -> None:
    with pytest.raises(JobError) as error:
        formats.read(STACK.replace(old, new), "stack.yml")
    assert text.replace("{}", "services.train.deploy.resources.limits") in str(error.value)


def test_thousandths_are_exact() -> None:
    """9 times 1e-3 is not 0.009."""
    assert [quantity(f"{number}m") for number in range(1000)] == [number / 1000 for number in range(1000)]
