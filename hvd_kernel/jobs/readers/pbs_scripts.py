"""Batch scripts of PBS Pro, OpenPBS and Torque (#PBS lines) and of Cobalt (#COBALT lines).

Chunks of nodes are ``-l select=2:ncpus=32:mpiprocs=4:ngpus=4:mem=64gb``, or Torque's ``-l nodes=2:ppn=4:gpus=4``.
Without mpiprocs or ppn a node has one slot, as in PBS_NODEFILE, unless a launcher line says how many ranks there are.
Sources: Altair PBS Professional, qsub(1B) and pbs_resources(7B); Torque's qsub; Cobalt's qsub of Argonne's Theta.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence

from hvd_kernel.jobs.readers.launch_lines import read_body
from hvd_kernel.jobs.readers.mpirun import MpirunLine
from hvd_kernel.jobs.readers.scripts import Directive, Head, body_settings, of
from hvd_kernel.jobs.spec import Bounds, JobError, JobSpec, Replica, Resources, Variable, variable
from hvd_kernel.settings.lists import entries

_PBS = re.compile(r"^#PBS\b", re.MULTILINE)
_COBALT = re.compile(r"^#COBALT\b", re.MULTILINE)
_PBS_ALONE = {"V", "h", "X", "I", "z", "f"}
_COBALT_ALONE = {"h", "I", "debug", "run_project"}
_CHUNK = re.compile(r"(?:([0-9]{1,5})(?::|$))?(.*)", re.ASCII)
_READ = {"l", "N", "v", "V", "d"}
_COBALT_READ = {"n", "nodecount", "jobname", "cwd", "env", "proccount"}
_CHUNKS = ("select", "nodes")


def matches_pbs(text: str, _name: str) -> bool:
    """Return whether a script has #PBS lines."""
    return _PBS.search(text) is not None


def matches_cobalt(text: str, _name: str) -> bool:
    """Return whether a script has #COBALT lines."""
    return _COBALT.search(text) is not None


def read_pbs(text: str, name: str) -> JobSpec:
    """Return the job of a script.

    Raises
    ------
    JobError
        The script is invalid; the message has the line and flag.
    """
    head, limits = _pbs_head(text, name)
    chunks = _chunks(limits)

    def room(lines: Sequence[MpirunLine]) -> list[Replica]:
        replicas: list[Replica] = []
        for nodes, amounts in chunks:
            replicas += _nodes(nodes, amounts, lines if len(chunks) == 1 else (), len(replicas))
        return replicas

    slots = sum(replica.slots for replica in room(()))
    nodes = sum(count for count, _ in chunks)
    values = {"PBS_NP": slots, "PBS_NUM_NODES": nodes, "PBS_NUM_PPN": slots // nodes}
    others = Head((flag, limit) for flag, limit in limits.items() if flag not in {*_CHUNKS, "ncpus", "mem"})
    return _job(
        "pbs",
        text,
        name,
        room=room,
        values={key: str(value) for key, value in values.items()},
        variables=[variable(entry) for entry in entries(head.text("v"))],
        job_name=head.text("N"),
        workdir=head.text("d"),
        others=[(others, set(), "-l "), (head, _READ, "-")],
    )


def read_cobalt(text: str, name: str) -> JobSpec:
    """Return the job of a script.

    Raises
    ------
    JobError
        The script is invalid; the message has the line and flag.
    """
    head = _flags(text, "#COBALT", name, _COBALT_ALONE)
    flag = next((flag for flag in ("n", "nodecount") if flag in head), "")
    nodes = head[flag].count() if flag else 1
    per_node = -(-head["proccount"].count() // nodes) if "proccount" in head else 0

    def room(lines: Sequence[MpirunLine]) -> list[Replica]:
        return _nodes(nodes, {"mpiprocs": Directive("proccount", str(per_node), "")} if per_node else {}, lines, 0)

    return _job(
        "cobalt",
        text,
        name,
        room=room,
        values={"COBALT_JOBSIZE": str(nodes), "COBALT_PARTSIZE": str(nodes)},
        variables=[variable(entry) for entry in head.text("env").split(":") if entry],
        job_name=head.text("jobname"),
        workdir=head.text("cwd"),
        others=[(head, _COBALT_READ, "-")],
    )


def _job(
    kind: str,
    text: str,
    name: str,
    *,
    room: Callable[[Sequence[MpirunLine]], list[Replica]],
    values: dict[str, str],
    variables: Sequence[Variable],
    job_name: str,
    workdir: str,
    others: Sequence[tuple[Head, set[str], str]],
) -> JobSpec:
    body = read_body(text, name, values)
    replicas = room(body.started)
    slots = sum(replica.slots for replica in replicas)
    lines = body.line(slots)
    names = {other.name for other in lines.environment}
    fields = [field for flags, read, dash in others for field in flags.settings(kind, read, dash)]
    return JobSpec(
        kind,
        tuple(replicas),
        steps=lines.steps,
        np=0 if lines.np == slots else lines.np,
        environment=(*(other for other in variables if other.name not in names), *lines.environment),
        name=job_name,
        workdir=workdir or lines.workdir,
        interfaces=lines.interfaces,
        warnings=lines.warnings,
        platform_fields=(*fields, *body_settings(text, lines)),
    )


def _pbs_head(text: str, name: str) -> tuple[Head, Head]:
    """Return the flags, and the resources of the flags -l by name."""
    head, limits = Head(), Head()
    for where, words in of(text, "#PBS", name):
        line = _of_words(words, where, _PBS_ALONE)
        for flag, directive in line.items():
            head[flag] = directive
            for entry in _resources(directive.value) if flag == "l" else ():
                key, _, value = entry.partition("=")
                limits[key] = Directive(key, value, where)
    return head, limits


def _resources(text: str) -> list[str]:
    """Return the entries of ``select=2:ncpus=4,walltime=1:00``; a plus sign joins chunks, a comma resources."""
    return [entry for entry in text.split(",") if entry]


def _flags(text: str, mark: str, name: str, alone: set[str]) -> Head:
    head = Head()
    for where, words in of(text, mark, name):
        head.update(_of_words(words, where, alone))
    return head


def _of_words(words: Sequence[str], where: str, alone: set[str]) -> Head:
    head = Head()
    index = 0
    while index < len(words):
        flag, equals, value = words[index].lstrip("-").partition("=")
        if words[index][:1] != "-" or not flag:
            raise Directive(words[index], "", where).error("is not a flag")
        if not equals and flag not in alone and index + 1 < len(words):
            index += 1
            value = words[index]
        head[flag] = Directive(flag, value, where)
        index += 1
    return head


def _chunks(limits: Head) -> list[tuple[int, dict[str, Directive]]]:
    """Return the numbers of nodes, each with the amounts of a node."""
    flag = next((flag for flag in _CHUNKS if flag in limits), "")
    if not flag:
        amounts = {key: limits[key] for key in ("ncpus", "mem") if key in limits}
        return [(1, amounts)]
    chunks = []
    for chunk in limits.text(flag).split("+"):
        match = _CHUNK.fullmatch(chunk)
        pairs = [pair.partition("=") for pair in match[2].split(":") if pair] if match else []
        where = limits[flag].where
        if match is None or match[1] == "0" * len(match[1] or "x"):
            raise JobError(f"{where}: {flag} {chunk!r} must begin with a number of nodes, at least 1.")
        chunks.append((int(match[1] or 1), {key: Directive(key, value, where) for key, _, value in pairs}))
    return chunks


def _nodes(nodes: int, amounts: dict[str, Directive], lines: Sequence[MpirunLine], first: int) -> list[Replica]:
    most, per_node = (max((getattr(line, name) for line in lines), default=0) for name in ("np", "per_host"))
    procs = next((amounts[key].count() for key in ("mpiprocs", "ppn") if key in amounts), 0)
    slots = procs or per_node or math.ceil(most / nodes) or 1
    cores = amounts["ncpus"].count() if "ncpus" in amounts else None
    gpus = next((amounts[key].count(0) for key in ("ngpus", "gpus") if key in amounts), None)
    memory = amounts["mem"].bytes(1) if "mem" in amounts else None
    resources = Resources(Bounds(cores, cores), Bounds(memory, memory), gpus)
    return [Replica("worker", first + index, slots=slots, resources=resources) for index in range(nodes)]
