"""Pods and tasks: an MPIJob's launcher for each of the three MPIs, our Indexed Job, our swarm service."""

from __future__ import annotations

import pytest

from hvd_kernel.jobs import JobError, JobSpec, RendezvousAddress
from hvd_kernel.jobs.readers import pods

WORKERS = "train-worker-0.train.ml.svc", "train-worker-1.train.ml.svc"
LAUNCHER = {"K_MPI_JOB_ROLE": "launcher", "NVIDIA_VISIBLE_DEVICES": "", "NVIDIA_DRIVER_CAPABILITIES": ""}
OPEN_MPI = LAUNCHER | {
    "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
    "OMPI_MCA_orte_default_hostfile": "/etc/mpi/hostfile",
    "OMPI_MCA_plm_rsh_args": "-o ConnectionAttempts=10",
    "OMPI_MCA_orte_set_default_slots": "4",
}
INTEL = LAUNCHER | {
    "I_MPI_HYDRA_HOST_FILE": "/etc/mpi/hostfile",
    "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS": "-o ConnectionAttempts=10",
    "I_MPI_PERHOST": "4",
}
MPICH = LAUNCHER | {"HYDRA_HOST_FILE": "/etc/mpi/hostfile", "HYDRA_LAUNCH_EXTRA_ARGS": "-o ConnectionAttempts=10"}

INDEXED = {
    "JOB_COMPLETION_INDEX": "2",
    "HVD_JOB_NAME": "train",
    "HVD_JOB_SERVICE": "train-pods",
    "HVD_JOB_SIZE": "3",
    "HVD_JOB_SLOTS": "4",
    "HVD_JOB_PORT": "29400",
    "HVD_SECRET_KEY": "s3cret",
}
SWARM = {
    "HVD_SWARM_SERVICE": "stack_train",
    "HVD_SWARM_SLOT": "3",
    "HVD_JOB_SIZE": "3",
    "HVD_JOB_SLOTS": "2",
    "HVD_JOB_PORT": "29400",
    "HVD_SECRET_KEY": "s3cret",
}


def parts(spec: JobSpec) -> list[tuple[str, int, str, int]]:
    return [(each.role, each.index, each.host, each.slots) for each in spec.replicas]


@pytest.mark.parametrize("env", [OPEN_MPI, INTEL, MPICH, LAUNCHER], ids=["openmpi", "intel", "mpich", "bare"])
@pytest.mark.parametrize("line", ["{} slots=4\n", "{}:4\n"])
def test_the_launcher_of_an_mpijob(env: dict[str, str], line: str) -> None:
    assert pods.is_mpijob_launcher(env)
    spec = pods.mpijob(env, {"/etc/mpi/hostfile": "".join(line.format(name) for name in WORKERS)}.get)
    assert (spec.kind, spec.warnings, spec.rendezvous) == ("mpijob", (), None)
    assert parts(spec) == [("host", 0, WORKERS[0], 4), ("host", 1, WORKERS[1], 4)]


@pytest.mark.parametrize(("env", "slots"), [(OPEN_MPI, 4), (INTEL, 4), (MPICH, 1)])
def test_slots_of_a_file_that_does_not_say(env: dict[str, str], slots: int) -> None:
    assert [each.slots for each in pods.mpijob(env, lambda _: "\n".join(WORKERS)).replicas] == [slots, slots]


def test_another_hostfile_of_the_environment() -> None:
    moved = OPEN_MPI | {"OMPI_MCA_orte_default_hostfile": "/conf/hosts"}
    assert parts(pods.mpijob(moved, {"/conf/hosts": "a:2"}.get)) == [("host", 0, "a", 2)]


def test_a_worker_is_no_launcher() -> None:
    assert not pods.is_mpijob_launcher({"K_MPI_JOB_ROLE": "worker"})
    assert not pods.is_mpijob_launcher({})


def test_a_pod_of_an_indexed_job() -> None:
    assert pods.is_indexed_job(INDEXED)
    assert pods.own(INDEXED) == 2
    spec = pods.indexed_job(INDEXED)
    assert (spec.kind, spec.name, spec.rendezvous) == ("job", "train", RendezvousAddress("train-0.train-pods", 29400))
    assert parts(spec) == [("worker", index, f"train-{index}.train-pods", 4) for index in range(3)]


def test_an_indexed_job_of_others_is_left_alone() -> None:
    assert not pods.is_indexed_job({"JOB_COMPLETION_INDEX": "0"})
    assert not pods.is_swarm_task({"HVD_SWARM_SERVICE": "s"})


def test_a_task_of_a_swarm_service() -> None:
    names = {"tasks.stack_train": ["10.0.1.7", "10.0.1.3"]}  # the third one is not up yet
    assert pods.is_swarm_task(SWARM)
    assert pods.own(SWARM) == 2
    spec = pods.swarm(SWARM, names.__getitem__)
    assert (spec.kind, spec.name, spec.rendezvous) == (
        "swarm",
        "stack_train",
        RendezvousAddress("tasks.stack_train", 29400),
    )
    assert parts(spec) == [("worker", index, "", 2) for index in range(3)]


def test_one_pod_needs_no_secret() -> None:
    alone = {name: value for name, value in INDEXED.items() if name != "HVD_SECRET_KEY"}
    assert pods.indexed_job(alone | {"HVD_JOB_SIZE": "1", "JOB_COMPLETION_INDEX": "0"}).size == 4


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"HVD_JOB_SERVICE": ""}, "HVD_JOB_SERVICE is not set: `hvdrun job write` puts it into the file."),
        ({"HVD_JOB_SLOTS": "0"}, "HVD_JOB_SLOTS='0' must be a whole number, at least 1."),
        ({"HVD_JOB_SIZE": "many"}, "HVD_JOB_SIZE='many' must be a whole number, at least 1."),
        ({"HVD_JOB_PORT": "70000"}, "HVD_JOB_PORT=70000 is not a port: at most 65535."),
        ({"JOB_COMPLETION_INDEX": "3"}, "JOB_COMPLETION_INDEX=3 is beyond HVD_JOB_SIZE=3: scale the job by its file, not by hand."),
        ({"HVD_SECRET_KEY": ""}, "HVD_SECRET_KEY is not set: the 3 parts of train know each other by it, from a Secret."),
    ],
)  # fmt: skip
def test_indexed_jobs_that_cannot_be(more: dict[str, str], said: str) -> None:
    with pytest.raises(JobError) as caught:
        pods.indexed_job(INDEXED | more)
    assert str(caught.value) == said


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({}, "tasks.stack_train has no address: the service stack_train must be on an overlay network of its stack."),
        ({"HVD_SWARM_SLOT": "0"}, "HVD_SWARM_SLOT='0' must be a whole number, at least 1."),
        ({"HVD_SWARM_SLOT": "4"}, "HVD_SWARM_SLOT=4 is beyond HVD_JOB_SIZE=3: scale the job by its file, not by hand."),
    ],
)
def test_swarm_tasks_that_cannot_be(more: dict[str, str], said: str) -> None:
    with pytest.raises(JobError) as caught:
        pods.swarm(SWARM | more, lambda _: [])
    assert str(caught.value) == said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "the MPIJob's hostfile /etc/mpi/hostfile cannot be read: the operator mounts it in the launcher's pod."),
        ("", "/etc/mpi/hostfile:1:1: the hostfile names no host: write lines like `host slots=4`."),
    ],
)
def test_mpijobs_that_cannot_be(text: str | None, said: str) -> None:
    with pytest.raises(JobError) as caught:
        pods.mpijob(OPEN_MPI, lambda _: text)
    assert str(caught.value) == said
