"""LSF's batch scripts: #BSUB lines, and steps started by hvdrun, mpirun or jsrun.

Source: IBM Spectrum LSF 10.1, command reference: bsub.
"""

from __future__ import annotations

import re

from hvd_kernel.jobs.quantities import MEBIBYTE
from hvd_kernel.jobs.readers.scripts import body, directives
from hvd_kernel.jobs.readers.scripts.directives import Directive, Head
from hvd_kernel.jobs.spec import Bounds, JobError, JobSpec, Replica, Resources

_LOOKS = re.compile(r"^#BSUB\b", re.MULTILINE)
_ALONE = {"hl", "x", "I", "Ip", "Is", "IS", "ISp", "ISs", "IX", "K", "r", "rn", "H", "N", "B", "XF"}
_KIBIBYTE = 1024
_TILE = re.compile(r"span\[[^\[\]]*?\bptile=([1-9][0-9]{0,5})")
_ONE_HOST = re.compile(r"span\[[^\[\]]*?\bhosts=1\b")
_MEMORY = re.compile(r"rusage\[[^\[\]]*?\bmem=([0-9.]+[A-Za-z]*)(/task|/host|/job)?")
_CORES = re.compile(r"affinity\[(?:core|thread)(?:\(([1-9][0-9]{0,5}))?")
_GPUS = re.compile(r"\bnum=([1-9][0-9]{0,4})(/task|/host)?")


def matches(text: str, _name: str) -> bool:
    """Return whether a script has #BSUB lines."""
    return _LOOKS.search(text) is not None


def read(text: str, name: str) -> JobSpec:
    """Return the job of a script.

    Raises
    ------
    JobError
        The script is invalid; the message has the line and flag.
    """
    head = _head(text, name)
    ranks = Directive("n", head.text("n").split(",")[0] or "1", head["n"].where if "n" in head else name).count()
    slots = _slots(head, ranks)
    hosts = -(-ranks // slots)
    lines = body.read(text, name, ranks)
    resources = _resources(head, slots, hosts)
    np = lines.np or ranks
    if np > hosts * slots:
        raise JobError(f"{name}: {np} ranks do not fit: -n gives {hosts * slots} slot(s).")
    return JobSpec(
        "lsf",
        tuple(Replica("worker", index, slots=slots, resources=resources) for index in range(hosts)),
        steps=lines.steps,
        np=0 if np == hosts * slots else np,
        environment=lines.environment,
        name=head.text("J"),
        workdir=head.text("cwd") or lines.workdir,
        interfaces=lines.interfaces,
        warnings=lines.warnings,
    )


def _head(text: str, name: str) -> Head:
    head = Head()
    for where, words in directives.of(text, "#BSUB", name):
        index = 0
        while index < len(words):
            flag = words[index].removeprefix("-")
            if flag == words[index]:
                raise Directive(flag, "", where).error("is not a flag of bsub")
            value = "" if flag in _ALONE or index + 1 == len(words) else words[index + 1]
            if flag == "R" and "R" in head:  # requirements of several flags are combined
                value = f"{head.text('R')} {value}"
            head[flag] = Directive(flag, value, where)
            index += 1 if flag in _ALONE else 2
    return head


def _slots(head: Head, ranks: int) -> int:
    tile = _TILE.search(head.text("R"))
    if tile:
        return int(tile[1])
    return ranks if _ONE_HOST.search(head.text("R")) else 1


def _resources(head: Head, slots: int, hosts: int) -> Resources:
    """Return the resources of a host."""
    cores = _CORES.search(head.text("R"))
    cpu = int(cores[1] or 1) * slots if cores else None
    memory = _MEMORY.search(head.text("R"))
    parts = {"/task": 1 / slots, "/job": hosts}
    request = Directive("mem", memory[1], head["R"].where).bytes(MEBIBYTE) / parts.get(memory[2], 1) if memory else None
    limit = head["M"].bytes(_KIBIBYTE) * (1 if "hl" in head else slots) if head.text("M") else None
    gpus = _GPUS.search(head.text("gpu"))
    count = int(gpus[1]) * (slots if gpus[2] == "/task" else 1) if gpus else None
    return Resources(Bounds(cpu, cpu), Bounds(request, limit), count)
