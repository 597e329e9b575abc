"""Batch scripts of LSF (bsub) and Slurm (sbatch): the directives of the head, ``#SBATCH --nodes=2`` or ``#BSUB -n 8``.

Directives without a meaning for ranks are kept as settings of the platform. The body is read by ``launch_lines``.
Sources: IBM Spectrum LSF 10.1, command reference: bsub; https://slurm.schedmd.com/sbatch.html
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from hvd_kernel.formatting.units import plural
from hvd_kernel.jobs import platform_fields
from hvd_kernel.jobs.readers.launch_lines import read_body
from hvd_kernel.jobs.readers.mpirun import MpirunLine
from hvd_kernel.jobs.spec import MEBIBYTE, Bounds, JobError, JobSpec, PlatformField, Replica, Resources, size

_NUMBER = re.compile(r"[1-9][0-9]{0,5}|0", re.ASCII)


class Directive(NamedTuple):
    """A flag: its name without dashes, its value, and its position."""

    flag: str
    value: str
    where: str

    def error(self, problem: str) -> JobError:
        """Return an error about this flag."""
        return JobError(f"{self.where}: {self.flag} {self.value!r} {problem}.")

    def count(self, low: int = 1) -> int:
        """Return the value as an integer.

        Raises
        ------
        JobError
            The value is not an integer, or is below ``low``.
        """
        if not _NUMBER.fullmatch(self.value) or int(self.value) < low:
            raise self.error(f"must be a whole number, at least {low}")
        return int(self.value)

    def bytes(self, unit: int) -> int:
        """Return the value as bytes of memory; a plain number is in units of ``unit`` bytes.

        Raises
        ------
        JobError
            The value is not an amount of memory.
        """
        try:
            return size(self.value, unit=unit)
        except ValueError as error:
            raise JobError(f"{self.where}: {self.flag}: {error}.") from None


class Head(dict[str, Directive]):
    """The flags of a component by name; the last of duplicate flags takes precedence, as in schedulers."""

    def text(self, name: str) -> str:
        """Return a flag's value, or an empty string."""
        return self[name].value if name in self else ""

    def settings(self, kind: str, read: Collection[str], dash: str) -> list[PlatformField]:
        """Return the flags as settings of a platform, without those that its reader reads."""
        rows = [directive for flag, directive in self.items() if flag not in read]
        return [
            platform_fields.of_flag(kind, row.flag, row.value or True, f"{row.where} {dash}{row.flag}") for row in rows
        ]


def of(text: str, mark: str, name: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the position and the words of each directive, up to the first command.

    Raises
    ------
    JobError
        A quote is not closed.
    """
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith(mark):
            where = f"{name}:{number}: {mark}"
            try:
                yield where, shlex.split(line[len(mark) :], comments=True)
            except ValueError as error:
                raise JobError(f"{where}: {str(error).lower()}: close it.") from None
        elif line.strip() and not line.lstrip().startswith("#"):
            return


_SHEBANG = re.compile(r"#![ \t]*(?:/usr/bin/env[ \t]+)?(\S+)(?:[ \t]+-(\S+))?")


def body_settings(text: str, lines: MpirunLine) -> list[PlatformField]:
    """Return the set-up of a script, with its shell: the set-up may need one that is not ``sh``."""
    shebang = _SHEBANG.match(text)
    fields = [*lines.platform_fields]
    login = "l" if shebang and "l" in (shebang[2] or "") else ""
    if shebang and shebang[1].rpartition("/")[2] != "sh" and (fields or login):
        path = shebang[1] if "/" in shebang[1] else f"/bin/{shebang[1]}"
        fields.append(PlatformField(platform_fields.SHELL, [path, f"-{login}ec"], shebang[0]))
    return fields


_BSUB = re.compile(r"^#BSUB\b", re.MULTILINE)
_BSUB_ALONE = {"hl", "x", "I", "Ip", "Is", "IS", "ISp", "ISs", "IX", "K", "r", "rn", "H", "N", "B", "XF"}
_BSUB_READ = {"n", "R", "gpu", "J", "cwd", "M", "hl", "nnodes"}
_JOB_NAME = re.compile(r"\[[0-9,:-]+\](?:%[0-9]+)?$", re.ASCII)
_SECTION = re.compile(r"([a-z]+)\[([^\[\]]*)\]")
_TILE_READ = re.compile(r"\bptile=[0-9]+|\bhosts=1\b", re.ASCII)
_MEMORY_READ = re.compile(r"\bmem=[0-9.]+[A-Za-z]*(?:/task|/host|/job)?", re.ASCII)
_CORES_READ = re.compile(r"^(?:core|thread)(?:\([0-9]+\))?", re.ASCII)
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
    head = _bsub_head(text, name)
    counted = "n" in head or "nnodes" not in head
    ranks = Directive("n", head.text("n").split(",")[0] or "1", head["n"].where if "n" in head else name).count()
    hosts = head["nnodes"].count() if "nnodes" in head else 0

    def room(lines: Sequence[MpirunLine]) -> tuple[int, int]:
        """Return the numbers of hosts and of slots of a host."""
        most = max((line.np for line in lines), default=0)
        per_host = max((line.per_host for line in lines), default=0)
        if hosts:
            return hosts, per_host or -(-(most or (ranks if counted else 0)) // hosts) or 1
        slots = _slots(head, ranks)
        return -(-ranks // slots), slots

    values = {"LSB_DJOB_NUMPROC": str(ranks), "LSB_MAX_NUM_PROCESSORS": str(ranks)} if counted else {}
    body = read_body(text, name, values)
    hosts, slots = room(body.started)
    lines = body.line(hosts * slots)
    resources = _bsub_resources(head, slots, hosts)
    if resources == Resources():
        resources = lines.resources
    np = lines.np or (ranks if counted else hosts * slots)
    if np > hosts * slots:
        raise JobError(f"{name}: {np} ranks do not fit: the job has {plural(hosts * slots, 'slot')}.")
    return JobSpec(
        "lsf",
        tuple(Replica("worker", index, slots=slots, resources=resources) for index in range(hosts)),
        steps=lines.steps,
        np=0 if np == hosts * slots else np,
        environment=lines.environment,
        name=_JOB_NAME.sub("", head.text("J")),
        workdir=head.text("cwd") or lines.workdir,
        interfaces=lines.interfaces,
        warnings=lines.warnings,
        platform_fields=(*_bsub_settings(head), *body_settings(text, lines)),
    )


def _bsub_settings(head: Head) -> list[PlatformField]:
    """Return the settings of a script, with the parts of -J, -R and -gpu that are not read."""
    array = _JOB_NAME.search(head.text("J"))
    sections = _SECTION.findall(head.text("R"))
    rest = {
        "array": array[0] if array else "",
        "R": " ".join(filter(None, map(_other_requirement, sections))),
        "affinity": _CORES_READ.sub("", next((part for name, part in sections if name == "affinity"), "")).strip(":"),
        "gpu": ":".join(option for option in head.text("gpu").split(":") if option[:4] not in {"num=", "-", ""}),
    }
    flags = {"array": "J", "R": "R", "affinity": "R", "gpu": "gpu"}
    parts = [
        PlatformField(f"lsf.{name}", text, f"{head[flags[name]].where} -{flags[name]} {text}")
        for name, text in rest.items()
        if text
    ]
    return [*head.settings("lsf", _BSUB_READ, "-"), *parts]


def _other_requirement(section: tuple[str, str]) -> str:
    """Return the part of a section of -R that is not read: ``select[...]``, ``rusage[lic=1]``."""
    name, text = section
    if name == "affinity":
        return ""
    read = {"span": _TILE_READ, "rusage": _MEMORY_READ}.get(name)
    rest = read.sub("", text).strip(":,") if read else text
    return f"{name}[{rest}]" if rest else ""


def _bsub_head(text: str, name: str) -> Head:
    head = Head()
    for where, options in of(text, "#BSUB", name):
        index = 0
        while index < len(options):
            flag = options[index].removeprefix("-")
            if flag == options[index]:
                raise Directive(flag, "", where).error("is not a flag of bsub")
            value = "" if flag in _BSUB_ALONE or index + 1 == len(options) else options[index + 1]
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
_LONG = {
    "J": "job-name",
    "N": "nodes",
    "n": "ntasks",
    "c": "cpus-per-task",
    "D": "chdir",
    "G": "gpus",
    "A": "account",
    "a": "array",
    "B": "extra-node-info",
    "b": "begin",
    "C": "constraint",
    "d": "dependency",
    "e": "error",
    "F": "nodefile",
    "H": "hold",
    "i": "input",
    "k": "no-kill",
    "L": "licenses",
    "M": "clusters",
    "m": "distribution",
    "O": "overcommit",
    "o": "output",
    "p": "partition",
    "Q": "quiet",
    "q": "qos",
    "S": "core-spec",
    "s": "oversubscribe",
    "t": "time",
    "v": "verbose",
    "W": "wait",
    "w": "nodelist",
    "x": "exclude",
}
_SBATCH_READ = {
    *("job-name", "nodes", "ntasks", "ntasks-per-node", "cpus-per-task", "chdir", "mem", "mem-per-cpu"),
    *("gpus", "gpus-per-node", "gpus-per-task", "gres"),
}
_SBATCH_ALONE = {
    *("contiguous", "exclusive", "get-user-env", "hold", "ignore-pbs", "no-kill", "no-requeue", "overcommit", "quiet"),
    *("oversubscribe", "parsable", "reboot", "requeue", "spread-job", "test-only", "use-min-nodes", "verbose", "wait"),
}
_SBATCH_SHORT_ALONE = frozenset("HkOQsvW")
_MODEL = r"([A-Za-z_][\w.-]*):[0-9]"
_GPU_MODELS = {
    **dict.fromkeys(("gpus", "gpus-per-node", "gpus-per-task"), re.compile(rf"^(?:gpu:)?{_MODEL}", re.ASCII)),
    "gres": re.compile(rf"(?:^|,)gpu:{_MODEL}", re.ASCII),
}
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
    heads = _sbatch_heads(text, name)
    alone = len(heads) > 1 and not _TOGETHER.search(text)

    def room(lines: Sequence[MpirunLine]) -> list[Replica]:
        nodes: list[Replica] = []
        for head in heads[:1] if alone else heads:
            nodes += _replicas(head, len(nodes), lines)
        return nodes

    values = _values_of(heads[0]) if len(heads) == 1 else {}
    body = read_body(text, name, values)
    replicas = room(body.started)
    slots = sum(replica.slots for replica in replicas)
    lines = body.line(slots)
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
        platform_fields=(*_sbatch_settings(heads), *body_settings(text, lines)),
    )


def _sbatch_settings(heads: Sequence[Head]) -> list[PlatformField]:
    """Return the settings of a script; those of further components of a heterogeneous job have no writer."""
    first = heads[0]
    fields = first.settings("slurm", _SBATCH_READ, "--")
    for number, head in enumerate(heads[1:], 1):
        rows = head.settings("slurm", _SBATCH_READ, "--")
        fields += [PlatformField(f"hetjob {number} {row.name}", row.value, row.source) for row in rows]
    types = {match[1] for flag, model in _GPU_MODELS.items() for match in model.finditer(first.text(flag))}
    fields += [
        PlatformField(platform_fields.GPU_TYPE, name, f"the GPU model {name}") for name in types if len(types) == 1
    ]
    generic = [part for part in first.text("gres").split(",") if part and part.split(":")[0] != "gpu"]
    if generic:
        fields.append(
            PlatformField("slurm.gres", ",".join(generic), f"{first['gres'].where} --gres={','.join(generic)}")
        )
    if "-" in first.text("nodes"):
        source = f"{first['nodes'].where} --nodes={first.text('nodes')}"
        fields.append(PlatformField("nodes", first.text("nodes"), source, "the plan has the smaller number"))
    return fields


def _sbatch_heads(text: str, name: str) -> list[Head]:
    heads = [Head()]
    for where, options in of(text, "#SBATCH", name):
        if options[:1] and options[0] in _APART:
            heads.append(Head())
            continue
        index = 0
        while index < len(options):
            directive, count = _directive(options, index, where)
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
    alone = text[1:2] in _SBATCH_SHORT_ALONE or len(text) > 2  # noqa: PLR2004 - a dash, a letter
    return (Directive(flag, text[2:], where), 1) if alone else (Directive(flag, following, where), 2)


def _values_of(head: Head) -> dict[str, str]:
    """Return the variables of a job that follow from its directives."""
    tasks, per_node = _tasks(head), _per_node(head)
    nodes = _node_count(head)
    gpus = _gpus(head, per_node or 1, nodes)
    values = {
        **dict.fromkeys(("SLURM_NNODES", "SLURM_JOB_NUM_NODES"), nodes),
        **dict.fromkeys(("SLURM_NTASKS", "SLURM_NPROCS"), tasks or per_node * nodes),
        "SLURM_NTASKS_PER_NODE": per_node,
        "SLURM_CPUS_PER_TASK": head["cpus-per-task"].count() if "cpus-per-task" in head else 0,
        **dict.fromkeys(("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE"), gpus or 0),
    }
    return {name: str(value) for name, value in values.items() if value}


def _tasks(head: Head) -> int:
    return head["ntasks"].count() if "ntasks" in head else 0


def _node_count(head: Head) -> int:
    tasks = _tasks(head)
    return _nodes(head) or (-(-tasks // _per_node(head)) if tasks and _per_node(head) else 1)


def _replicas(head: Head, first: int, lines: Sequence[MpirunLine]) -> list[Replica]:
    nodes = _node_count(head)
    slots = _per_node(head) or -(-_tasks(head) // nodes) or _started_per_node(lines, nodes, _gpus(head, 1, nodes))
    resources = _sbatch_resources(head, slots, nodes)
    return [Replica("worker", first + index, slots=slots, resources=resources) for index in range(nodes)]


def _started_per_node(lines: Sequence[MpirunLine], nodes: int, gpus: int | None) -> int:
    """Return the ranks of a node if the head requests no tasks, as in the job itself.

    Launcher lines say how many; else srun starts a task on each node, and hvdrun a rank for each GPU.
    """
    most, per_node = (max((getattr(line, name) for line in lines), default=0) for name in ("np", "per_host"))
    if most or per_node:
        return per_node or -(-most // nodes)
    return 1 if any(line.kind == "slurm" for line in lines) else gpus or 1


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
