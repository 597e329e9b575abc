"""Batch scripts of LSF (bsub) and Slurm (sbatch).

Sources: IBM Spectrum LSF 10.1, command reference: bsub; https://slurm.schedmd.com/sbatch.html
"""

from __future__ import annotations

import re

from hvd_kernel.formatting.units import plural
from hvd_kernel.jobs.quantities import MEBIBYTE
from hvd_kernel.jobs.readers import script_lines
from hvd_kernel.jobs.readers.script_lines import Directive, Head
from hvd_kernel.jobs.spec import Bounds, JobError, JobSpec, Replica, Resources

_BSUB = re.compile(r"^#BSUB\b", re.MULTILINE)
_BSUB_ALONE = {"hl", "x", "I", "Ip", "Is", "IS", "ISp", "ISs", "IX", "K", "r", "rn", "H", "N", "B", "XF"}
_KIBIBYTE = 1024
_TILE = re.compile(r"span\[[^\[\]]*?\bptile=([1-9][0-9]{0,5})")
_ONE_HOST = re.compile(r"span\[[^\[\]]*?\bhosts=1\b")
_MEMORY = re.compile(r"rusage\[[^\[\]]*?\bmem=([0-9.]+[A-Za-z]*)(/task|/host|/job)?")
_CORES = re.compile(r"affinity\[(?:core|thread)(?:\(([1-9][0-9]{0,5}))?")
_BSUB_GPUS = re.compile(r"\bnum=([1-9][0-9]{0,4})(/task|/host)?")


def matches_bsub(text: str, _name: str) -> bool:
    """Return whether a script has #BSUB lines."""
    return _BSUB.search(text) is not None


def read_bsub(text: str, name: str) -> JobSpec:
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
    lines = script_lines.read_body(text, name, ranks)
    resources = _bsub_resources(head, slots, hosts)
    np = lines.np or ranks
    if np > hosts * slots:
        raise JobError(f"{name}: {np} ranks do not fit: -n gives {plural(hosts * slots, 'slot')}.")
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
    for where, words in script_lines.of(text, "#BSUB", name):
        index = 0
        while index < len(words):
            flag = words[index].removeprefix("-")
            if flag == words[index]:
                raise Directive(flag, "", where).error("is not a flag of bsub")
            value = "" if flag in _BSUB_ALONE or index + 1 == len(words) else words[index + 1]
            if flag == "R" and "R" in head:  # requirements of several flags are combined
                value = f"{head.text('R')} {value}"
            head[flag] = Directive(flag, value, where)
            index += 1 if flag in _BSUB_ALONE else 2
    return head


def _slots(head: Head, ranks: int) -> int:
    tile = _TILE.search(head.text("R"))
    if tile:
        return int(tile[1])
    return ranks if _ONE_HOST.search(head.text("R")) else 1


def _bsub_resources(head: Head, slots: int, hosts: int) -> Resources:
    """Return the resources of a host."""
    cores = _CORES.search(head.text("R"))
    cpu = int(cores[1] or 1) * slots if cores else None
    memory = _MEMORY.search(head.text("R"))
    parts = {"/task": 1 / slots, "/job": hosts}
    request = Directive("mem", memory[1], head["R"].where).bytes(MEBIBYTE) / parts.get(memory[2], 1) if memory else None
    limit = head["M"].bytes(_KIBIBYTE) * (1 if "hl" in head else slots) if head.text("M") else None
    gpus = _BSUB_GPUS.search(head.text("gpu"))
    count = int(gpus[1]) * (slots if gpus[2] == "/task" else 1) if gpus else None
    return Resources(Bounds(cpu, cpu), Bounds(request, limit), count)


_SBATCH = re.compile(r"^#SBATCH\b", re.MULTILINE)
_APART = {"hetjob", "packjob"}
_LONG = {"J": "job-name", "N": "nodes", "n": "ntasks", "c": "cpus-per-task", "D": "chdir", "G": "gpus"}
_SBATCH_ALONE = {
    *("contiguous", "exclusive", "get-user-env", "hold", "ignore-pbs", "no-kill", "no-requeue", "overcommit", "quiet"),
    *("oversubscribe", "parsable", "reboot", "requeue", "spread-job", "test-only", "use-min-nodes", "verbose", "wait"),
}
_SHORT_ALONE = frozenset("HkOQsvW")
_SBATCH_GPUS = re.compile(r"(?:gpu:)?(?:[A-Za-z_][\w.-]*:)?([0-9]{1,5})", re.ASCII)
_TOGETHER = re.compile(r"^\s*srun\s[^#\n]*--(?:het|pack)-group", re.MULTILINE)
_NODES = re.compile(r"([0-9]{1,6})(?:-[0-9]{1,6})?", re.ASCII)


def matches_sbatch(text: str, _name: str) -> bool:
    """Return whether a script has #SBATCH lines."""
    return _SBATCH.search(text) is not None


def read_sbatch(text: str, name: str) -> JobSpec:
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
    lines = script_lines.read_body(text, name, slots)
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
    for where, words in script_lines.of(text, "#SBATCH", name):
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
            (Directive(flag, value, where), 1)
            if equals or flag in _SBATCH_ALONE
            else (Directive(flag, following, where), 2)
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
    resources = _sbatch_resources(head, slots, nodes)
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


def _sbatch_resources(head: Head, slots: int, nodes: int) -> Resources:
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
    match = _SBATCH_GPUS.fullmatch(text)
    if match is None:
        raise directive.error("must be a number of GPUs, as in 4 or a100:4")
    return int(match[1])


def _both(amount: float | None) -> Bounds:
    """Return an amount that Slurm both reserves and enforces."""
    return Bounds(amount, amount)
