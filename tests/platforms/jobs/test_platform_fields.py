"""Settings of schedulers: a file written for the same platform keeps each; another platform's keeps it or names it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hvdtest import golden
from hypothesis import given
from hypothesis import strategies as st

from hvd_kernel.errors import ConfigError
from hvd_kernel.jobs import (
    Bounds,
    JobError,
    JobSpec,
    PlatformField,
    Replica,
    Resources,
    formats,
    platform_fields,
    writers,
)
from hvd_kernel.jobs.platform_fields import (
    FLAGS,
    GPU_RESOURCE,
    GPU_TYPE,
    LAUNCHER,
    NOT_CARRIED,
    SETUP,
    SHELL,
    TITLES,
    WORKER,
)
from hvd_kernel.launch.cli import job

DATA = Path(__file__).parents[1] / "data"
TABLE = DATA / "carried.json"
BATCH = ("slurm", "lsf")
KINDS = [kind for kind in writers.WRITERS if kind != "kustomize"]  # it has the objects of "job", and a policy
BASH_LOGIN = ["/bin/bash", "-lec"]

WORD = st.from_regex(r"[a-z][a-z0-9_]{0,6}", fullmatch=True)
TEXT = st.one_of(WORD, st.sampled_from(["a b", "it's", "x$HOME", "a&b|c", '"q"', "y", "012", "[1-3]", "a#b", "*"]))
STRINGS = st.dictionaries(WORD, TEXT, min_size=1, max_size=2)
TREE = st.recursive(
    st.one_of(TEXT, st.integers(1, 99), st.booleans()),
    lambda inner: st.lists(inner, min_size=1, max_size=2) | st.dictionaries(WORD, inner, min_size=1, max_size=2),
    max_leaves=4,
)
MINUTES = st.integers(1, 20_000).map(lambda number: 60 * number)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "time_limit_s": MINUTES,
    "output": st.sampled_from(["log.txt", "out/%j.log"]),
    "error": st.sampled_from(["err.txt", "%j.err"]),
    "input": st.just("in.txt"),
    "exclusive": st.just(value=True),
    "hold": st.just(value=True),
    "requeue": st.just(value=True),
    "suspend": st.just(value=True),
    "ttl_s": st.integers(0, 999),
    "backoff_limit": st.integers(1, 9),
    "restart_policy": st.just("OnFailure"),
    f"{LAUNCHER}restart_policy": st.just("OnFailure"),
}
POD = {
    "tolerations": st.lists(STRINGS, min_size=1, max_size=2),
    "nodeSelector": STRINGS,
    "affinity": st.dictionaries(WORD, TREE, min_size=1, max_size=1),
    "securityContext": st.just({"runAsUser": 1000, "fsGroup": 7}),
    "serviceAccountName": WORD,
    "imagePullSecrets": st.just([{"name": "regcred"}]),
    "priorityClassName": WORD,
    "schedulerName": WORD,
    "hostNetwork": st.just(value=True),
    "volumes": st.just([{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]),
    "initContainers": st.just([{"name": "b", "image": "b"}]),
    "containers": st.just([{"name": "log", "image": "x"}]),
}
CONTAINER = {
    "resources": st.just({"limits": {"rdma/hca": 1}, "requests": {"rdma/hca": 1}}),
    "securityContext": st.just({"capabilities": {"add": ["IPC_LOCK"]}}),
    "volumeMounts": st.just([{"name": "data", "mountPath": "/data"}]),
    "imagePullPolicy": st.just("Always"),
    "name": st.just("main"),
}
METADATA = {"labels": STRINGS, "annotations": STRINGS}
ENVIRONMENT = {
    "container.env": st.just([{"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]),
    "container.envFrom": st.just([{"configMapRef": {"name": "settings"}}]),
}
NAMES = {
    SETUP: st.sampled_from(["module load cuda", "source env/bin/activate", "export PATH=/opt/bin:$PATH"]),
    "metadata.namespace": WORD,
    "metadata.labels": st.just({"kueue.x-k8s.io/queue-name": "team"}),
    "metadata.annotations": STRINGS,
}


def grouped(group: str, keys: dict[str, st.SearchStrategy[Any]]) -> dict[str, st.SearchStrategy[Any]]:
    return {f"{group}.{key}": values for key, values in keys.items()}


PODS = {**grouped("pod", POD), **grouped("container", CONTAINER), **grouped("pod_metadata", METADATA)}
BASH = {SHELL: st.just(BASH_LOGIN), GPU_RESOURCE: st.just("amd.com/gpu")}
OF_KIND: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "slurm": {
        SETUP: NAMES[SETUP],
        SHELL: st.just(BASH_LOGIN),
        GPU_TYPE: st.just("a100"),
        **{f"slurm.{flag}": TEXT for flag in ("qos", "constraint", "array", "signal", "image", "licenses", "gres")},
        **{f"slurm.{flag}": st.just(value=True) for flag in ("overcommit", "parsable")},
    },
    "lsf": {
        SETUP: NAMES[SETUP],
        SHELL: st.just(BASH_LOGIN),
        "lsf.array": st.sampled_from(["[1-10]", "[1-10:2]%4"]),
        "lsf.R": st.sampled_from(["select[type==any]", "rusage[lic=1] select[mem>5]"]),
        "lsf.affinity": st.just("distribute=pack"),
        "lsf.gpu": st.just("mode=exclusive_process:j_exclusive=yes"),
        **{f"lsf.{flag}": TEXT for flag in ("w", "m", "G", "sp")},
    },
    "job": {
        **NAMES,
        **PODS,
        **ENVIRONMENT,
        **BASH,
        "job.podFailurePolicy": st.just({"rules": [{"action": "FailJob"}]}),
        "objects": st.just({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"}}),
    },
    "mpijob": {
        **NAMES,
        **PODS,
        **ENVIRONMENT,
        **BASH,
        **grouped(f"{LAUNCHER}pod", POD),
        **grouped(f"{LAUNCHER}container", {**CONTAINER, "image": st.just("other:1")}),
        **grouped(f"{LAUNCHER}pod_metadata", METADATA),
        f"{WORKER}command": st.just(["/usr/sbin/sshd", "-De"]),
        f"{WORKER}env": st.just([{"name": "A", "value": "1"}]),
        "mpijob.runPolicy.cleanPodPolicy": st.just("All"),
        "mpijob.runPolicy.schedulingPolicy": st.just({"queue": "q", "minAvailable": 3}),
        "mpijob.sshAuthMountPath": st.just("/home/mpi/.ssh"),
        "mpijob.mpiImplementation": st.just("Intel"),
    },
    "trainjob": {
        **NAMES,
        **BASH,
        "container.env": ENVIRONMENT["container.env"],
        "container.resources": CONTAINER["resources"],
        "trainjob.runtimeRef": st.just({"name": "torch", "kind": "TrainingRuntime"}),
        "trainjob.labels": STRINGS,
        "trainjob.runtimePatches": st.just([{"manager": "x"}]),
    },
    "swarm": {
        SETUP: NAMES[SETUP],
        SHELL: st.just(BASH_LOGIN),
        "swarm.service.healthcheck": st.just({"disable": True}),
        "swarm.service.volumes": st.just(["data:/data"]),
        "swarm.deploy.placement": st.just({"constraints": ["node.labels.gpu == 1"]}),
        "swarm.volumes": st.just({"data": {"external": True}}),
        "swarm.services": st.just({"db": {"image": "db"}}),
    },
}


@st.composite
def settings(draw: st.DrawFn, kind: str) -> tuple[PlatformField, ...]:
    """Return settings of a platform: any of the table, and of those that only it has."""
    shared = {name: VALUES.get(name, TEXT) for name, row in FLAGS.items() if kind in row}
    candidates = {**shared, **OF_KIND[kind]}
    names = draw(st.lists(st.sampled_from(sorted(candidates)), unique=True))
    if kind in BATCH and SETUP in names:
        names = [name for name in names if name != SHELL] + [SHELL]
    return tuple(PlatformField(name, draw(candidates[name]), f"the {name}") for name in names)


def spec_of(kind: str, fields: tuple[PlatformField, ...]) -> JobSpec:
    resources = Resources(Bounds(4, 4), Bounds(2**32, 2**32), 2)
    image = "" if kind in BATCH else "train:1"
    replicas = tuple(Replica("worker", index, slots=2, resources=resources) for index in range(2))
    return JobSpec(kind, replicas, steps=("python train.py",), name="digits", image=image, platform_fields=fields)


def pairs(fields: tuple[PlatformField, ...]) -> list[tuple[str, Any]]:
    return sorted(((field.name, field.value) for field in fields), key=repr)


@pytest.mark.parametrize("kind", KINDS)
@given(st.data())
def test_same_platform_keeps_every_setting(kind: str, data: st.DataObject) -> None:
    spec = spec_of(kind, data.draw(settings(kind)))
    written = writers.convert(spec, kind)
    assert written.losses == ()
    read = formats.read(written.text, "job")
    assert pairs(read.platform_fields) == pairs(spec.platform_fields)
    assert msgspec.structs.replace(read, platform_fields=(), rendezvous=None) == msgspec.structs.replace(
        spec, platform_fields=()
    )


@pytest.mark.parametrize("kind", KINDS)
@given(st.data())
def test_other_platform_keeps_or_names_each(kind: str, data: st.DataObject) -> None:
    target = data.draw(st.sampled_from(KINDS))
    fields = data.draw(settings(kind))
    spec = msgspec.structs.replace(spec_of(kind, fields), image="train:1")
    written = writers.convert(spec, target)
    kept = {field.name for field in formats.read(written.text, "job").platform_fields}
    for field in fields:
        named = NOT_CARRIED.format(source=field.source, target=TITLES[target]) in written.losses
        assert named == (platform_fields.is_lost(spec, field) and field.name not in kept), field


def test_every_setting_of_the_table_is_generated() -> None:
    for kind in KINDS:
        assert OF_KIND[kind]
    assert {name for name, row in FLAGS.items() if row.keys() & set(writers.WRITERS)} == {*FLAGS}


@golden.titles(TABLE)
def test_file_of_a_platform_becomes_that_of_another(table: Path, title: str) -> None:
    golden.check(table, title, conversion_of)


def conversion_of(case: golden.Case) -> object:
    """Return the losses of a conversion, and the file: a manifest's objects, or a script's lines."""
    spec = formats.read(golden.text_of(case, DATA, DATA / "readers"), case.get("file", "x"))
    is_script = case["kind"] in BATCH
    try:
        written = writers.convert(
            msgspec.structs.replace(spec, image=spec.image or "train:1" * (not is_script)), case["kind"]
        )
    except JobError as error:
        return {"error": str(error)}
    lines = [line for line in written.text.splitlines() if not line.startswith("# ")]
    return {"losses": written.losses, "file": lines if is_script else [*yaml.safe_load_all(written.text)]}


SBATCH = "#SBATCH -N2 --ntasks-per-node=1 -A proj --switches=1\nsrun python train.py\n"


def test_strict_names_what_is_lost_and_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, out = tmp_path / "a.sbatch", tmp_path / "out"
    source.write_text(SBATCH)
    words = ["write", str(source), "--kind", "lsf", "-o", str(out)]
    sentence = NOT_CARRIED.format(source=f"{source}:1: #SBATCH --switches", target=TITLES["lsf"])
    with pytest.raises(ConfigError) as error:
        job.main([*words, "--strict"])
    assert str(error.value) == f"{job.STRICT.format(kind='lsf')}\n  {sentence}"
    assert not out.exists()
    assert job.main(words) == 0
    assert capsys.readouterr().err == f"hvdrun: warning: {sentence}\n"
    assert "#BSUB -P proj" in out.read_text()


def test_strict_writes_a_file_that_loses_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "a.sbatch"
    source.write_text(SBATCH)
    assert job.main(["write", str(source), "--kind", "slurm", "--strict"]) == 0
    written = capsys.readouterr()
    assert written.err == ""
    assert {"#SBATCH --account=proj", "#SBATCH --switches=1"} <= set(written.out.splitlines())
