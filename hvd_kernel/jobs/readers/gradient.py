"""Paperspace's ``gradient experiments create|run multinode``: a master and workers with separate commands.

The master's command is an mpirun line with a hostfile, which the platform creates; the workers wait and exit with the
master. Gradient was shut down in August 2026: options that only Gradient could use become warnings.
Source: gradient-cli 1.x, gradient/cli/experiments.py; Paperspace's page "Distributed Machine Learning with MPI".
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from hvd_kernel.jobs.documents import parse
from hvd_kernel.jobs.flags import ParsedFlag, count, split
from hvd_kernel.jobs.readers import mpirun
from hvd_kernel.jobs.shell_words import bare, refuse_operators, words
from hvd_kernel.jobs.spec import JobError, JobSpec, Replica, Resources, Variable
from hvd_kernel.jobs.tables.gradient import FLAGS, REQUIRED, gpus_of
from hvd_kernel.jobs.tables.programs import GRADIENT

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
            yield f"the machine type {kind} is unknown: each has {share}, and nothing is said of its GPUs"
    if line.kind == "mpirun" and line.steps and not line.hostfile and not line.hosts:
        yield "the master's command names no --hostfile /generated/hostfile: on Gradient only the master would run it"
