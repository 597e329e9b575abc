"""One small job as each platform's file, word by word; shells and schemas agree with it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import jsonschema
import pytest
import yaml

from hvd_kernel.jobs import Bounds, JobSpec, Replica, Resources, Variable, formats, writers
from hvd_kernel.jobs.writers import WriterOptions

DATA = Path(__file__).parents[1] / "data"
FILES = {
    "job": "written-job.yml",
    "mpijob": "written-mpijob.yml",
    "trainjob": "written-trainjob.yml",
    "swarm": "written-swarm.yml",
    "slurm": "written-slurm.sh",
    "lsf": "written-lsf.sh",
}
EACH = Resources(Bounds(4, 4), Bounds(2**32, 2**32), 2)
SPEC = JobSpec(
    "riseml",
    tuple(Replica("worker", index, slots=2, resources=EACH) for index in range(2)),
    steps=("python prepare.py", "python train.py --name 'a b' | tee log"),
    environment=(Variable("NCCL_DEBUG", "INFO"), Variable("TRAPS", "y $HOME $(A) $$ {{x}} '\"")),
    name="digits",
    image="registry.example/train:1",
    workdir="/work",
    warnings=("train.parameters is ignored: only one experiment can be meant",),
)
OPTIONS = WriterOptions(secret="0123456789abcdef", port=40000)


def golden(kind: str) -> str:
    return (DATA / FILES[kind]).read_text()


@pytest.mark.parametrize("kind", FILES)
def test_the_file_of_each_platform_word_by_word(kind: str) -> None:
    assert set(FILES) == set(writers.WRITERS)
    assert writers.write(SPEC, kind, OPTIONS) == golden(kind)


@pytest.mark.parametrize(
    ("option", "value"), [("secret", "fedcba9876543210"), ("shm_bytes", 2**20), ("port", 40001), ("runtime", "mine")]
)
def test_an_option_changes_the_files_of_its_kinds_alone(option: str, value: str | int) -> None:
    assert {*writers.OPTION_KINDS} == {*WriterOptions.__struct_fields__}
    plain, given = WriterOptions(), WriterOptions(**{option: value})  # type: ignore[arg-type]
    changed = {kind for kind in FILES if writers.write(SPEC, kind, plain) != writers.write(SPEC, kind, given)}
    assert changed == {*writers.OPTION_KINDS[option]}


@pytest.mark.parametrize("kind", FILES)
def test_the_file_is_read_as_the_job(kind: str) -> None:
    found = formats.read(golden(kind), FILES[kind])
    assert (found.kind, found.replicas, found.steps) == (kind, SPEC.replicas, SPEC.steps)
    assert (found.environment, found.name, found.workdir) == (SPEC.environment, SPEC.name, SPEC.workdir)
    assert found.warnings == ()


@pytest.mark.parametrize("kind", FILES)
def test_shells_take_the_scripts(kind: str) -> None:
    if FILES[kind].endswith(".sh"):
        scripts = [("bash", golden(kind))]
    else:
        scripts = [
            ("sh", text.replace("$$", "$")) for each in yaml.safe_load_all(golden(kind)) for text in multiline(each)
        ]
    assert scripts
    for shell, script in scripts:
        subprocess.run([shell, "-n"], input=script, text=True, check=True)


def multiline(value: object) -> list[str]:
    if isinstance(value, (dict, list)):
        inner = value.values() if isinstance(value, dict) else value
        return [text for each in inner for text in multiline(each)]
    return [value] if isinstance(value, str) and "\n" in value else []


def test_the_swarm_takes_the_stack_file() -> None:
    schema = json.loads((DATA / "schemas" / "stack-3.8.json").read_text())
    jsonschema.validate(yaml.safe_load(golden("swarm")), schema)


def test_what_a_container_prints_of_its_variables_is_what_the_job_says() -> None:
    """The value goes through the stack file's $$ and the swarm's templates, and through Kubernetes' $(...)."""
    value = yaml.safe_load(golden("swarm"))["services"]["digits"]["environment"]["TRAPS"]
    assert value.replace("$$", "$").replace('{{"{{"}}', "{{") == SPEC.environment[1].value
    (job,) = (each for each in yaml.safe_load_all(golden("job")) if each["kind"] == "Job")
    env = {each["name"]: each.get("value") for each in job["spec"]["template"]["spec"]["containers"][0]["env"]}
    assert env["TRAPS"] == "y $HOME $$(A) $$$$ {{x}} '\""


def test_a_batch_script_leaves_variables_as_they_are() -> None:
    script = golden("slurm").replace("srun ", ": ") + '\nprintf %s "$TRAPS"\n'
    ran = subprocess.run(["bash"], input=script, text=True, capture_output=True, check=True)
    assert ran.stdout == SPEC.environment[1].value
