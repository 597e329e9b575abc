"""Slurm's batch scripts: #SBATCH lines, also of heterogeneous jobs, and steps started by srun.

Source: https://slurm.schedmd.com/sbatch.html
"""

from __future__ import annotations

import re

from hvd_kernel.jobs.quantities import MEBIBYTE
from hvd_kernel.jobs.readers.scripts import body, directives
from hvd_kernel.jobs.readers.scripts.directives import Directive, Head
from hvd_kernel.jobs.spec import Bounds, JobSpec, Replica, Resources

_LOOKS = re.compile(r"^#SBATCH\b", re.MULTILINE)
_APART = {"hetjob", "packjob"}
_LONG = {"J": "job-name", "N": "nodes", "n": "ntasks", "c": "cpus-per-task", "D": "chdir", "G": "gpus"}
_ALONE = {
    *("contiguous", "exclusive", "get-user-env", "hold", "ignore-pbs", "no-kill", "no-requeue", "overcommit", "quiet"),
    *("oversubscribe", "parsable", "reboot", "requeue", "spread-job", "test-only", "use-min-nodes", "verbose", "wait"),
}
_SHORT_ALONE = frozenset("HkOQsvW")
_GPUS = re.compile(r"(?:gpu:)?(?:[A-Za-z_][\w.-]*:)?([0-9]{1,5})", re.ASCII)
_TOGETHER = re.compile(r"^\s*srun\s[^#\n]*--(?:het|pack)-group", re.MULTILINE)
_NODES = re.compile(r"([0-9]{1,6})(?:-[0-9]{1,6})?", re.ASCII)


def matches(text: str, _name: str) -> bool:
    """Return whether a script has #SBATCH lines."""
    return _LOOKS.search(text) is not None


def read(text: str, name: str) -> JobSpec:
    """Return the job of a script.

    Raises
    ------
    JobError
        The script is invalid; the message has the line and flag.
    """
    heads = _heads(text, name)
    alone = len(heads) > 1 and not _TOGETHER.search(text)
    replicas: list[Replica] = []
    for head in heads[:1] if alone else heads:
        replicas += _replicas(head, len(replicas))
    slots = sum(replica.slots for replica in replicas)
    lines = body.read(text, name, slots)
    tasks = heads[0]["ntasks"].count() if "ntasks" in heads[0] and len(heads) == 1 else 0
    np = lines.np or tasks
    warnings = [*lines.warnings, *(["srun without --het-group uses the first component alone"] if alone else [])]
    return JobSpec(
        "slurm",
        tuple(replicas),
        steps=lines.steps,
        np=0 if np == slots else np,
        environment=lines.environment,
        name=heads[0].text("job-name"),
        workdir=heads[0].text("chdir") or lines.workdir,
        interfaces=lines.interfaces,
        warnings=tuple(warnings),
    )


def _heads(text: str, name: str) -> list[Head]:
    heads = [Head()]
    for where, words in directives.of(text, "#SBATCH", name):
        if words[:1] and words[0] in _APART:
            heads.append(Head())
            continue
        index = 0
        while index < len(words):
            directive, count = _directive(words, index, where)
            heads[-1][directive.flag] = directive
            index += count
    return heads


def _directive(words: list[str], index: int, where: str) -> tuple[Directive, int]:
    text, following = words[index], words[index + 1] if index + 1 < len(words) else ""
    if text.startswith("--"):
        flag, equals, value = text[2:].partition("=")
        return (
            (Directive(flag, value, where), 1) if equals or flag in _ALONE else (Directive(flag, following, where), 2)
        )
    flag = _LONG.get(text[1:2], text[1:2])
    if text[:1] != "-" or not flag:
        raise Directive(text, "", where).error("is not a flag of sbatch")
    alone = text[1:2] in _SHORT_ALONE or len(text) > 2  # noqa: PLR2004 - a dash, a letter
    return (Directive(flag, text[2:], where), 1) if alone else (Directive(flag, following, where), 2)


def _replicas(head: Head, first: int) -> list[Replica]:
    tasks = head["ntasks"].count() if "ntasks" in head else 0
    nodes = _nodes(head) or (-(-tasks // _per_node(head)) if tasks and _per_node(head) else 1)
    slots = _per_node(head) or -(-tasks // nodes) or 1
    resources = _resources(head, slots, nodes)
    return [Replica("worker", first + index, slots=slots, resources=resources) for index in range(nodes)]


def _nodes(head: Head) -> int:
    if "nodes" not in head:
        return 0
    match = _NODES.fullmatch(head.text("nodes"))
    if match is None or match[1].strip("0") == "":
        raise head["nodes"].error("must be a number of nodes, at least 1, or two of them, as in 2-4")
    return int(match[1])


def _per_node(head: Head) -> int:
    return head["ntasks-per-node"].count() if "ntasks-per-node" in head else 0


def _resources(head: Head, slots: int, nodes: int) -> Resources:
    cpus = head["cpus-per-task"].count() * slots if "cpus-per-task" in head else None
    memory = head["mem"].bytes(MEBIBYTE) if "mem" in head else 0
    if "mem-per-cpu" in head:
        memory = head["mem-per-cpu"].bytes(MEBIBYTE) * (cpus or slots)
    return Resources(_both(cpus), _both(memory or None), _gpus(head, slots, nodes))


def _gpus(head: Head, slots: int, nodes: int) -> int | None:
    """Return the GPUs of a node."""
    times = {"gpus-per-node": 1, "gpus-per-task": slots}
    for flag, factor in times.items():
        if flag in head:
            return _gpu_count(head[flag], head.text(flag)) * factor
    if "gpus" in head:
        return -(-_gpu_count(head["gpus"], head.text("gpus")) // nodes)
    generic = [part for part in head.text("gres").split(",") if part.split(":")[0] == "gpu"]
    return sum(1 if part == "gpu" else _gpu_count(head["gres"], part) for part in generic) if generic else None


def _gpu_count(directive: Directive, text: str) -> int:
    match = _GPUS.fullmatch(text)
    if match is None:
        raise directive.error("must be a number of GPUs, as in 4 or a100:4")
    return int(match[1])


def _both(amount: float | None) -> Bounds:
    """Return an amount that Slurm both reserves and enforces."""
    return Bounds(amount, amount)
