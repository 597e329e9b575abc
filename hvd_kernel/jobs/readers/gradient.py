"""Flags of ``gradient experiments create|run multinode``, and the GPUs of Gradient's machine types.

Source: gradient-cli 1.x, gradient/cli/experiments.py; the pages on machine types of Paperspace and of AWS.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from hvd_kernel.jobs.documents import parse
from hvd_kernel.jobs.flags import Flag, ParsedFlag, count, split, table
from hvd_kernel.jobs.readers import mpirun
from hvd_kernel.jobs.readers.mpirun import GRADIENT
from hvd_kernel.jobs.shell_lines import bare, refuse_operators, words
from hvd_kernel.jobs.spec import JobError, JobSpec, Replica, Resources, Variable

_IDS = "meaningful only at Paperspace"
_PULL = "ranks run in this environment, as the user who starts the job"
_CODE = "ranks run in the folder in which the job is started"
_FILES = "ranks see the files of the machine that they run on"
_GRPC = "an experiment of type MPI has no parameter servers"
_BOARD = "`%hvd track` and HVD_TRACK=tensorboard write its files"
_HERE = "the job is started on this machine, and its output is shown"

FLAGS = table(
    ("name", Flag("name")),
    ("projectId", Flag("projectId")),
    ("experimentType", Flag("type")),
    ("workerContainer", Flag("workerContainer")),
    ("workerMachineType", Flag("workerMachineType")),
    ("workerCommand", Flag("workerCommand")),
    ("workerCount", Flag("workerCount")),
    ("masterContainer", Flag("masterContainer")),
    ("masterMachineType", Flag("masterMachineType")),
    ("masterCommand", Flag("masterCommand")),
    ("masterCount", Flag("masterCount")),
    ("workingDirectory", Flag("workdir")),
    ("experimentEnv", Flag("experimentEnv")),
    ("optionsFile", Flag("file")),
    ("clusterId apiKey modelType modelPath tag tags", Flag("ignored", 1, _IDS)),
    ("workspace workspaceUrl workspaceRef workspaceUsername workspacePassword", Flag("ignored", 1, _CODE)),
    ("workspaceArchive ignoreFiles", Flag("ignored", 1, _CODE)),
    ("artifactDirectory datasetUri datasetName datasetAwsAccessKeyId", Flag("ignored", 1, _FILES)),
    ("datasetAwsSecretAccessKey datasetVersionId datasetEtag", Flag("ignored", 1, _FILES)),
    ("datasetVolumeKind datasetVolumeSize", Flag("ignored", 1, _FILES)),
    ("workerContainerUser workerRegistryUsername workerRegistryPassword workerRegistryUrl", Flag("ignored", 1, _PULL)),
    ("masterContainerUser masterRegistryUsername masterRegistryPassword masterRegistryUrl", Flag("ignored", 1, _PULL)),
    ("parameterServerContainer parameterServerMachineType parameterServerCommand", Flag("ignored", 1, _GRPC)),
    ("parameterServerCount parameterServerContainerUser parameterServerRegistryUsername", Flag("ignored", 1, _GRPC)),
    ("parameterServerRegistryPassword parameterServerRegistryUrl", Flag("ignored", 1, _GRPC)),
    ("ports", Flag("ignored", 1, "ranks choose their ports themselves")),
    ("tensorboard_set", Flag("ignored", 1, _BOARD)),
    ("tensorboard", Flag("ignored", 0, _BOARD)),
    ("isPreemptible vpc no-vpc no-logs", Flag("ignored", 0, _HERE)),
)
REQUIRED = (
    *("projectId", "experimentType", "workerContainer", "workerMachineType", "workerCommand", "workerCount"),
    *("masterContainer", "masterMachineType", "masterCommand", "masterCount"),
)
_AWS = {
    1: "p2.xlarge p3.2xlarge g3s.xlarge g3.4xlarge g4dn.xlarge g4dn.2xlarge g4dn.4xlarge g4dn.8xlarge g4dn.16xlarge",
    2: "g3.8xlarge",
    4: "p3.8xlarge g3.16xlarge g4dn.12xlarge",
    8: "p2.8xlarge p3.16xlarge p3dn.24xlarge p4d.24xlarge g4dn.metal",
    16: "p2.16xlarge",
}
_GPUS = {name: gpus for gpus, names in _AWS.items() for name in names.split()}
_PAPERSPACE = re.compile(r"(?:K80|GPU\+|[MPVAH]\d{3,4}|RTX\d{4})(?:-\d+G)?(?:x(?P<gpus>[1-8]))?", re.IGNORECASE)
_CPU_ONLY = re.compile(r"C\d{1,2}|[cmrt]\d[a-z]*\.\w+", re.ASCII)


def gpus_of(machine: str) -> int | None:
    """Return the number of GPUs of a machine type, ``gpus_of("p3.8xlarge") == 4``, or None if it is unknown."""
    if match := _PAPERSPACE.fullmatch(machine):
        return int(match["gpus"] or 1)
    return _GPUS.get(machine, 0 if _CPU_ONLY.fullmatch(machine) else None)


_LOOKS = re.compile(r"(?:\S*/)?gradient\s+experiments?\s+(?:create|run)\b")
_PATH = (*GRADIENT, ("create", "run"), ("multinode",))
_MOST_WORKERS = 10_000


def matches(text: str, _name: str) -> bool:
    """Return whether the first words of a line are those of this command."""
    return _LOOKS.match(bare(text[:10_000])) is not None


def read(text: str, name: str, file: mpirun.File | None = None) -> JobSpec:
    """Return the job of a command line; ``file`` returns the text of its --optionsFile.

    Raises
    ------
    JobError
        A flag is unknown or missing, or its value is invalid.
    """
    flags = _flags(text, name)
    options = _options(flags, name, file)
    missing = [f"--{flag_name}" for flag_name in REQUIRED if not options.get(flag_name)]
    if missing:
        raise JobError(f"{name}: missing: {', '.join(missing)}. Gradient asks for each of them.")
    _check_type(options["experimentType"], name)
    workers = _number(options, "workerCount", name)
    if _number(options, "masterCount", name) != 1:
        raise JobError(f"{name}: --masterCount {options['masterCount']}: one master starts the ranks: write 1.")
    line = mpirun.line_of(options["masterCommand"], f"{name}: --masterCommand")
    replicas = (
        _replica(options, "master", 0, line, 1 + workers),
        *(_replica(options, "worker", index, line, 1 + workers) for index in range(workers)),
    )
    return JobSpec(
        "gradient",
        replicas,
        steps=line.steps,
        np=_fit(line, replicas, name),
        environment=_variables(options, line, name),
        name=options.get("name", ""),
        image=options["masterContainer"],
        workdir=line.workdir or options.get("workingDirectory", ""),
        interfaces=line.interfaces,
        hostfile=line.hostfile,
        warnings=(*_ignored(flags), *_warnings(options, line), *line.warnings),
    )


def _replica(options: Mapping[str, str], role: str, index: int, line: mpirun.MpirunLine, replicas: int) -> Replica:
    """Return the master or a worker; if the GPUs of its machine are unknown, it gets an equal share of the ranks."""
    gpus = gpus_of(options[f"{role}MachineType"])
    slots = line.per_host or (gpus or 1 if gpus is not None else -(-line.np // replicas) or 1)
    return Replica(role, index, slots=slots, resources=Resources(gpus=gpus), command=options[f"{role}Command"])


def _flags(text: str, name: str) -> list[ParsedFlag]:
    line = words(text, name)
    refuse_operators(line, name)
    for index, allowed in enumerate(_PATH):
        word = line[index].value if index < len(line) else ""
        if word.rpartition("/")[2] not in allowed:
            raise JobError(
                f"{name}: {word!r} is not read: write `gradient experiments create multinode` or `run multinode`."
            )
    flags, index = split(line[len(_PATH) :], FLAGS, name)
    if len(_PATH) + index < len(line):
        word = line[len(_PATH) + index].value
        raise JobError(f"{name}: {word!r} belongs to no flag: put a value with blanks in quotes.")
    return flags


def _options(flags: Iterable[ParsedFlag], name: str, file: mpirun.File | None) -> dict[str, str]:
    """Return the values of flags; the command line takes precedence over --optionsFile."""
    values = {flag.name: flag.values[0] for flag in flags if flag.flag.use != "ignored"}
    path = values.pop("optionsFile", "")
    return (_of_file(path, name, file) if path else {}) | values


def _of_file(path: str, name: str, file: mpirun.File | None) -> dict[str, str]:
    text = file(path) if file else None
    if text is None:
        raise JobError(f"{name}: the file {path} of --optionsFile does not exist: write it, or use flags.")
    document = parse(text, path)
    if not isinstance(document.value, dict):
        raise document.error((), "must be a mapping of flags to values")
    unknown = [key for key in document.value if key not in FLAGS]
    if unknown:
        raise document.error((unknown[0],), "is not a flag of gradient experiments create multinode")
    used = {key: value for key, value in document.value.items() if FLAGS[key].use != "ignored" and value is not None}
    return {key: value if isinstance(value, str) else json.dumps(value) for key, value in used.items()}


def _number(options: Mapping[str, str], flag: str, name: str) -> int:
    return count(ParsedFlag(flag, FLAGS[flag], (options[flag],), f"--{flag} {options[flag]}"), name, most=_MOST_WORKERS)


def _check_type(kind: str, name: str) -> None:
    if kind.upper() in ("GRPC", "2"):
        raise JobError(f"{name}: --experimentType {kind}: ranks have no parameter servers: write MPI, with a master.")
    if kind.upper() not in ("MPI", "3"):
        raise JobError(f"{name}: --experimentType {kind!r} is unknown; allowed: MPI.")


def _fit(line: mpirun.MpirunLine, replicas: tuple[Replica, ...], name: str) -> int:
    try:
        return line.fit(replicas)
    except JobError as error:
        raise JobError(f"{name}: --masterCommand: {error}") from None


def _variables(options: Mapping[str, str], line: mpirun.MpirunLine, name: str) -> tuple[Variable, ...]:
    """Return the variables of --experimentEnv and of mpirun's -x."""
    try:
        variables: Any = json.loads(options.get("experimentEnv", "{}"))
    except (ValueError, RecursionError) as error:
        raise JobError(f'{name}: --experimentEnv is not JSON: {error}. Write \'{{"NAME": "value"}}\'.') from None
    if not isinstance(variables, dict) or any(isinstance(value, (dict, list)) for value in variables.values()):
        raise JobError(f'{name}: --experimentEnv must be names with values: \'{{"NAME": "value"}}\'.')
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in variables.items()}
    exported = {
        variable.name: texts.get(variable.name) if variable.value is None else variable.value
        for variable in line.environment
    }
    return tuple(Variable(key, value) for key, value in (texts | exported).items())


def _ignored(flags: Iterable[ParsedFlag]) -> Iterable[str]:
    """Yield a sentence for each reason why flags are ignored, without their values, which may be passwords."""
    reasons: dict[str, list[str]] = {}
    for flag in flags:
        if flag.flag.use == "ignored":
            reasons.setdefault(flag.flag.note, []).append(flag.spelled.split()[0].partition("=")[0])
    for reason, names in reasons.items():
        shown = list(dict.fromkeys(names))
        yield f"{', '.join(shown)} {'is' if len(shown) == 1 else 'are'} ignored: {reason}"


def _warnings(options: Mapping[str, str], line: mpirun.MpirunLine) -> Iterable[str]:
    for kind in dict.fromkeys(options[f"{role}MachineType"] for role in ("master", "worker")):
        if gpus_of(kind) is None:
            share = f"{line.per_host} slots" if line.per_host else "its share of -np" if line.np else "one slot"
            yield f"the machine type {kind} is unknown: each has {share}, and its GPUs are not known"
    if line.kind == "mpirun" and line.steps and not line.hostfile and not line.hosts:
        yield "the master's command names no --hostfile /generated/hostfile: on Gradient only the master would run it"
