"""Kubernetes manifests: schemas of Kubernetes 1.37 and of the operators; names, secrets, devices, what is left out."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
import yaml

from hvd_kernel.jobs import Bounds, JobError, JobSpec, RendezvousAddress, Replica, Resources, Variable, formats, writers
from hvd_kernel.jobs.writers import WriterOptions

DATA = Path(__file__).parents[1] / "data"
WHOLE = Resources(Bounds(0.5, 2), Bounds(2**28, 2**30), 1)
PLAIN = JobSpec("riseml", (Replica(slots=2),), steps=("python train.py",), image="train:1")
FULL = msgspec.structs.replace(
    PLAIN,
    replicas=tuple(Replica(index=index, slots=4, resources=WHOLE) for index in range(3)),
    environment=(Variable("A", "1"), Variable("B.c", "")),
    steps=("a", "b | c"),
    workdir="/w",
    interfaces=("eth0", "ib0"),
)
LED = msgspec.structs.replace(FULL, replicas=(Replica("master", 0, slots=4), *FULL.replicas))


def objects(spec: JobSpec, kind: str, **options: Any) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(writers.write(spec, kind, WriterOptions(**options))))


def job(spec: JobSpec, **options: Any) -> dict[str, Any]:
    return next(each for each in objects(spec, "job", **options) if each["kind"] == "Job")


def refused(spec: JobSpec, kind: str) -> str:
    with pytest.raises(JobError) as error:
        writers.write(spec, kind)
    return str(error.value)


@cache
def validator(definition: str) -> jsonschema.Draft202012Validator:
    schema = json.loads((DATA / "schemas" / "kubernetes-1.37.json").read_text())
    return jsonschema.Draft202012Validator({"$defs": schema["$defs"], "$ref": f"#/$defs/{definition}"})


def own(name: str) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(json.loads((DATA / "schemas" / name).read_text()))


@pytest.mark.parametrize("spec", [PLAIN, FULL])
@pytest.mark.parametrize("secret", ["", "0123"])
def test_kubernetes_takes_the_objects(spec: JobSpec, secret: str) -> None:
    places = {"Job": "io.k8s.api.batch.v1.Job", "Service": "io.k8s.api.core.v1.Service"}
    places["Secret"] = "io.k8s.api.core.v1.Secret"
    found = objects(spec, "job", secret=secret)
    assert [each["kind"] for each in found] == (["Secret"] if secret else []) + ["Service", "Job"]
    for each in found:
        validator(places[each["kind"]]).validate(each)


@pytest.mark.parametrize("spec", [PLAIN, FULL, LED])
def test_the_operator_takes_the_mpijob(spec: JobSpec) -> None:
    (found,) = objects(spec, "mpijob")
    own("mpijob.json").validate(found)
    for each in found["spec"]["mpiReplicaSpecs"].values():
        validator("io.k8s.api.core.v1.PodTemplateSpec").validate(each["template"])


@pytest.mark.parametrize("spec", [PLAIN, FULL])
def test_the_trainer_takes_the_trainjob(spec: JobSpec) -> None:
    (found,) = objects(spec, "trainjob", runtime="ours")
    own("trainjob.json").validate(found)
    assert found["spec"]["runtimeRef"] == {"name": "ours"}
    trainer = found["spec"]["trainer"]
    validator("io.k8s.api.core.v1.ResourceRequirements").validate(trainer.get("resourcesPerNode", {}))
    for each in trainer.get("env", []):
        validator("io.k8s.api.core.v1.EnvVar").validate(each)


def test_the_schemas_see_what_is_wrong() -> None:
    wrong = job(PLAIN)
    wrong["spec"]["template"]["spec"]["containers"][0]["imagee"] = "x"
    with pytest.raises(jsonschema.ValidationError, match="imagee"):
        validator("io.k8s.api.batch.v1.Job").validate(wrong)


def test_the_secret_is_nowhere_but_in_the_secret() -> None:
    spoken = msgspec.structs.replace(PLAIN, environment=(Variable("HVD_SECRET_KEY", "plain"),), name="it")
    text = writers.write(spoken, "job", WriterOptions(secret="0123"))
    assert text.count("0123") == 1
    assert "plain" not in text
    assert "note: HVD_SECRET_KEY of the environment left out: the Secret it-secret has it" in text
    (secret, _service, found) = yaml.safe_load_all(text)
    assert secret["stringData"] == {"HVD_SECRET_KEY": "0123"}
    (variable,) = (each for each in container(found)["env"] if each["name"] == "HVD_SECRET_KEY")
    assert variable["valueFrom"]["secretKeyRef"] == {"name": "it-secret", "key": "HVD_SECRET_KEY"}


def container(found: dict[str, Any]) -> dict[str, Any]:
    return found["spec"]["template"]["spec"]["containers"][0]


def test_without_a_secret_the_head_says_how_to_make_it() -> None:
    by_hand = "kubectl create secret generic hvd-secret --from-literal=HVD_SECRET_KEY=$(openssl rand -hex 32)"
    assert f"#   {by_hand}\n" in writers.write(PLAIN, "job")


def test_every_pod_knows_its_job() -> None:
    found = job(msgspec.structs.replace(FULL, name="it"), port=1234)
    env = {each["name"]: each.get("value") for each in container(found)["env"]}
    told = {"HVD_JOB_NAME": "it", "HVD_JOB_SERVICE": "it", "HVD_JOB_SIZE": "3", "HVD_JOB_SLOTS": "4"}
    assert told.items() <= env.items()
    assert env["HVD_JOB_PORT"] == "1234"
    spec = found["spec"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"], spec["backoffLimit"]) == (
        "Indexed",
        3,
        3,
        0,
    )
    assert spec["template"]["spec"]["restartPolicy"] == "Never"
    assert spec["template"]["spec"]["subdomain"] == "it"


def test_all_pods_wait_for_each_other_between_steps() -> None:
    first, between, last = container(job(FULL))["args"][0].splitlines()
    assert first == "hvdrun --network-interfaces eth0,ib0 --start-timeout 600 a"
    assert "barrier()" in between
    assert last == "exec hvdrun --network-interfaces eth0,ib0 --start-timeout 600 sh -c 'b | c'"
    assert "barrier" not in container(job(msgspec.structs.replace(PLAIN, steps=("a", "b"))))["args"][0]


@pytest.mark.parametrize(
    ("resources", "options", "size"),
    [
        (Resources(), {}, "2Gi"),
        (Resources(memory_bytes=Bounds(2**30, 2**31)), {}, "1Gi"),
        (Resources(memory_bytes=Bounds(2**30)), {}, "512Mi"),
        (Resources(memory_bytes=Bounds(2**30)), {"shm_bytes": 1000}, "1000"),
    ],
)
def test_shared_memory_has_a_size(resources: Resources, options: dict[str, int], size: str) -> None:
    spec = msgspec.structs.replace(PLAIN, replicas=(Replica(slots=2, resources=resources),))
    pod = job(spec, **options)["spec"]["template"]["spec"]
    assert pod["volumes"] == [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": size}}]
    assert pod["containers"][0]["volumeMounts"] == [{"name": "shm", "mountPath": "/dev/shm"}]


def test_resources_are_quantities_and_devices_are_limits() -> None:
    assert container(job(FULL))["resources"] == {
        "requests": {"cpu": "500m", "memory": "256Mi"},
        "limits": {"cpu": "2", "memory": "1Gi", "nvidia.com/gpu": 1},
    }


@pytest.mark.parametrize("text", ["y", "N", "1e3", "0o7", "012", "1_000", "on", "null", "~", "", "0x1F", "1:30", ".5"])
def test_texts_that_some_reader_takes_for_something_else_are_quoted(text: str) -> None:
    spec = msgspec.structs.replace(PLAIN, environment=(Variable("A", text),))
    written = writers.write(spec, "job")
    assert f'value: "{text}"' in written or f"value: '{text}'" in written


def test_a_master_with_ranks_is_the_launcher_as_a_worker() -> None:
    (found,) = objects(LED, "mpijob")
    assert found["spec"]["runLauncherAsWorker"] is True
    specs = found["spec"]["mpiReplicaSpecs"]
    assert (specs["Launcher"]["replicas"], specs["Worker"]["replicas"]) == (1, 3)
    assert "resources" not in specs["Launcher"]["template"]["spec"]["containers"][0]
    (without,) = objects(FULL, "mpijob")
    assert "runLauncherAsWorker" not in without["spec"]


def test_replicas_without_a_rank_are_left_out() -> None:
    text = writers.write(msgspec.structs.replace(FULL, np=8), "job")
    assert text.startswith("# 8 ranks in 2 pods of 4, without an operator.")
    assert "# note: worker 2 left out: np 8 gives them no rank\n" in text
    assert formats.read(text, "x").size == 8


def test_fewer_ranks_than_slots() -> None:
    """A pod starts its own ranks, and knows no others; a launcher starts all."""
    alone = job(msgspec.structs.replace(PLAIN, np=1))
    assert next(each for each in container(alone)["env"] if each["name"] == "HVD_JOB_SLOTS")["value"] == "1"
    assert container(alone)["args"] == ["exec hvdrun python train.py"]
    (found,) = objects(msgspec.structs.replace(FULL, np=10, steps=("a",), interfaces=()), "trainjob")
    assert found["spec"]["trainer"]["args"] == ["cd /w\nexec hvdrun -np 10 a"]


def test_what_no_manifest_says_stands_at_its_head() -> None:
    spec = msgspec.structs.replace(
        PLAIN,
        replicas=(Replica("host", 0, "n1"), Replica("host", 1, "n2", command="sleep infinity")),
        environment=(Variable("PATH"), Variable("LD_LIBRARY_PATH")),
        requires=("torch==2.4",),
        rendezvous=RendezvousAddress("n1", 4000),
        warnings=("a warning\nof two lines",),
    )
    notes = [line for line in writers.write(spec, "job").splitlines() if line.startswith("# note: ")]
    assert notes == [
        "# note: hosts n1, n2 are left out: Kubernetes chooses",
        "# note: what replicas run themselves is left out: sleep infinity",
        "# note: must be installed there: torch==2.4",
        "# note: a warning of two lines",
        "# note: PATH, LD_LIBRARY_PATH left as the image has it: a container does not inherit its launcher's environment",
        "# note: the ranks meet at hvd-0.hvd, the first pod, and not at n1",
    ]
    assert formats.read(writers.write(spec, "job"), "x").rendezvous == RendezvousAddress("hvd-0.hvd", 4000)


LONG = "a" * 60
DIFFERENT = msgspec.structs.replace(PLAIN, replicas=(Replica(), Replica(index=2, resources=WHOLE)))


@pytest.mark.parametrize(
    ("spec", "kind", "text"),
    [
        ({"image": ""}, "job", "image: a container needs one that has hvd_kernel in it: give it."),
        ({"steps": ()}, "mpijob", "steps: the job does not say what to run: give a command."),
        ({"steps": ("a\0b",)}, "job", "steps: 'a\\x00b' has a NUL character: leave it out."),
        (
            {"name": "My_Job"},
            "job",
            "name: 'My_Job' is not a Job's name (small letters, digits and dashes, a letter first), such as 'my-job'.",
        ),
        (
            {"name": LONG, "replicas": tuple(Replica(index=index) for index in range(101))},
            "job",
            (
                f"name: '{LONG}' is too long for this Job: the name of its pod {LONG}-100 has 64 characters, and 63 are allowed: "
                "shorten it by 1."
            ),
        ),
        (
            {"name": LONG},
            "mpijob",
            (
                f"name: '{LONG}' is too long for this MPIJob: the name of its pod {LONG}-worker-0 has 69 characters, and 63 are "
                "allowed: shorten it by 6."
            ),
        ),
        (
            {"name": LONG},
            "trainjob",
            (
                f"name: '{LONG}' is too long for this TrainJob: the name of its pod {LONG}-launcher-0-0 has 73 characters, and "
                "63 are allowed: shorten it by 10."
            ),
        ),
        (
            {"replicas": DIFFERENT.replicas},
            "trainjob",
            (
                "worker 2: resources differ from those of worker 0, and all of one TrainJob are alike: give all the larger ones, "
                "or write a slurm script, where they may differ."
            ),
        ),
        (
            {"replicas": (Replica(), Replica(index=1, slots=2))},
            "mpijob",
            (
                "worker 1: slots differ from those of worker 0, and all of one MPIJob are alike: give all the larger ones, or "
                "write a slurm script, where they may differ."
            ),
        ),
        (
            {"environment": (Variable("HVD_JOB_SIZE", "1"),)},
            "job",
            "environment: HVD_JOB_SIZE has another meaning there: leave it out.",
        ),
        (
            {"environment": (Variable("1 A", "1"),)},
            "mpijob",
            "environment: Kubernetes takes no variable '1 A': rename it, or leave it out.",
        ),
        (
            {"np": 3, "replicas": (Replica(slots=2), Replica(index=1, slots=2))},
            "job",
            "np: 3 ranks do not fill 2 pods of 2: request 2 or 4.",
        ),
        ({"interfaces": ("a b",)}, "job", "interfaces: 'a b' is not a network interface's name, such as eth0."),
        ({"image": "a" * 501}, "trainjob", "image: the Trainer takes at most 500 characters."),
        (
            {"environment": tuple(Variable(f"A{n}", "") for n in range(129))},
            "trainjob",
            "environment: the Trainer takes at most 128 variables.",
        ),
    ],
)
def test_what_kubernetes_would_refuse_is_refused(spec: dict[str, Any], kind: str, text: str) -> None:
    assert refused(msgspec.structs.replace(PLAIN, **spec), kind) == text


def test_a_kind_that_is_not_there() -> None:
    kinds = "job, mpijob, trainjob, swarm, slurm, lsf"
    assert refused(PLAIN, "k8s") == f"'k8s' is not a kind of file that is written: there are {kinds}."


def test_the_polyaxonfile_becomes_an_mpijob_only_where_its_workers_are_alike() -> None:
    spec = formats.read((DATA / "polyaxonfile.yml").read_text(), "polyaxonfile.yml")
    spec = msgspec.structs.replace(spec, image="python:3.11", name="it")
    assert refused(spec, "mpijob").startswith("worker 2: resources differ from those of worker 0")
    same = [msgspec.structs.replace(each, resources=spec.replicas[1].resources) for each in spec.replicas]
    (found,) = objects(msgspec.structs.replace(spec, replicas=tuple(same)), "mpijob")
    assert found["spec"]["runLauncherAsWorker"] is True
    assert found["spec"]["mpiReplicaSpecs"]["Worker"]["replicas"] == 7
