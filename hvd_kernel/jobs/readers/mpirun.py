"""Command lines of mpirun, mpiexec, horovodrun and hvdrun, as Horovod's tutorials print them.

A line names ranks, hosts, variables and a command; what only tunes MPI becomes a warning with a word on what is done
instead. A line without hosts leaves open where its ranks run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from hvd_kernel.jobs.flags import Flag, Given, Spellings, Table, count, ignored_flags, take
from hvd_kernel.jobs.readers import hostfile
from hvd_kernel.jobs.shell_words import ShellWord, bare, is_assigned, program, refuse_operators, words
from hvd_kernel.jobs.spec import MAX_RANKS, NO_COMMAND, JobError, JobSpec, Replica, Variable
from hvd_kernel.jobs.tables import programs
from hvd_kernel.jobs.tables.mpi import HOROVOD, HOROVOD_SPELLED, MCA, MCA_NOTE, MPI, SLOTS_NOTE
from hvd_kernel.settings.lists import entries

File = Callable[[str], str | None]
"""Returns the text of a file that a line names; None: it is not to be had."""

_PPR = re.compile(r"ppr:([0-9]{1,6}):node\b", re.IGNORECASE)
_IN_ORDER = re.compile(r"ppr:[0-9]+:node\b|slot\b|:", re.IGNORECASE)
_PREFIXED = re.compile(r"[0-9.]+/[0-9]+")
_MOVED = re.compile(r"cd\s+([^\s;&|'\"$`\\]+)\s*(?:&&|;)\s*")
_CALLED = re.compile(r"\b(?:mpirun|mpiexec|horovodrun)\b")
_WITHIN = "{} is called within the line, so each rank would call it: put it at the beginning of the line"


class _Launcher(NamedTuple):
    """Flags of a launcher; those of ``wrapped`` have it begin with the first host again, where slots are used up."""

    flags: Table
    spellings: Spellings
    wrapped: Collection[str]


_LAUNCHERS = {
    "mpirun": _Launcher(MPI, Spellings(), ("hosts", "f")),  # Hydra's
    "horovodrun": _Launcher(HOROVOD, HOROVOD_SPELLED, ()),
}

Hosts = tuple[tuple[str, int], ...]


class MpirunLine(msgspec.Struct, frozen=True):
    """What a line says. ``np`` 0, no hosts, no hostfile: not said; ``slots``: of a host that does not say."""

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
        """Return how many ranks run on replicas that another file names; 0: as many as they have slots.

        Raises
        ------
        JobError
            They have fewer slots.
        """
        slots = sum(replica.slots for replica in replicas)
        if self.np > slots:
            raise JobError(f"-np {self.np} ranks do not fit: there are {slots} slot(s). Lower -np or add workers.")
        return self.np


def matches(text: str, _name: str) -> bool:
    """Tell a line by its first word: mpirun, mpiexec and their like."""
    return program(text) in programs.MPI


def matches_horovod(text: str, _name: str) -> bool:
    """Tell a line by its first word: horovodrun or hvdrun."""
    return program(text) in programs.HOROVOD


def line_of(text: str, name: str) -> MpirunLine:
    """Return what a line says, behind ``cd FOLDER &&`` too; one of neither mpirun nor horovodrun is a step as it is.

    Raises
    ------
    JobError
        A flag is unknown or its value wrong.
    """
    line = bare(text)
    moved = _MOVED.match(line)
    rest = line[moved.end() :] if moved else line
    if program(rest) in programs.ALL:
        found = parse(rest, name)
        return msgspec.structs.replace(found, workdir=found.workdir or (moved[1] if moved else ""))
    called = _CALLED.search(line)
    return MpirunLine(steps=(line,), warnings=(_WITHIN.format(called[0]),) if called else ())


def read(text: str, name: str, file: File | None = None) -> JobSpec:
    """Return the job of a line; ``file`` returns the text of the hostfile that it names.

    Without that hostfile it stays open where ranks run, and the job says which file it asks for.

    Raises
    ------
    JobError
        A flag is unknown, or its value or the hostfile is wrong.
    """
    line = parse(text, name)
    found = file(line.hostfile) if file and line.hostfile else None
    hosts = line.hosts if found is None else _chosen(_in_file(found, line), line.hosts, line.hostfile)
    lacks = line.hostfile and found is None
    told = {
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
        warnings=(*line.warnings, *(sentence for sentence, holds in told.items() if holds)),
    )


def parse(text: str, name: str) -> MpirunLine:
    """Return what a line says, without looking at its hostfile.

    Raises
    ------
    JobError
        A flag is unknown or its value wrong, or more than one command is there.
    """
    line = words(text, name)
    start = next((at for at, word in enumerate(line) if not is_assigned(word)), len(line) - 1)
    called = line[start].value.rpartition("/")[2]
    if called not in programs.ALL:
        raise JobError(f"{name}: {called!r} is not known: there are {', '.join(sorted(programs.ALL))}.")
    kind = "horovodrun" if called in programs.HOROVOD else "mpirun"
    known = _LAUNCHERS[kind]
    refuse_operators(line, name)
    rest = line[start + 1 :]
    given, at = take(rest, known.flags, name, known.spellings)
    command = _command(rest, at, name)
    hosted = bool(_used(given, "hosts", "hostfile"))
    slots = next((count(each, name) for each in reversed(_used(given, "slots"))), 1)
    outside = {word.value.partition("=")[0]: word.value.partition("=")[2] for word in line[:start]}
    return MpirunLine(
        kind,
        np=next((count(each, name, most=MAX_RANKS) for each in reversed(_used(given, "np"))), 0),
        hosts=_hosts(given, name, slots),
        hostfile=next((each.values[0] for each in _used(given, "hostfile")), ""),
        slots=slots,
        per_host=_per_host(given, name),
        oversubscribe=any(each.name in known.wrapped or "oversubscribe" in each.spelled.lower() for each in given),
        environment=_variables(given, outside, name),
        workdir=next((each.values[0] for each in _used(given, "workdir")), ""),
        interfaces=_interfaces(given),
        mca=tuple(_mca(given)),
        steps=(command,) if command else (),
        warnings=(
            *ignored_flags([_noted(each, hosted) for each in given]),
            *(() if command else (f"the line {NO_COMMAND}",)),
        ),
    )


def _used(given: Iterable[Given], *uses: str) -> list[Given]:
    return [each for each in given if each.flag.use in uses]


def _command(rest: Sequence[ShellWord], at: int, name: str) -> str:
    """Return the command as it was written, without its line ends."""
    for number, word in enumerate(rest):
        if number >= at and word.value == ":":
            raise JobError(
                f"{name}: ':' begins a second program (MPMD), and all ranks run the same one: write one line for all."
            )
        if number > at and word.first and not word.value.startswith("-"):
            raise JobError(
                f"{name}: {word.value!r} begins a second line: end the first with a backslash, or leave it out."
            )
    return " ".join(word.raw for word in rest[at:])


def _hosts(given: Sequence[Given], name: str, unsaid: int) -> Hosts:
    """Return hosts with their slots, else ``unsaid``; one that is named again has more, as Open MPI counts."""
    found: dict[str, int] = {}
    for each in _used(given, "hosts"):
        for host, slots in hostfile.host_list(each.values[0], f"{name}: {each.spelled}", unsaid):
            found[host] = found.get(host, 0) + slots
    return tuple(found.items())


def _per_host(given: Sequence[Given], name: str) -> int:
    if _used(given, "one_per_host"):
        return 1
    ppr = next((found for each in _used(given, "map_by") if (found := _PPR.match(each.values[0]))), None)
    said = [count(each, name) for each in _used(given, "per_host")]
    return said[-1] if said else int(ppr[1]) if ppr else 0


def _variables(given: Sequence[Given], outside: dict[str, str], name: str) -> tuple[Variable, ...]:
    """Return the ranks' variables: those before the program, then those of flags; None: taken over."""
    named: dict[str, str | None] = dict(outside)
    for each in given:
        use, values = each.flag.use, each.values
        if use == "variable":
            variable, equals, value = values[0].partition("=")
            named[variable] = value if equals else named.get(variable)
        elif use == "pair":
            named[values[0]] = values[1]
        elif use == "names":
            named |= {variable: named.get(variable) for variable in entries(values[0])}
        elif use.isupper() or "=" in use:
            variable, equals, value = use.partition("=")
            named[variable] = value if equals else _knob(each, name)
    return tuple(Variable(variable, value) for variable, value in named.items())


def _knob(given: Given, name: str) -> str:
    """Return the value of a variable that horovodrun sets; its threshold counts mebibytes."""
    if given.flag.note != "MiB":
        return given.values[0]
    text = given.values[0]
    if not (text.isascii() and text.isdecimal() and len(text) < 10):  # noqa: PLR2004 - a petabyte
        raise JobError(f"{name}: {given.spelled}: {text!r} must be a whole number of megabytes.")
    return str(int(text) << 20)


def _interfaces(given: Sequence[Given]) -> tuple[str, ...]:
    found = [each.values[0] for each in _used(given, "interfaces")]
    found += [each.values[1] for each in _used(given, "mca") if MCA.get(each.values[0]) == ""]
    names = [name for text in found for name in entries(text)]
    return tuple(dict.fromkeys(name for name in names if not _PREFIXED.fullmatch(name)))


def _mca(given: Sequence[Given]) -> Iterator[tuple[str, str]]:
    """Yield Open MPI's parameters, without the component openib, which is gone since Open MPI 5."""
    for each in _used(given, "mca"):
        name, value = each.values
        parts = [part for part in value.removeprefix("^").split(",") if part != "openib"]
        if any(parts):
            yield name, "^" * value.startswith("^") + ",".join(parts)


def still_true(warnings: Sequence[str], given: Collection[str]) -> list[str]:
    """Return a line's warnings without those on parameters of MPI's that it is given after all."""
    return [each for each in warnings if not set(given).intersection(each.split()[1:2])]


def _noted(given: Given, hosted: bool) -> Given:
    """Return a flag as one that is ignored, where it means something elsewhere and here it does not."""
    if given.flag.use == "slots" and not hosted:
        return given._replace(flag=Flag("ignored", 1, SLOTS_NOTE))
    if given.flag.use == "map_by" and not _IN_ORDER.match(given.values[0]):
        return given._replace(flag=Flag("ignored", 1, "ranks fill the hosts in order, as with -map-by slot"))
    if given.flag.use != "mca" or (MCA.get(given.values[0]) == "" and not _PREFIXED.search(given.values[1])):
        return given
    return given._replace(flag=Flag("ignored", 2, MCA.get(given.values[0]) or MCA_NOTE))


def _in_file(text: str, line: MpirunLine) -> Hosts:
    return tuple((replica.host, replica.slots) for replica in hostfile.read(text, line.hostfile, line.slots).replicas)


def _chosen(listed: Hosts, asked: Hosts, name: str) -> Hosts:
    """Return the hosts of a file that -H names too, or all of them."""
    if not asked:
        return listed
    slots = dict(listed)
    missing = [host for host, _ in asked if host not in slots]
    if missing:
        raise JobError(f"{name}: the hostfile does not have {', '.join(missing)}, which -H names.")
    return asked


def _slots(hosts: Hosts, line: MpirunLine, name: str) -> Hosts:
    """Return hosts with the slots that the line gives them."""
    if line.per_host:
        hosts = tuple((host, line.per_host) for host, _ in hosts)
    slots = sum(each for _, each in hosts)
    if not hosts or line.np <= slots:
        return hosts
    if not line.oversubscribe:
        named = ",".join(f"{host}:{each}" for host, each in hosts[:5]) + (",..." if len(hosts) > 5 else "")  # noqa: PLR2004
        raise JobError(
            f"{name}: -np {line.np} ranks do not fit on {named}, which has {slots} slot(s): give hosts more of them "
            "(host:8), or write --oversubscribe."
        )
    each, more = divmod(line.np - slots, len(hosts))
    return tuple((host, own + each + (number < more)) for number, (host, own) in enumerate(hosts))


def _replicas(hosts: Hosts, line: MpirunLine) -> tuple[Replica, ...]:
    if not hosts:
        return (Replica("host", 0, slots=line.np or line.per_host or 1),)
    return tuple(Replica("host", index, host, slots=slots) for index, (host, slots) in enumerate(hosts))
