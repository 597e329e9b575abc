"""Command lines of mpirun, mpiexec, horovodrun and hvdrun, as in Horovod's tutorials, and tables of their flags.

A line has ranks, hosts, variables and a command; flags that only tune MPI become warnings with the alternative. A line
without hosts does not define where its ranks run.
Sources: mpirun(1) of Open MPI 4 and 5; MPICH's wiki, "Using the Hydra Process Manager"; Intel MPI's reference, "Global
Hydra Options"; Horovod's ``horovodrun --help``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from hvd_kernel.formatting.units import plural
from hvd_kernel.jobs.flags import Flag, ParsedFlag, Spellings, Table, count, ignored_flags, split, table
from hvd_kernel.jobs.knobs import KNOBS, Knob
from hvd_kernel.jobs.readers import hostfile
from hvd_kernel.jobs.shell_lines import ShellWord, bare, is_assigned, program, refuse_operators, words
from hvd_kernel.jobs.spec import MAX_RANKS, NO_COMMAND, JobError, JobSpec, PlatformField, Replica, Resources, Variable
from hvd_kernel.settings.lists import entries

MPI_PROGRAMS = frozenset(
    {"mpirun", "mpiexec", "mpiexec.hydra", "mpirun.openmpi", "mpiexec.openmpi", "mpirun.mpich", "orterun", "prterun"}
)
HOROVOD_PROGRAMS = frozenset({"horovodrun", "hvdrun"})
"""Horovod's launcher, and ours with the same flags."""
PROGRAMS = MPI_PROGRAMS | HOROVOD_PROGRAMS
GRADIENT = (("gradient",), ("experiments", "experiment"))
"""The first words of Gradient's command lines; ``gradient`` only could be any program."""
JSRUN = "jsrun"
"""IBM's launcher of an LSF allocation."""
JSRUN_PLACE = "an LSF job"
"""Location of jsrun, for messages."""


def launcher_of(command: Sequence[str]) -> str:
    """Return the program of another launcher's command line, or an empty string for any other command.

    >>> launcher_of(["/usr/bin/mpirun", "-np", "2", "train"]), launcher_of(["gradient", "models"])
    ('mpirun', '')
    """
    name = command[0].rpartition("/")[2] if command else ""
    line = (name, *command[1 : len(GRADIENT)])
    is_gradient = len(line) == len(GRADIENT) and all(word in words for word, words in zip(line, GRADIENT, strict=True))
    return name if name in PROGRAMS or is_gradient else ""


_PLACE = "ranks fill the hosts in order and are not bound to cores"
_SHELL = "hvdrun's own agents start the ranks"
_SHOWN = "`hvdrun job plan` shows who runs where"
_OUTPUT = "`hvdrun --output-filename DIR` keeps each rank's output"
_LOOKS = "each line already has its rank as prefix, and `hvdrun --prefix-output-with-timestamp` adds the time"
_ENDS = "a rank that fails ends the others, and the job's status is its own"
_ONE_LINE = "read here is one line for all ranks: write the flags and the command on it"
_ELASTIC = "a plan is that of the start; `hvdrun` itself, with the same flags, lets the size change"

_COMMON = (
    ("np", Flag("np")),
    ("H", Flag("hosts")),
    ("hostfile", Flag("hostfile")),
)


def _variable(knob: Knob) -> list[tuple[str, Flag]]:
    """Return the rows of a flag that sets a variable; a switch has a row for each of its values."""

    def names(flags: Iterable[str]) -> str:
        return " ".join(flag.lstrip("-") for flag in flags)

    if not knob.switch:
        return [(names(knob.flags), Flag(knob.variable, 1, knob.unit))]
    on, off = (Flag(f"{knob.variable}={knob.turn(value)}", 0) for value in "10")
    return [(names(knob.flags), on), (names(knob.off), off)]


MPI = table(
    *_COMMON,
    ("n c", Flag("np")),
    ("host hosts", Flag("hosts")),
    ("machinefile machine f default-hostfile", Flag("hostfile")),
    ("N npernode ppn perhost", Flag("per_host")),
    ("pernode", Flag("one_per_host", 0)),
    ("x", Flag("variable")),
    ("genv env", Flag("pair", 2)),
    ("genvlist envlist", Flag("names")),
    ("wdir wd", Flag("workdir")),
    ("iface", Flag("interfaces")),
    ("mca gmca omca prtemca pmixmca", Flag("mca", 2)),
    ("map-by", Flag("map_by")),
    ("oversubscribe", Flag("oversubscribe", 0)),
    ("genvall envall v verbose q quiet nooversubscribe allow-run-as-root disable-x noconf", Flag("quiet", 0)),
    ("genvnone envnone", Flag("ignored", 0, "ranks get the environment of the shell that starts the job")),
    ("bind-to rank-by cpus-per-proc cpus-per-rank cpu-set cpu-list", Flag("ignored", 1, _PLACE)),
    ("bind-to-core bind-to-socket bind-to-none bycore bynode byslot bysocket nolocal", Flag("ignored", 0, _PLACE)),
    ("use-hwthread-cpus rr", Flag("ignored", 0, _PLACE)),
    ("order-nodes usize", Flag("ignored", 1, _PLACE)),
    ("prefix path launch-agent launcher launcher-exec bootstrap bootstrap-exec rmk", Flag("ignored", 1, _SHELL)),
    ("tune am personality dvm-uri gtool gtoolfile", Flag("ignored", 1, _SHELL)),
    ("localhost preload-files demux topolib", Flag("ignored", 1, _SHELL)),
    ("enable-x preload-binary leave-session-attached no-ready-msg", Flag("ignored", 0, _SHELL)),
    (
        "report-bindings display-map display-allocation display-devel-map print-rank-map info",
        Flag("ignored", 0, _SHOWN),
    ),
    ("display report-uri report-pid", Flag("ignored", 1, _SHOWN)),
    ("output-filename output outfile-pattern errfile-pattern", Flag("ignored", 1, _OUTPUT)),
    ("tag-output timestamp-output merge-stderr-to-stdout prepend-rank l", Flag("ignored", 0, _LOOKS)),
    ("xterm prepend-pattern", Flag("ignored", 1, _LOOKS)),
    ("stdin s", Flag("ignored", 1, "stdin goes to rank 0")),
    ("timeout", Flag("ignored", 1, "a job's time is not limited")),
    ("max-restarts", Flag("ignored", 1, _ENDS)),
    ("enable-recovery disable-recovery continuous print-all-exitcodes disable-auto-cleanup", Flag("ignored", 0, _ENDS)),
    ("configfile app", Flag("refused", 1, _ONE_LINE)),
    ("rankfile rf", Flag("refused", 1, "the order in it is not read: write -H host:slots in the order of the ranks")),
    ("arch soft", Flag("refused", 1, _ONE_LINE)),
    ("h help V version", Flag("refused", 0, "it starts no job: leave it out")),
)
HOROVOD = table(
    *_COMMON,
    ("num-proc", Flag("np")),
    ("hosts", Flag("hosts")),
    ("slots-per-host", Flag("slots")),
    ("network-interface network-interfaces", Flag("interfaces")),
    ("start-timeout", Flag("HOROVOD_START_TIMEOUT")),
    ("grace-period", Flag("HVD_GRACE_PERIOD")),
    ("gpus", Flag("HVD_GPUS")),
    ("tcp", Flag("NCCL_IB_DISABLE=1", 0)),
    ("gloo verbose disable-cache", Flag("quiet", 0)),
    ("mpi", Flag("ignored", 0, "ranks meet without MPI; `hvdrun --mpi` starts them with it")),
    ("jsrun", Flag("ignored", 0, "inside LSF jsrun starts the ranks where it is available")),
    ("mpi-args binding-args", Flag("ignored", 1, "ranks are started without MPI; `hvdrun --mpi` takes it")),
    ("p ssh-port", Flag("ignored", 1, "use `hvdrun -p`, or ~/.ssh/config")),
    ("i ssh-identity-file", Flag("ignored", 1, "use `hvdrun -i`, or ~/.ssh/config")),
    ("output-filename output-max-size exit-report", Flag("ignored", 1, _OUTPUT)),
    ("prefix-timestamp prefix-output-with-timestamp", Flag("ignored", 0, _LOOKS)),
    ("config-file", Flag("ignored", 1, "its values are not read: give them as flags")),
    ("min-np min-num-proc max-np max-num-proc elastic-timeout", Flag("ignored", 1, _ELASTIC)),
    ("reset-limit max-restarts host-discovery-script discovery-interval", Flag("ignored", 1, _ELASTIC)),
    ("slot-failures host-failures hang-timeout spares", Flag("ignored", 1, _ELASTIC)),
    ("blacklist-cooldown-range", Flag("ignored", 2, _ELASTIC)),
    ("v version cb check-build h help", Flag("refused", 0, "it starts no job: leave it out")),
    ("install-horovodrun uninstall-horovodrun", Flag("refused", 0, "it starts no job: leave it out")),
    ("install-horovod uninstall-horovod", Flag("refused", 0, "it starts no job: leave it out")),
    ("build-horovod-shim install-mpirun", Flag("refused", 1, "it starts no job: leave it out")),
    *(row for knob in KNOBS for row in _variable(knob)),
)
"""The use of a flag that sets a variable is the variable's name, for a switch with its value: ``NAME=value``."""
_ONE_DASH = ("np", "H", "hostfile", "p", "i", "prefix-timestamp", "v", "cb", "h")
OURS = (
    *("--gpus", "--install-", "--uninstall-", "--build-", "--max-restarts", "--discovery-interval", "--spares"),
    *("--slot-failures", "--host-failures", "--hang-timeout", "--grace-period", "--output-max-size", "--exit-report"),
)
"""Flags that Horovod does not have; they do not make abbreviations ambiguous."""
HOROVOD_SPELLED = Spellings(
    (*(f"-{name}" for name in _ONE_DASH), "--hostfile", *(f"--{name}" for name in HOROVOD if name not in _ONE_DASH)),
    OURS,
)
SLOTS_NOTE = "it is for hosts of -H or --hostfile that are given without slots"
MCA = {
    "btl_tcp_if_include": "",
    "oob_tcp_if_include": "",
    "plm_rsh_args": "use `hvdrun -p`, or ~/.ssh/config",
    "plm_rsh_agent": _SHELL,
    "plm_rsh_no_tree_spawn": _SHELL,
    "btl_tcp_if_exclude": "use `hvdrun --network-interfaces` to choose the ranks' interfaces",
    "oob_tcp_if_exclude": "use `hvdrun --network-interfaces` to choose the ranks' interfaces",
}
"""Parameters of Open MPI with separate notes, empty for network interfaces; ``MCA_NOTE`` is for all others."""
MCA_NOTE = "ranks choose their links (shared memory, TCP) themselves, without Open MPI"


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
    """A parsed line. ``np`` is 0, and hosts and hostfile are empty, if not set; ``slots``: the default of a host.

    ``resources`` are those of a host, if the line has them.
    """

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
    resources: Resources = Resources()
    platform_fields: tuple[PlatformField, ...] = ()

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
    return program(text) in MPI_PROGRAMS


def matches_horovod(text: str, _name: str) -> bool:
    """Return whether the first word of a line is horovodrun or hvdrun."""
    return program(text) in HOROVOD_PROGRAMS


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
    if program(rest) in PROGRAMS:
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
    if launcher not in PROGRAMS:
        raise JobError(f"{name}: {launcher!r} is not known: there are {', '.join(sorted(PROGRAMS))}.")
    kind = "horovodrun" if launcher in HOROVOD_PROGRAMS else "mpirun"
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
