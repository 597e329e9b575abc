"""Readers of jobs: each input of data/readers gives exactly its job or its error; plans of the platforms' examples."""

from __future__ import annotations

import itertools
import json
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hvdtest import golden

from hvd_kernel.jobs import JobError, JobSpec, Replica, Resources, documents, formats
from hvd_kernel.jobs import plan as plans
from hvd_kernel.jobs.readers.allocation import detect

DATA = Path(__file__).parents[2] / "data"
READERS = DATA / "readers"


@golden.titles(*sorted(READERS.glob("*.json")))
def test_input_gives_its_job_or_its_error(table: Path, title: str) -> None:
    golden.check(table, title, result_of)


def result_of(case: golden.Case) -> object:
    """Return the job of a case, the allocation of its environment, or the error."""
    name = case.get("file", "x")
    try:
        if "env" in case or name.endswith(".env"):
            return allocation_of(case)
        return as_json(formats.read(golden.text_of(case, READERS, DATA), name, case.get("kind", ""), named_file))
    except JobError as error:
        return {"error": str(error)}


def named_file(name: str) -> str | None:
    """Return a file that a line names: one of data/readers/files, by its relative path."""
    path = READERS / "files" / name
    return path.read_text() if path.exists() else None


def allocation_of(case: golden.Case) -> object:
    """Return the allocation found in an environment: that of a file, with changes (null: unset)."""
    files, names, asked = case.get("files", {}), case.get("names", {}), case.get("asked", {})
    lines = golden.path_of(case["file"], READERS, DATA).read_text().splitlines() if "file" in case else []
    env = dict(line.split("=", 1) for line in lines if not line.startswith("#")) | case.get("env", {})
    env = {name: value for name, value in env.items() if value is not None}
    found = detect(env, files.get, lambda name: names.get(name, []), lambda words: asked.get(" ".join(words)))
    if found is None:
        return None
    more = {"via": found.via} if found.via else {} if found.own is None else {"own": found.own}
    return {"sentence": found.sentence} | more | as_json(found.spec)


def as_json(spec: JobSpec) -> dict[str, Any]:
    """Return a job without defaults; consecutive replicas that differ in their index alone share an entry."""
    fields = without_defaults(spec, JobSpec("", (Replica(),)))
    if spec.environment:
        fields["environment"] = [v.name if v.value is None else f"{v.name}={v.value}" for v in spec.environment]
    fields["warnings"] = spec.run_warnings
    fields["platform_fields"] = [[field.name, field.value] for field in spec.platform_fields]
    fields = {name: value for name, value in fields.items() if value or name not in {"warnings", "platform_fields"}}
    rows = [(replica_json(replica), replica.index - at) for at, replica in enumerate(spec.replicas)]
    entries = []
    for ((role, entry), first), group in itertools.groupby(enumerate(rows), lambda row: row[1]):
        at = [first + number for number, _ in group]
        entries.append({"replica": f"{role} {at[0]}" if len(at) == 1 else f"{role} {at[0]}-{at[-1]}"} | entry)
    return fields | {"replicas": entries}


def replica_json(replica: Replica) -> tuple[str, dict[str, Any]]:
    fields = without_defaults(replica, Replica(replica.role, replica.index))
    resources = without_defaults(fields.pop("resources", Resources()), Resources())
    for name in resources.keys() & {"cpu", "memory_bytes"}:
        resources[name] = [resources[name].request, resources[name].limit]
    return replica.role, fields | resources


def without_defaults(value: msgspec.Struct, default: msgspec.Struct) -> dict[str, Any]:
    fields = {name: getattr(value, name) for name in value.__struct_fields__}
    return {name: field for name, field in fields.items() if field != getattr(default, name)}


@golden.titles(DATA / "plans.json")
def test_example_of_a_platform_is_planned_as_its_page_says(table: Path, title: str) -> None:
    golden.check(table, title, plan_of)


def plan_of(case: golden.Case) -> object:
    """Return the readers that match a file, and its plan as text and as JSON."""
    name = case["file"]
    text = (DATA / name).read_text()
    plan = plans.plan(formats.read(text, name))
    matching = [reader.kind for reader in formats.READERS if reader.matches(text, name)]
    return {"readers": matching, "text": plans.as_text(plan).splitlines(), "json": json.loads(plans.as_json(plan))}


@pytest.mark.parametrize(
    ("text", "error"),
    [
        # libyaml's composer recurses at every bracket: such a file crashed the process.
        ("a: 1\nb: " + "[" * 60_000, "f:2:53: here are more than 50 levels, or 5000 values."),
        ("[" + "1,\n" * 20_000, "f:9999:1: here are more than 50 levels, or 5000 values."),
        ("a: &a [*a]\n", "f:1:1: more than 5000 values, or 50 levels: aliases multiply them."),
        ("a: 1\nb: 2\na: 3\n", "f:1:4: a: appears twice, in lines 1 and 3."),
        ("a: 1\nb: " + "1:" * 300 + "1\n", "f:2:4: b: '1:1:1:1:1:1"),  # YAML reads a number of minutes
        ("a: [1\nb: 2\n", "f:2:2: this is not YAML: did not find expected ',' or ']'."),
        ("a: \udcff\n", "f:1:1: this is not YAML: "),
        ("", "f:1:1: the file is empty."),
        ("x" * 70_000, "f:1:1: the file has 70000 characters; 65536 are allowed."),
    ],
    ids=["deep", "many", "endless", "twice", "long number", "open", "no Unicode", "empty", "large"],
)
def test_unusable_yaml_is_refused_with_its_place(text: str, error: str) -> None:
    with pytest.raises(JobError) as caught:
        documents.parse(text, "f")
    assert str(caught.value).startswith(error)


def test_bytes_that_are_not_unicode_are_named_by_their_place() -> None:
    with pytest.raises(JobError) as error:
        formats.read("mpirun -np 2 python \udcff.py", "the command line")
    assert str(error.value) == "the command line: character 21 is not Unicode: write it in UTF-8."


def test_many_brackets_of_a_requirement_are_parsed_fast() -> None:
    """They needed 14 s of CPU time: each bracket was tried with all that follow."""
    script = f"#BSUB -n 2 -R '{'span[' * 12_000}ptile=2]'\nhvdrun x\n"
    before = time.process_time()
    assert [replica.slots for replica in formats.read(script, "x").replicas] == [2]
    assert time.process_time() - before < 0.5
