"""The command line of ``hvdrun``: Horovod's flags, as tables; text in, an ``HvdrunRequest`` or a UsageError out. Pure.

The file of ``--config-file``, which is Horovod's YAML, sets the values of flags too:

    params: {fusion_threshold_mb: 64}        stall_check: {enabled: false}
    controller: gloo                         logging: {level: DEBUG}
    elastic: {min_np: 2, max_np: 8}          (not Horovod's)

Unknown sections and keys are ignored with a warning: those of Horovod's versions differ.

Terms.
  knob     a flag that becomes a variable of the ranks (jobs/knobs.py)
  elastic  flags of jobs whose size may change while they run (elastic.py)
"""

from __future__ import annotations

import argparse
import difflib
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from hvd_kernel.errors import ConfigError, UsageError
from hvd_kernel.jobs import knobs
from hvd_kernel.jobs.flags import Spellings
from hvd_kernel.jobs.knobs import KNOBS, Knob
from hvd_kernel.jobs.readers.mpirun import JSRUN_PLACE, OURS, SLOTS_NOTE
from hvd_kernel.launch.cli import elastic
from hvd_kernel.launch.cli.elastic import FLAGS, ElasticFlag
from hvd_kernel.launch.elastic.options import ElasticOptions
from hvd_kernel.launch.placement import job_hosts, with_slots
from hvd_kernel.settings import arguments, gpus
from hvd_kernel.settings.lists import entries

if TYPE_CHECKING:
    from hvd_kernel.jobs.documents import Document

Table = dict[tuple[str, ...], dict[str, Any]]


_yes: dict[str, Any] = {"action": "store_true"}

ACTIONS: Table = {
    ("-v", "--version"): _yes | {"help": "print the version"},
    ("-cb", "--check-build"): _yes
    | {"dest": "check_build", "help": "print which frameworks, MPI and GPU support are available"},
    ("--install-horovodrun",): _yes | {"help": "install a command `horovodrun` next to hvdrun, unless there is one"},
    ("--uninstall-horovodrun",): _yes | {"help": "remove it"},
    ("--install-horovod",): _yes | {"help": "let `import horovod` find hvd_kernel in every Python of this environment"},
    ("--uninstall-horovod",): _yes | {"help": "undo --install-horovod"},
    ("--build-horovod-shim",): {
        "metavar": "DIR",
        "help": "write a wheel named horovod to DIR: installed by pip, it does both of the above",
    },
    ("--install-mpirun",): {
        "metavar": "DIR",
        "help": "write a script `mpirun` to DIR that passes its arguments to hvdrun; put DIR first in PATH",
    },
}
JOB: Table = {
    ("-np", "--num-proc"): {"dest": "np", "type": arguments.positive, "metavar": "N", "help": "number of ranks"},
    ("-H", "--hosts"): {
        "dest": "hosts",
        "metavar": "HOST:SLOTS,...",
        "help": "hosts and their slots (default: this host)",
    },
    ("-hostfile", "--hostfile"): {"dest": "hostfile", "metavar": "FILE", "help": "file of lines `host slots=N`"},
    ("--gpus",): {
        "type": arguments.devices,
        "metavar": "auto|all|0,1|none",
        "help": "GPUs of each host, assigned to its ranks in turn (auto: all visible ones)",
    },
    ("-p", "--ssh-port"): {
        "dest": "ssh_port",
        "type": arguments.port,
        "metavar": "PORT",
        "help": "port of ssh on all hosts",
    },
    ("-i", "--ssh-identity-file"): {"dest": "ssh_identity_file", "metavar": "FILE", "help": "private key for ssh"},
    ("--network-interfaces", "--network-interface"): {
        "dest": "interfaces",
        "type": entries,
        "action": "extend",
        "metavar": "NAME",
        "help": "network interface of the ranks; of several names the first that exists",
    },
    ("--output-filename",): {"metavar": "DIR", "help": "also write the output to DIR/rank.N/stdout and stderr"},
    ("--output-max-size",): {
        "type": arguments.size,
        "metavar": "SIZE",
        "help": "size of each of these files, as in 100M; a full one becomes stdout.1, which it replaces",
    },
    ("--exit-report",): {"metavar": "FILE", "help": "write to a JSON file how the job and each rank ended"},
    ("-prefix-timestamp", "--prefix-output-with-timestamp"): _yes
    | {"dest": "timestamp", "help": "prefix every line with the time"},
    ("--start-timeout",): {
        "type": arguments.seconds,
        "metavar": "S",
        "help": "seconds to wait for hosts and ranks (30)",
    },
    ("--grace-period",): {
        "dest": "grace_s",
        "type": arguments.seconds_or_zero,
        "metavar": "S",
        "help": "seconds between SIGTERM and SIGKILL for ranks that have to be stopped (HVD_GRACE_PERIOD, else 5 after "
        "a failure; at a cancellation what the platform allows, else 30)",
    },
    ("--verbose",): _yes | {"help": "print each step"},
    ("--slots-per-host",): {
        "dest": "slots",
        "type": arguments.positive,
        "metavar": "N",
        "help": "slots of hosts that are given without a number of slots (1)",
    },
    ("--disable-cache",): _yes | {"help": "no effect: hvdrun caches no checks"},
    ("--config-file",): {"metavar": "YAML", "help": "file with values for flags that are not given"},
    ("--gloo",): _yes | {"help": "start the ranks without MPI (default)"},
    ("--mpi",): _yes | {"help": "start the ranks with the mpiexec of this environment"},
    ("--jsrun",): _yes | {"help": f"start the ranks with jsrun (default in {JSRUN_PLACE})"},
    ("--mpi-args",): {"type": shlex.split, "metavar": "'...'", "help": "additional arguments for mpiexec, with --mpi"},
    ("--binding-args",): {"type": shlex.split, "metavar": "'...'", "help": "binding arguments for mpiexec, with --mpi"},
    ("--tcp",): _yes | {"help": "do not use InfiniBand: NCCL_IB_DISABLE=1, and TCP under MPI"},
}
_DASHED = ("--mpi-args", "--binding-args")  # their values begin with dashes
_EPILOG = (
    "HOROVOD_RANK and HOROVOD_SIZE identify a rank. A rank that fails ends the others; hvdrun's status is its status. "
    "Stdin goes to rank 0."
)


@dataclass(frozen=True)
class HvdrunRequest:
    """A parsed command line."""

    command: list[str]
    action: str = ""  # one of ACTIONS, as version or check_build; empty: run the command
    folder: str = ""  # of --build-horovod-shim and --install-mpirun
    np: int = 0
    hosts: str | None = None
    hostfile: str | None = None
    ssh_port: int | None = None
    ssh_identity_file: str | None = None
    interfaces: tuple[str, ...] = ()
    output_filename: str | None = None
    output_max_bytes: int = 0
    exit_report: str | None = None
    timestamp: bool = False
    start_timeout_s: float | None = None
    grace_s: float | None = None  # between SIGTERM and SIGKILL
    verbose: bool = False
    use_mpi: bool = False
    use_jsrun: bool = False
    mpi_args: tuple[str, ...] = ()
    elastic: ElasticOptions | None = None  # the job may change its size
    env: dict[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()  # on flags that cannot be honoured


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"hvdrun: {message}. `hvdrun --help` lists the flags; e.g. hvdrun -np 4 python train.py")


def parser() -> argparse.ArgumentParser:
    """Return the parser of all tables."""
    result = _Parser("hvdrun", usage="hvdrun -np N [flags] COMMAND ...", epilog=_EPILOG, allow_abbrev=False)
    group = result.add_argument_group("job")
    for names, keywords in (ACTIONS | JOB).items():
        group.add_argument(*names, **{"default": argparse.SUPPRESS, **keywords})
    elastic.add(result.add_argument_group("elastic jobs, with --min-np or --host-discovery-script"))
    group = result.add_argument_group("variables of the ranks")
    for knob in knobs.KNOBS:
        _add(group, knob)
    return result


def _add(group: Any, knob: knobs.Knob) -> None:
    common = {"dest": knob.dest, "default": argparse.SUPPRESS}
    if knob.switch:
        group.add_argument(
            *knob.flags, action="store_const", const=knob.value("1"), help=knob.help.replace("%", "%%"), **common
        )
        group.add_argument(*knob.off, action="store_const", const=knob.value("0"), help="the opposite", **common)
    else:
        metavar = knob.flags[0].rpartition("-")[2].upper()
        group.add_argument(
            *knob.flags, type=knob.argument, metavar=metavar, help=knob.help.replace("%", "%%"), **common
        )


def parse(words: Sequence[str]) -> HvdrunRequest:
    """Parse a command line.

    Raises
    ------
    UsageError
        Naming the flag that is wrong, and the remedy.
    ConfigError
        The same for the configuration file and the hostfile.
    """
    flag_words, command = split(words)
    flags = vars(parser().parse_args(flag_words))
    for action in (names[-1].lstrip("-").replace("-", "_") for names in ACTIONS):
        if flags.get(action):
            return HvdrunRequest([], action, flags[action] if isinstance(flags[action], str) else "")
    _check_contradictions(flags)
    values, warnings = read_config_file(flags["config_file"]) if "config_file" in flags else ({}, [])
    values |= {name: value for name, value in flags.items() if "." in name}
    if not command:
        raise UsageError("hvdrun: there is no command to run, e.g. hvdrun -np 4 python train.py")
    use_mpi = flags.get("mpi", False) or (values.get("controller") == "mpi" and not flags.get("gloo", False))
    mpi_args = (*flags.get("binding_args", ()), *flags.get("mpi_args", ()))
    hosts, hostfile = with_slots(flags.get("hosts"), flags.get("hostfile"), flags.get("slots"))
    interfaces = tuple(flags.get("interfaces", ()))
    elastic_options = elastic.options(values, flags | {"hosts": hosts, "hostfile": hostfile, "mpi": use_mpi})
    return HvdrunRequest(
        command=command,
        np=_np(flags) if elastic_options is None else elastic_options.np,
        hosts=hosts,
        hostfile=hostfile,
        ssh_port=flags.get("ssh_port"),
        ssh_identity_file=flags.get("ssh_identity_file"),
        interfaces=interfaces,
        output_filename=flags.get("output_filename"),
        exit_report=flags.get("exit_report"),
        output_max_bytes=flags.get("output_max_size", 0),
        timestamp=flags.get("timestamp", False),
        start_timeout_s=flags.get("start_timeout"),
        grace_s=flags.get("grace_s"),
        verbose=flags.get("verbose", False),
        use_mpi=use_mpi,
        use_jsrun=flags.get("jsrun", False),
        mpi_args=mpi_args if use_mpi else (),
        elastic=elastic_options,
        env=knobs.environment(values) | elastic.variables(values) | _variables(flags),
        warnings=(
            *warnings,
            *knobs.without_effect(values),
            *elastic.ignored(values),
            *_ignored(
                flags, bool(mpi_args) and not use_mpi, has_hosts=elastic_options is not None or hosts or hostfile
            ),
        ),
    )


def _ignored(flags: Mapping[str, Any], unused_mpi_args: bool, *, has_hosts: object) -> list[str]:
    """Return a warning on each flag that has no effect beside the others."""
    warnings = {
        "--mpi-args and --binding-args are left out: they are for mpiexec, which starts the ranks with --mpi only": (
            unused_mpi_args
        ),
        "--output-max-size is left out: it is for the files of --output-filename": (
            "output_max_size" in flags and "output_filename" not in flags
        ),
        f"--slots-per-host is left out: {SLOTS_NOTE}": "slots" in flags and not has_hosts,
    }
    return [warning for warning, applies in warnings.items() if applies]


def _variables(flags: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables of flags that affect the launcher too."""
    env: dict[str, str] = {}
    if "start_timeout" in flags:
        env |= {"HVD_START_TIMEOUT": "", "HOROVOD_START_TIMEOUT": f"{flags['start_timeout']:g}"}
    if "gpus" in flags:
        env[gpus.CHOICE] = flags["gpus"]
    if flags.get("tcp"):
        env["NCCL_IB_DISABLE"] = "1"
    return env


def _np(flags: Mapping[str, Any]) -> int:
    """Return the number of ranks: -np, else the number of slots; 0: to be derived from where this runs."""
    if "np" in flags:
        return int(flags["np"])
    if "hosts" in flags or "hostfile" in flags:
        hosts = job_hosts(flags.get("hosts"), flags.get("hostfile"), 1, slots=flags.get("slots", 1))
        return sum(host.slots for host in hosts)
    return 0


def _check_contradictions(flags: Mapping[str, Any]) -> None:
    launchers = [name for name in ("gloo", "mpi", "jsrun") if flags.get(name)]
    if len(launchers) > 1:
        raise UsageError(f"hvdrun: --{' and --'.join(launchers)} exclude each other: keep one of them")
    if "hosts" in flags and "hostfile" in flags:
        raise UsageError("hvdrun: -H and --hostfile say the same thing: keep one of them")


def split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Separate hvdrun's flags from the command and its arguments.

    Raises
    ------
    UsageError
        A number of ranks is glued to its flag, or an abbreviation matches several flags.
    """
    flags: list[str] = []
    at = 0
    while at < len(words) and words[at].startswith("-") and words[at] != "--":
        if glued := re.fullmatch(r"-np(\d+)", words[at]):
            raise UsageError(f"hvdrun: {words[at]!r} is not a flag: write -np {glued[1]}, with a space")
        flag = _whole(words[at])
        end = at + 1 + _VALUES.get(flag, 0)
        # argparse accepts a value that begins with a dash only after "=".
        glue = flag in _DASHED and end <= len(words)
        flags += [f"{flag}={words[at + 1]}"] if glue else [flag, *words[at + 1 : end]]
        at = end
    return flags, list(words[at + 1 :] if words[at : at + 1] == ["--"] else words[at:])


def _whole(word: str) -> str:
    """Expand an abbreviated flag, as argparse does for horovodrun; ``=`` and what follows it are kept."""
    begin, equals, value = word.partition("=")
    if begin in _VALUES or begin == "-":
        return word
    try:
        whole = Spellings(tuple(_VALUES), OURS).whole(begin, lambda flag: _SAME.get(flag, flag))
    except ValueError as ambiguity:
        raise UsageError(f"hvdrun: {ambiguity}") from None
    return f"{whole}{equals}{value}" if whole else word


def _value_counts() -> dict[str, int]:
    counts: dict[str, int] = {"-h": 0, "--help": 0}
    for table in (ACTIONS, JOB):
        for names, keywords in table.items():
            counts |= dict.fromkeys(names, 0 if keywords.get("action") == "store_true" else 1)
    for row in elastic.FLAGS:
        counts |= dict.fromkeys(row.flags, row.nargs)
    for knob in knobs.KNOBS:
        counts |= dict.fromkeys(knob.flags, 0 if knob.switch else 1) | dict.fromkeys(knob.off, 0)
    return counts


_VALUES = _value_counts()
"""Flag -> the number of its values."""
_SAME = {name: names[0] for names in (*ACTIONS, *JOB, *(row.flags for row in elastic.FLAGS)) for name in names}
"""Flag -> its first name, for flags with several names."""


# The configuration file


CONTROLLERS = ("gloo", "mpi")
Row = Knob | ElasticFlag
_ROWS: tuple[Row, ...] = (*KNOBS, *FLAGS)


def read_config_file(path: str) -> tuple[dict[str, str], list[str]]:
    """Return the values that the file sets, by ``dest`` or as ``controller``, and warnings on what was ignored.

    Raises
    ------
    ConfigError
        The file cannot be read, or has an invalid value; it is named, with line and column.
    """
    try:
        text = Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the configuration file {path} cannot be read: {error}.") from None
    if not any(line.partition("#")[0].strip(" \t-") for line in text.splitlines()):
        return {}, []
    from hvd_kernel.jobs import documents  # noqa: PLC0415 - only such files need YAML

    reader = _Reader(documents.parse(text, path))
    reader.read()
    return reader.values, reader.warnings


@dataclass
class _Reader:
    document: Document
    values: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def read(self) -> None:
        sections = dict.fromkeys(row.section for row in _ROWS)
        for name, body in self._mapping(()).items():
            if _plain(name) == "controller":
                self._controller(name, body)
            elif _plain(name) in sections:
                self._section(name, {row.key: row for row in _ROWS if row.section == _plain(name)})
            else:
                self._ignore((name,), ("controller", *sections))

    def _controller(self, name: str, value: Any) -> None:
        if value is None:
            return
        if str(value).lower() not in CONTROLLERS:
            raise self.document.error((name,), f"{value!r} must be one of {', '.join(CONTROLLERS)}")
        self.values["controller"] = str(value).lower()

    def _section(self, section: str, rows: dict[str, Row]) -> None:
        for name, value in self._mapping((section,)).items():
            row = rows.get(_plain(name))
            if row is None:
                self._ignore((section, name), rows)
            elif value is not None:
                self.values[row.dest] = self._value(row, (section, name), value)

    def _mapping(self, path: tuple[str, ...]) -> dict[str, Any]:
        value = self.document.value
        for name in path:
            value = value[name]
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise self.document.error(path, f"must be a mapping of names to values, not {value!r}")
        return value

    def _value(self, row: Row, path: tuple[str, ...], value: Any) -> str:
        try:
            return row.value(str(value))
        except ValueError as error:
            raise self.document.error(path, f"{value!r} cannot be used: it must be {error}") from None

    def _ignore(self, path: tuple[str, ...], names: Iterable[str]) -> None:
        near = difflib.get_close_matches(_plain(path[-1]), names, 1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        where = str(self.document.error(path, "is ignored")).rstrip(".")
        self.warnings.append(f"{where}: {hint}known: {', '.join(names)}")


def _plain(name: str) -> str:
    return name.replace("-", "_")
