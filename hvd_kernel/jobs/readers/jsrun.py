"""Lines of jsrun, IBM's launcher of an LSF allocation: resource sets with tasks, cores and GPUs.

Source: IBM Spectrum LSF, jsrun(1); Summit's user guide.
"""

from __future__ import annotations

import re

from hvd_kernel.jobs.flags import Flag, ParsedFlag, count, ignored_flags, split, table
from hvd_kernel.jobs.readers.mpirun import JSRUN, MpirunLine
from hvd_kernel.jobs.shell_lines import refuse_operators, words
from hvd_kernel.jobs.spec import MAX_RANKS, NO_COMMAND, Bounds, JobError, Resources, variable

_GLUED = re.compile(r"(?<!\S)(-[nacgrp])([0-9]+)(?=\s|$)", re.ASCII)
_PLACE = "hvdrun starts as many ranks on each host"
_STDIO = "`hvdrun --output-filename DIR` keeps each rank's output"
_TABLE = table(
    ("n nrs", Flag("sets")),
    ("a tasks_per_rs", Flag("tasks")),
    ("c cpu_per_rs", Flag("cores")),
    ("g gpu_per_rs", Flag("gpus")),
    ("r rs_per_host", Flag("per_host")),
    ("p np", Flag("np")),
    ("E env", Flag("variable")),
    ("h chdir", Flag("workdir")),
    ("b bind d launch_distribution l latency_priority K rs_per_socket m memory_per_rs", Flag("ignored", 1, _PLACE)),
    (
        "L use_spindle M smpiargs F env_eval U use_resources S save_resources A allocate_only",
        Flag("ignored", 1, _PLACE),
    ),
    ("e stdio_mode o stdio_stdout k stdio_stderr t stdio_input", Flag("ignored", 1, _STDIO)),
    ("i immediate X exit_on_error", Flag("ignored", 1, "a rank that fails ends the others")),
    ("q quiet V version", Flag("quiet", 0)),
)


def parse(text: str, name: str) -> MpirunLine:
    """Parse a line; ranks are resource sets times their tasks.

    Raises
    ------
    JobError
        A flag is unknown, or its value is invalid.
    """
    line = words(_GLUED.sub(r"\1 \2", text), name)
    refuse_operators(line, name)
    flags, index = split(line[1:], _TABLE, name)
    last = {flag.flag.use: flag for flag in flags}
    sets, tasks, per_host = (_count(last, use, name) for use in ("sets", "tasks", "per_host"))
    ranks = _count(last, "np", name) or sets * (tasks or 1)
    command = " ".join(word.raw for word in line[1 + index :])
    if ranks > MAX_RANKS:
        raise JobError(f"{name}: {ranks} ranks are more than {MAX_RANKS}.")
    return MpirunLine(
        JSRUN,
        np=ranks,
        per_host=per_host * (tasks or 1),
        environment=tuple(variable(flag.values[0]) for flag in flags if flag.flag.use == "variable"),
        workdir=last["workdir"].values[0] if "workdir" in last else "",
        resources=_resources(last, per_host, name),
        steps=(command,) if command else (),
        warnings=(*ignored_flags(flags), *(() if command else (f"the line {NO_COMMAND}",))),
    )


def _count(flags: dict[str, ParsedFlag], use: str, name: str) -> int:
    """Return a flag's number; 0 if it is not set, or stands for all."""
    flag = flags.get(use)
    if flag is None or flag.values[0].startswith("ALL"):
        return 0
    return 0 if flag.values[0] == "0" and use == "gpus" else count(flag, name)


def _resources(flags: dict[str, ParsedFlag], per_host: int, name: str) -> Resources:
    """Return the resources of a host, if the number of its resource sets is known."""
    if not per_host:
        return Resources()
    cores = _count(flags, "cores", name) * per_host or None
    return Resources(Bounds(cores, cores), gpus=_count(flags, "gpus", name) * per_host if "gpus" in flags else None)
