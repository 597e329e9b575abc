"""Writers of jobs: each case of data/writers.json gives exactly its file; schemas, shells and our readers accept the files."""

from __future__ import annotations

import difflib
import json
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
import yaml
from hvdtest import golden

from hvd_kernel.jobs import JobError, JobSpec, PlatformField, formats, writers
from hvd_kernel.jobs.manifests import INSTANCE
from hvd_kernel.jobs.writers import WriterOptions, kustomize

DATA = Path(__file__).parents[1] / "data"
TABLE = DATA / "writers.json"
JOBS: dict[str, dict[str, Any]] = json.loads((DATA / "jobs.json").read_text())
FILES = {
    "job": "written-job.yml",
    "mpijob": "written-mpijob.yml",
    "trainjob": "written-trainjob.yml",
    "swarm": "written-swarm.yml",
    "slurm": "written-slurm.sh",
    "lsf": "written-lsf.sh",
}
FOLDERS = {"kustomize": "written-kustomize"}
KINDS = (*FILES, *FOLDERS)
DIGITS = msgspec.convert(JOBS["digits"], JobSpec)
FULL_MPIJOB = (DATA / "readers" / "mpijob-full.yml").read_text()
OPTIONS = WriterOptions(secret="0123456789abcdef", port=40000)


def written_file(kind: str) -> str:
    return (DATA / FILES[kind]).read_text()


@pytest.mark.parametrize("kind", FILES)
def test_file_of_each_platform_is_exact(kind: str) -> None:
    assert set(KINDS) == set(writers.WRITERS)
    assert writers.write(DIGITS, kind, OPTIONS) == written_file(kind)


@pytest.mark.parametrize("kind", FOLDERS)
def test_folder_of_each_platform_is_exact(kind: str) -> None:
    files = {path.name: path.read_text() for path in (DATA / FOLDERS[kind]).iterdir()}
    assert writers.convert(DIGITS, kind, OPTIONS).files == files


@golden.titles(TABLE)
def test_job_gives_its_file_or_its_error(table: Path, title: str) -> None:
    golden.check(table, title, changes_of)


def changes_of(case: golden.Case) -> object:
    """Return the lines of a case's file: all (whole), or those that differ from the file of the unchanged job."""
    try:
        lines = text_of(case).splitlines()
    except JobError as error:
        return {"error": str(error)}
    if case.get("whole"):
        return lines
    unchanged = text_of({"job": case["job"], "kind": case["kind"]}).splitlines()
    changes = difflib.unified_diff(unchanged, lines, n=0, lineterm="")
    return [line for line in changes if not line.startswith(("---", "+++", "@@"))]


def text_of(case: golden.Case) -> str:
    return writers.write(spec_of(case), case["kind"], WriterOptions(**case.get("options", {})))


def spec_of(case: golden.Case) -> JobSpec:
    return msgspec.convert(JOBS[case["job"]] | case.get("change", {}), JobSpec)


def valid_cases() -> Iterator[golden.Case]:
    for cases in json.loads(TABLE.read_text()).values():
        yield from (case for case in cases if "error" not in case["expected"])


def test_written_files_are_read_as_the_same_number_of_ranks() -> None:
    for case in valid_cases():
        spec = formats.read(text_of(case), "x")
        assert (spec.kind, spec.size, spec.steps) == (case["kind"], spec_of(case).size, spec_of(case).steps), case


@cache
def validator(definition: str) -> jsonschema.Draft202012Validator:
    schema = json.loads((DATA / "schemas" / "kubernetes-1.37.json").read_text())
    return jsonschema.Draft202012Validator({"$defs": schema["$defs"], "$ref": f"#/$defs/io.k8s.api.{definition}"})


GROUPS = {"Job": "batch.v1", "Service": "core.v1", "Secret": "core.v1", "NetworkPolicy": "networking.v1"}


def validate(found: dict[str, Any]) -> None:
    """Validate an object by the schema of Kubernetes 1.37, or of its operator."""
    kind = found["kind"]
    if kind in GROUPS:
        validator(f"{GROUPS[kind]}.{kind}").validate(found)
        return
    own = json.loads((DATA / "schemas" / f"{kind.lower()}.json").read_text())
    jsonschema.Draft202012Validator(own).validate(found)
    if kind == "MPIJob":
        for role in found["spec"]["mpiReplicaSpecs"].values():
            validator("core.v1.PodTemplateSpec").validate(role["template"])
    if kind != "TrainJob":
        return
    trainer = found["spec"]["trainer"]
    validator("core.v1.ResourceRequirements").validate(trainer.get("resourcesPerNode", {}))
    for variable in trainer.get("env", []):
        validator("core.v1.EnvVar").validate(variable)


def test_manifests_agree_with_the_schemas() -> None:
    cases = [case for case in valid_cases() if case["kind"] in ("job", "mpijob", "trainjob")]
    assert len(cases) >= 20
    for case in cases:
        for found in yaml.safe_load_all(text_of(case)):
            validate(found)


@pytest.mark.parametrize("kind", ["job", "mpijob"])
def test_manifests_with_settings_agree_with_the_schemas(kind: str) -> None:
    objects = [*yaml.safe_load_all(writers.write(formats.read(FULL_MPIJOB, "x"), kind))]
    assert [found["kind"] for found in objects] == ["ConfigMap", *(["Service", "Job"] if kind == "job" else ["MPIJob"])]
    for found in objects[1:]:
        validate(found)


def test_base_has_the_indexed_job_and_a_policy_for_its_pods() -> None:
    """All objects of --kind job are in the files that kustomization.yaml lists, and a NetworkPolicy for the pods."""
    spec = formats.read(FULL_MPIJOB, "x")
    written = writers.convert(spec, "kustomize", OPTIONS)
    kustomization = yaml.safe_load(written.files[kustomize.KUSTOMIZATION])
    validate(kustomization)
    assert {kustomize.KUSTOMIZATION, *kustomization["resources"]} == set(written.files)
    objects = [item for name in kustomization["resources"] for item in yaml.safe_load_all(written.files[name])]
    assert objects == [*yaml.safe_load_all(written.text)]
    assert [item["kind"] for item in objects] == ["ConfigMap", "Secret", "Service", "NetworkPolicy", "Job"]
    (policy,) = (item for item in objects if item["kind"] == "NetworkPolicy")
    validate(policy)
    job = writers.convert(spec, "job", OPTIONS)
    assert [item for item in objects if item is not policy] == [*yaml.safe_load_all(job.text)]
    assert written.losses == job.losses
    assert policy["metadata"] == {"name": "train", "namespace": "team"}
    peers = {"podSelector": {"matchLabels": {INSTANCE: "train"}}}
    assert objects[-1]["spec"]["template"]["metadata"]["labels"] == {INSTANCE: "train", "app": "train"}
    assert policy["spec"] == {**peers, "policyTypes": ["Ingress"], "ingress": [{"from": [peers]}]}


@pytest.mark.parametrize("kind", ["job", "kustomize"])
def test_objects_select_pods_by_the_label_of_the_file(kind: str) -> None:
    """A chart's label replaced ours on the pods alone: the Service selected none, and ranks did not resolve pod 0."""
    labels = {INSTANCE: "release"}
    fields = (PlatformField("pod_metadata.labels", labels, "spec.template.metadata.labels"),)
    spec = msgspec.structs.replace(DIGITS, platform_fields=fields)
    objects = objects_by_kind(writers.write(spec, kind))
    assert objects["Job"]["spec"]["template"]["metadata"]["labels"] == labels
    assert objects["Service"]["spec"]["selector"] == labels
    if kind == "kustomize":
        assert objects["NetworkPolicy"]["spec"]["podSelector"] == {"matchLabels": labels}


@pytest.mark.skipif(not shutil.which("kubectl"), reason="no kubectl, which has kustomize")
def test_kustomize_builds_the_base_and_an_overlay(tmp_path: Path) -> None:
    base, overlay = tmp_path / "base", tmp_path / "overlay"
    base.mkdir()
    overlay.mkdir()
    written = writers.convert(DIGITS, "kustomize", OPTIONS)
    for name, text in written.files.items():
        (base / name).write_text(text)
    (overlay / "kustomization.yaml").write_text("resources: [../base]\nnamespace: team\n")
    assert built(base) == objects_by_kind(written.text)
    spaces = {item["metadata"]["namespace"] for item in built(overlay).values()}
    assert spaces == {"team"}


def built(folder: Path) -> dict[str, dict[str, Any]]:
    done = subprocess.run(["kubectl", "kustomize", str(folder)], capture_output=True, text=True, check=True)
    return objects_by_kind(done.stdout)


def objects_by_kind(text: str) -> dict[str, dict[str, Any]]:
    return {item["kind"]: item for item in yaml.safe_load_all(text)}


def test_schemas_notice_a_wrong_field() -> None:
    (wrong,) = (found for found in yaml.safe_load_all(written_file("job")) if found["kind"] == "Job")
    wrong["spec"]["template"]["spec"]["containers"][0]["imagee"] = "x"
    with pytest.raises(jsonschema.ValidationError, match="imagee"):
        validate(wrong)


def test_stack_file_agrees_with_the_schema_of_the_swarm() -> None:
    schema = json.loads((DATA / "schemas" / "stack-3.8.json").read_text())
    jsonschema.validate(yaml.safe_load(written_file("swarm")), schema)


@pytest.mark.parametrize(
    ("option", "value"), [("secret", "fedcba9876543210"), ("shm_bytes", 2**20), ("port", 40001), ("runtime", "mine")]
)
def test_option_changes_the_files_of_its_kinds_alone(option: str, value: str | int) -> None:
    assert {*writers.OPTION_KINDS} == {*WriterOptions.__struct_fields__}
    plain, given = WriterOptions(), WriterOptions(**{option: value})  # type: ignore[arg-type]
    changed = {kind for kind in KINDS if writers.write(DIGITS, kind, plain) != writers.write(DIGITS, kind, given)}
    assert changed == {*writers.OPTION_KINDS[option]}


@pytest.mark.parametrize("kind", FILES)
def test_file_is_read_as_the_job(kind: str) -> None:
    found = formats.read(written_file(kind), FILES[kind])
    assert (found.kind, found.replicas, found.steps) == (kind, DIGITS.replicas, DIGITS.steps)
    assert (found.environment, found.name, found.workdir) == (DIGITS.environment, DIGITS.name, DIGITS.workdir)
    assert found.warnings == ()


@pytest.mark.parametrize("kind", FILES)
def test_shells_parse_the_scripts(kind: str) -> None:
    if FILES[kind].endswith(".sh"):
        scripts = [("bash", written_file(kind))]
    else:
        objects = yaml.safe_load_all(written_file(kind))
        scripts = [("sh", text.replace("$$", "$")) for found in objects for text in multiline(found)]
    assert scripts
    for shell, script in scripts:
        subprocess.run([shell, "-n"], input=script, text=True, check=True)


def multiline(value: object) -> list[str]:
    if isinstance(value, (dict, list)):
        inner = value.values() if isinstance(value, dict) else value
        return [text for item in inner for text in multiline(item)]
    return [value] if isinstance(value, str) and "\n" in value else []


def test_containers_get_the_values_of_variables() -> None:
    """A value passes through the stack file's $$ and the swarm's templates, and through Kubernetes' $(...)."""
    value = yaml.safe_load(written_file("swarm"))["services"]["digits"]["environment"]["TRAPS"]
    assert value.replace("$$", "$").replace('{{"{{"}}', "{{") == DIGITS.environment[1].value
    (job,) = (found for found in yaml.safe_load_all(written_file("job")) if found["kind"] == "Job")
    env = {row["name"]: row.get("value") for row in job["spec"]["template"]["spec"]["containers"][0]["env"]}
    assert env["TRAPS"] == "y $HOME $$(A) $$$$ {{x}} '\""


def test_batch_script_leaves_variables_as_they_are() -> None:
    script = written_file("slurm").replace("srun ", ": ") + '\nprintf %s "$TRAPS"\n'
    done = subprocess.run(["bash"], input=script, text=True, capture_output=True, check=True)
    assert done.stdout == DIGITS.environment[1].value


def test_polyaxonfile_is_an_mpijob_only_if_its_workers_are_alike() -> None:
    spec = formats.read((DATA / "polyaxonfile.yml").read_text(), "polyaxonfile.yml")
    spec = msgspec.structs.replace(spec, image="python:3.11", name="it")
    with pytest.raises(JobError, match=r"^worker 2: resources differ from those of worker 0"):
        writers.write(spec, "mpijob")
    same = tuple(msgspec.structs.replace(replica, resources=spec.replicas[1].resources) for replica in spec.replicas)
    found = yaml.safe_load(writers.write(msgspec.structs.replace(spec, replicas=same), "mpijob"))
    assert found["spec"]["runLauncherAsWorker"] is True
    assert found["spec"]["mpiReplicaSpecs"]["Worker"]["replicas"] == 7
