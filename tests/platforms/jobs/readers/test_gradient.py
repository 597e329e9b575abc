"""Paperspace's gradient line: its flags, the master and its workers, machine types, and what is refused."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from hvd_kernel.jobs import JobError, JobSpec, Variable, formats
from hvd_kernel.jobs.readers.gradient import gpus_of

FILE = (Path(__file__).parents[2] / "data" / "gradient.sh").read_text()
OPTIONS = {
    "projectId": "p1",
    "experimentType": "MPI",
    "workerContainer": "worker:1",
    "workerMachineType": "V100",
    "workerCommand": "sleep infinity",
    "workerCount": "1",
    "masterContainer": "master:1",
    "masterMachineType": "V100",
    "masterCommand": "mpirun --hostfile /generated/hostfile python main.py",
    "masterCount": "1",
}

NO_HOSTFILE = "the master's command names no --hostfile /generated/hostfile: on Gradient only the master would run it"


def line(*more: str, **changed: str | None) -> str:
    given = {key: value for key, value in (OPTIONS | changed).items() if value is not None}
    words = [word for key, value in given.items() for word in (f"--{key}", value)]
    return shlex.join(["gradient", "experiments", "create", "multinode", *words, *more])


def read(text: str, **files: str) -> JobSpec:
    return formats.read(text, "gradient.sh", "", files.get)


def refused(text: str, **files: str) -> str:
    with pytest.raises(JobError) as error:
        read(text, **files)
    return str(error.value)


@pytest.mark.parametrize(
    "text",
    [
        "$ " + FILE,
        FILE.replace("create", "run") + "--no-logs\n",
        FILE.replace("--experimentType MPI \\\n", "--experimentType mpi\n"),  # as Paperspace's own page has it
        FILE.replace("--name distributed-example", "--name=distributed-example"),
    ],
    ids=["prompt", "run", "backslash-missing", "equals"],
)
def test_variants_of_the_page_mean_the_same(text: str) -> None:
    spec, other = read(FILE), read(text)
    assert (other.replicas, other.steps, other.name, other.hostfile) == (
        spec.replicas,
        spec.steps,
        spec.name,
        spec.hostfile,
    )


def test_slots_are_the_gpus_of_the_machines() -> None:
    spec = read(line(masterMachineType="p3.2xlarge", workerMachineType="p3.8xlarge", workerCount="2"))
    assert [(r.role, r.slots, r.resources.gpus) for r in spec.replicas] == [
        ("master", 1, 1),
        ("worker", 4, 4),
        ("worker", 4, 4),
    ]
    assert (spec.size, spec.warnings) == (9, ())


@pytest.mark.parametrize(
    ("machine", "gpus"),
    [
        ("p3.16xlarge", 8),
        ("p2.xlarge", 1),
        ("P4000", 1),
        ("P6000x2", 2),
        ("V100-32Gx4", 4),
        ("A100-80Gx8", 8),
        ("RTX4000", 1),
        ("GPU+", 1),
        ("C5", 0),
        ("c5.xlarge", 0),
        ("wonder", None),
    ],
)
def test_gpus_of_machine_types(machine: str, gpus: int | None) -> None:
    assert gpus_of(machine) == gpus


def test_an_unknown_machine_type_has_one_slot_or_its_share_of_the_ranks() -> None:
    spec = read(line(masterMachineType="wonder", workerMachineType="wonder"))
    assert [replica.slots for replica in spec.replicas] == [1, 1]
    assert spec.warnings == ("the machine type wonder is unknown: each has one slot, and its GPUs are not known",)
    four = "mpirun -np 4 --hostfile /generated/hostfile python main.py"
    spec = read(line(masterMachineType="wonder", workerMachineType="wonder", masterCommand=four))
    assert ([replica.slots for replica in spec.replicas], spec.size) == ([2, 2], 4)


def test_ranks_of_the_master_s_line_must_fit_the_machines() -> None:
    four = "mpirun -np 4 --hostfile /generated/hostfile python main.py"
    assert refused(line(masterCommand=four)) == (
        "gradient.sh: --masterCommand: -np 4 ranks do not fit: there are 2 slot(s). Lower -np or add workers."
    )


def test_variables_folder_and_image_are_taken() -> None:
    command = "mpirun --hostfile /generated/hostfile -x A -x B=2 -x PATH python main.py"
    spec = read(line("--experimentEnv", '{"A": "1", "N": 3}', "--workingDirectory", "/storage", masterCommand=command))
    assert spec.environment == (Variable("A", "1"), Variable("N", "3"), Variable("B", "2"), Variable("PATH"))
    assert (spec.workdir, spec.image) == ("/storage", "master:1")


def test_flags_of_paperspace_are_ignored_without_showing_their_values() -> None:
    spec = read(
        line("--apiKey", "SECRET", "--clusterId=SECRET", "--masterRegistryPassword", "SECRET", "--isPreemptible")
    )
    assert spec.warnings == (
        "--apiKey, --clusterId are ignored: meaningful only at Paperspace",
        "--masterRegistryPassword is ignored: ranks run in this environment, as the user who starts the job",
        "--isPreemptible is ignored: the job is started on this machine, and its output is shown",
    )


def test_a_master_whose_line_names_no_hostfile_is_told() -> None:
    assert read(line(masterCommand="mpirun python main.py")).warnings == (NO_HOSTFILE,)


@pytest.mark.parametrize(
    ("command", "step", "folder", "warnings"),
    [
        ("cd /code && python main.py", "cd /code && python main.py", "", (NO_HOSTFILE,)),
        ("cd /code && mpirun --hostfile /generated/hostfile python main.py", "python main.py", "/code", ()),
        (
            "make && mpirun python main.py",
            "make && mpirun python main.py",
            "",
            (
                NO_HOSTFILE,
                "mpirun is called within the line, so each rank would call it: put it at the beginning of the line",
            ),
        ),
    ],
)
def test_a_master_whose_line_does_more(command: str, step: str, folder: str, warnings: tuple[str, ...]) -> None:
    spec = read(line(masterCommand=command))
    assert (spec.steps, spec.workdir, spec.replicas[0].command) == ((step,), folder, command)
    assert spec.warnings == warnings


def test_an_options_file_gives_values_and_flags_win() -> None:
    text = "workerCount: 3\nname: filed\nexperimentEnv: {A: x}\nclusterId: c\n"
    spec = read(line("--optionsFile", "options", "--name", "given", workerCount=None), options=text)
    assert (len(spec.replicas), spec.name, spec.environment) == (4, "given", (Variable("A", "x"),))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (
            line(projectId=None, workerCommand=None),
            "missing: --projectId, --workerCommand. Gradient asks for each of them.",
        ),
        (
            line(experimentType="GRPC"),
            "--experimentType GRPC: ranks have no parameter servers: write MPI, with a master.",
        ),
        (line(experimentType="XYZ"), "--experimentType 'XYZ' is unknown; allowed: MPI."),
        (line(workerCount="many"), "--workerCount many: 'many' must be a whole number, from 1 to 10000."),
        (line(masterCount="2"), "--masterCount 2: one master starts the ranks: write 1."),
        (line("--experimentEnv", "A=1"), "--experimentEnv is not JSON: Expecting value: line 1 column 1 (char 0)."),
        (line("--experimentEnv", "[]"), '--experimentEnv must be names with values: \'{"NAME": "value"}\'.'),
        (
            line("--workerConut", "2"),
            (
                "'--workerConut' is not a flag known here: did you mean --workerCount? known flags: "
                "--experimentEnv, --experimentType, --masterCommand, --masterContainer, --masterCount, --masterMachineType, "
                "--name, --optionsFile, --projectId, --workerCommand, --workerContainer, --workerCount, --workerMachineType, "
                "--workingDirectory."
            ),
        ),
        (line("oops"), "'oops' belongs to no flag: put a value with blanks in quotes."),
        (
            "gradient experiments create singlenode --name a",
            "'singlenode' is not read: write `gradient experiments create multinode` or `run multinode`.",
        ),
        (
            line(masterCommand="mpirun -np x python main.py"),
            "--masterCommand: -np x: 'x' must be a whole number, from 1 to 100000.",
        ),
        (
            line("--optionsFile", "nowhere"),
            "the file nowhere of --optionsFile does not exist: write it, or use flags",
        ),
    ],
)
def test_what_is_wrong_is_named_with_what_is_allowed(text: str, wanted: str) -> None:
    assert refused(text).startswith(f"gradient.sh: {wanted}")


def test_an_unknown_name_in_an_options_file_is_named_with_its_place() -> None:
    assert refused(line("--optionsFile", "options"), options="name: a\nworkers: 2\n") == (
        "options:2:10: workers: is not a flag of gradient experiments create multinode."
    )
