"""Command lines of mpirun, mpiexec, horovodrun and hvdrun, as printed in Horovod's tutorials.

A line has ranks, hosts, variables and a command; flags that only tune MPI become warnings with the alternative. A line
without hosts does not define where its ranks run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from hvd_kernel.formatting.units import plural
from hvd_kernel.jobs.flags import Flag, ParsedFlag, Spellings, Table, count, ignored_flags, split
from hvd_kernel.jobs.readers import hostfile
from hvd_kernel.jobs.shell_words import ShellWord, bare, is_assigned, program, refuse_operators, words
from hvd_kernel.jobs.spec import MAX_RANKS, NO_COMMAND, JobError, JobSpec, Replica, Variable
from hvd_kernel.jobs.tables import programs
from hvd_kernel.jobs.tables.mpi import HOROVOD, HOROVOD_SPELLED, MCA, MCA_NOTE, MPI, SLOTS_NOTE
from hvd_kernel.settings.lists import entries

File = Callable[[str], str | None]
"""Returns the text of a file named on a line, or None."""

_PPR = re.compile(r"ppr:([0-9]{1,6}):node\b", re.IGNORECASE)
_IN_ORDER = re.compile(r"ppr:[0-9]+:node\b|slot\b|:", re.IGNORECASE)
_PREFIXED = re.compile(r"[0-9.]+/[0-9]+")
_MOVED = re.compile(r"cd\s+([^\s;&|'\"$`\\]+)\s*(?:&&|;)\s*")
_CALLED = re.compile(r"\b(?:mpirun|mpiexec|horovodrun)\b")
_WITHIN = "{} is called within the line, so each rank would call it: put it at the beginning of the line"


class _Launcher(NamedTuple):
    """Flags of a launcher; those in ``wrapped`` let ranks continue on the first host when all slots are used."""

    flags: Table
    spellings: Spellings
    wrapped: Collection[str]


_LAUNCHERS = {
    "mpirun": _Launcher(MPI, Spellings(), ("hosts", "f")),  # Hydra's
    "horovodrun": _Launcher(HOROVOD, HOROVOD_SPELLED, ()),
}

Hosts = tuple[tuple[str, int], ...]


class MpirunLine(msgspec.Struct, frozen=True):
    """A parsed line. ``np`` is 0, and hosts and hostfile are empty, if not set; ``slots``: the default of a host."""

    kind: str = "mpirun"
    np: int = 0
    hosts: Hosts = ()
    hostfile: str = ""
    slots: int = 1
    per_host: int = 0
    oversubscribe: bool = False
    environment: tuple[Variable, ...] = ()
    workdir: str = ""
    interfaces: tuple[str, ...] = ()
    mca: tuple[tuple[str, str], ...] = ()
    steps: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def fit(self, replicas: Sequence[Replica]) -> int:
        """Return the number of ranks on replicas of another file; 0: one for each slot.

        Raises
        ------
        JobError
            The replicas have fewer slots than ranks.
        """
        slots = sum(replica.slots for replica in replicas)
        if self.np > slots:
            raise JobError(f"-np {self.np} ranks do not fit into {plural(slots, 'slot')}. Lower -np or add workers.")
        return self.np


def matches(text: str, _name: str) -> bool:
    """Return whether the first word of a line is mpirun, mpiexec or similar."""
    return program(text) in programs.MPI


def matches_horovod(text: str, _name: str) -> bool:
    """Return whether the first word of a line is horovodrun or hvdrun."""
    return program(text) in programs.HOROVOD


def line_of(text: str, name: str) -> MpirunLine:
    """Parse a line, also after ``cd FOLDER &&``; a line without mpirun or horovodrun is a step.

    Raises
    ------
    JobError
        A flag is unknown, or its value is invalid.
    """
    line = bare(text)
    folder = _MOVED.match(line)
    rest = line[folder.end() :] if folder else line
    if program(rest) in programs.ALL:
        parsed = parse(rest, name)
        return msgspec.structs.replace(parsed, workdir=parsed.workdir or (folder[1] if folder else ""))
    launcher = _CALLED.search(line)
    return MpirunLine(steps=(line,), warnings=(_WITHIN.format(launcher[0]),) if launcher else ())


def read(text: str, name: str, file: File | None = None) -> JobSpec:
    """Return the job of a line; ``file`` returns the text of its hostfile.

    If the hostfile does not exist, the hosts are undefined, and the job has the path of the hostfile.

    Raises
    ------
    JobError
        A flag is unknown, or its value or the hostfile is invalid.
    """
    line = parse(text, name)
    content = file(line.hostfile) if file and line.hostfile else None
    hosts = line.hosts if content is None else _chosen(_in_file(content, line), line.hosts, line.hostfile)
    lacks = line.hostfile and content is None
    warnings = {
        f"the hostfile {line.hostfile} does not exist here: -H host:slots names the hosts": lacks,
        "the line gives no number of ranks, 1 is assumed: -np N sets it": not hosts and not line.np,
    }
    return JobSpec(
        line.kind,
        _replicas(_slots(hosts, line, name), line),
        steps=line.steps,
        np=line.np,
        environment=line.environment,
        workdir=line.workdir,
        interfaces=line.interfaces,
        hostfile=line.hostfile if lacks else "",
        mca=line.mca,
        warnings=(*line.warnings, *(sentence for sentence, holds in warnings.items() if holds)),
    )


def parse(text: str, name: str) -> MpirunLine:
    """Parse a line, without reading its hostfile.

    Raises
    ------
    JobError
        A flag is unknown, its value is invalid, or there is more than one command.
    """
    line = words(text, name)
    start = next((index for index, word in enumerate(line) if not is_assigned(word)), len(line) - 1)
    launcher = line[start].value.rpartition("/")[2]
    if launcher not in programs.ALL:
        raise JobError(f"{name}: {launcher!r} is not known: there are {', '.join(sorted(programs.ALL))}.")
    kind = "horovodrun" if launcher in programs.HOROVOD else "mpirun"
    table = _LAUNCHERS[kind]
    refuse_operators(line, name)
    rest = line[start + 1 :]
    flags, index = split(rest, table.flags, name, table.spellings)
    command = _command(rest, index, name)
    hosted = bool(_used(flags, "hosts", "hostfile"))
    slots = next((count(flag, name) for flag in reversed(_used(flags, "slots"))), 1)
    outside = {word.value.partition("=")[0]: word.value.partition("=")[2] for word in line[:start]}
    return MpirunLine(
        kind,
        np=next((count(flag, name, most=MAX_RANKS) for flag in reversed(_used(flags, "np"))), 0),
        hosts=_hosts(flags, name, slots),
        hostfile=next((flag.values[0] for flag in _used(flags, "hostfile")), ""),
        slots=slots,
        per_host=_per_host(flags, name),
        oversubscribe=any(flag.name in table.wrapped or "oversubscribe" in flag.spelled.lower() for flag in flags),
        environment=_variables(flags, outside, name),
        workdir=next((flag.values[0] for flag in _used(flags, "workdir")), ""),
        interfaces=_interfaces(flags),
        mca=tuple(_mca(flags)),
        steps=(command,) if command else (),
        warnings=(
            *ignored_flags([_mark_ignored(flag, hosted) for flag in flags]),
            *(() if command else (f"the line {NO_COMMAND}",)),
        ),
    )


def _used(flags: Iterable[ParsedFlag], *uses: str) -> list[ParsedFlag]:
    return [flag for flag in flags if flag.flag.use in uses]


def _command(rest: Sequence[ShellWord], start: int, name: str) -> str:
    """Return the command as written, without newlines."""
    for number, word in enumerate(rest):
        if number >= start and word.value == ":":
            raise JobError(
                f"{name}: ':' begins a second program (MPMD), and all ranks run the same one: write one line for all."
            )
        if number > start and word.first and not word.value.startswith("-"):
            raise JobError(
                f"{name}: {word.value!r} begins a second line: end the first with a backslash, or leave it out."
            )
    return " ".join(word.raw for word in rest[start:])


def _hosts(flags: Sequence[ParsedFlag], name: str, default: int) -> Hosts:
    """Return hosts with their slots, by default ``default``; repeated hosts add up, as in Open MPI."""
    slots_of: dict[str, int] = {}
    for flag in _used(flags, "hosts"):
        for host, slots in hostfile.host_list(flag.values[0], f"{name}: {flag.spelled}", default):
            slots_of[host] = slots_of.get(host, 0) + slots
    return tuple(slots_of.items())


def _per_host(flags: Sequence[ParsedFlag], name: str) -> int:
    if _used(flags, "one_per_host"):
        return 1
    ppr = next((match for flag in _used(flags, "map_by") if (match := _PPR.match(flag.values[0]))), None)
    counts = [count(flag, name) for flag in _used(flags, "per_host")]
    return counts[-1] if counts else int(ppr[1]) if ppr else 0


def _variables(flags: Sequence[ParsedFlag], outside: dict[str, str], name: str) -> tuple[Variable, ...]:
    """Return the variables set before the program and by flags; the value None is taken from the environment."""
    variables: dict[str, str | None] = dict(outside)
    for flag in flags:
        use, values = flag.flag.use, flag.values
        if use == "variable":
            variable, equals, value = values[0].partition("=")
            variables[variable] = value if equals else variables.get(variable)
        elif use == "pair":
            variables[values[0]] = values[1]
        elif use == "names":
            variables |= {variable: variables.get(variable) for variable in entries(values[0])}
        elif use.isupper() or "=" in use:
            variable, equals, value = use.partition("=")
            variables[variable] = value if equals else _knob(flag, name)
    return tuple(Variable(variable, value) for variable, value in variables.items())


def _knob(flag: ParsedFlag, name: str) -> str:
    """Return the value of a variable that horovodrun sets; the fusion threshold is in mebibytes."""
    if flag.flag.note != "MiB":
        return flag.values[0]
    text = flag.values[0]
    if not (text.isascii() and text.isdecimal() and len(text) < 10):  # noqa: PLR2004 - a petabyte
        raise JobError(f"{name}: {flag.spelled}: {text!r} must be a whole number of megabytes.")
    return str(int(text) << 20)


def _interfaces(flags: Sequence[ParsedFlag]) -> tuple[str, ...]:
    texts = [item.values[0] for item in _used(flags, "interfaces")]
    texts += [item.values[1] for item in _used(flags, "mca") if MCA.get(item.values[0]) == ""]
    names = [name for text in texts for name in entries(text)]
    return tuple(dict.fromkeys(name for name in names if not _PREFIXED.fullmatch(name)))


def _mca(flags: Sequence[ParsedFlag]) -> Iterator[tuple[str, str]]:
    """Yield Open MPI's parameters, without the component openib, which Open MPI 5 has removed."""
    for flag in _used(flags, "mca"):
        name, value = flag.values
        parts = [part for part in value.removeprefix("^").split(",") if part != "openib"]
        if any(parts):
            yield name, "^" * value.startswith("^") + ",".join(parts)


def still_true(warnings: Sequence[str], passed: Collection[str]) -> list[str]:
    """Return a line's warnings, without those about MPI parameters that are passed on."""
    return [warning for warning in warnings if not set(passed).intersection(warning.split()[1:2])]


def _mark_ignored(flag: ParsedFlag, hosted: bool) -> ParsedFlag:
    """Return a flag as an ignored one if it has no effect here."""
    if flag.flag.use == "slots" and not hosted:
        return flag._replace(flag=Flag("ignored", 1, SLOTS_NOTE))
    if flag.flag.use == "map_by" and not _IN_ORDER.match(flag.values[0]):
        return flag._replace(flag=Flag("ignored", 1, "ranks fill the hosts in order, as with -map-by slot"))
    if flag.flag.use != "mca" or (MCA.get(flag.values[0]) == "" and not _PREFIXED.search(flag.values[1])):
        return flag
    return flag._replace(flag=Flag("ignored", 2, MCA.get(flag.values[0]) or MCA_NOTE))


def _in_file(text: str, line: MpirunLine) -> Hosts:
    return tuple((replica.host, replica.slots) for replica in hostfile.read(text, line.hostfile, line.slots).replicas)


def _chosen(listed: Hosts, selected: Hosts, name: str) -> Hosts:
    """Return the hosts of a file that -H selects, by default all of them."""
    if not selected:
        return listed
    slots = dict(listed)
    missing = [host for host, _ in selected if host not in slots]
    if missing:
        raise JobError(f"{name}: the hostfile does not have {', '.join(missing)}, which -H names.")
    return selected


def _slots(hosts: Hosts, line: MpirunLine, name: str) -> Hosts:
    """Return hosts with the numbers of slots after the flags of the line are applied."""
    if line.per_host:
        hosts = tuple((host, line.per_host) for host, _ in hosts)
    slots = sum(count for _, count in hosts)
    if not hosts or line.np <= slots:
        return hosts
    if not line.oversubscribe:
        listed = ",".join(f"{host}:{count}" for host, count in hosts[:5]) + (",..." if len(hosts) > 5 else "")  # noqa: PLR2004
        raise JobError(
            f"{name}: -np {line.np} ranks do not fit on {listed}, which has {plural(slots, 'slot')}: give hosts more "
            "of them (host:8), or write --oversubscribe."
        )
    extra, remainder = divmod(line.np - slots, len(hosts))
    return tuple((host, count + extra + (number < remainder)) for number, (host, count) in enumerate(hosts))


def _replicas(hosts: Hosts, line: MpirunLine) -> tuple[Replica, ...]:
    if not hosts:
        return (Replica("host", 0, slots=line.np or line.per_host or 1),)
    return tuple(Replica("host", index, host, slots=slots) for index, (host, slots) in enumerate(hosts))
