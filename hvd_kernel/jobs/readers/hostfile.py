"""Hostfile reader: ``host slots=4``, ``host:4`` or ``host``, as in Open MPI, Intel MPI, MPICH and Horovod.

The slots of a host on several lines are added, at the position of the first line. Comments start with #. PBS and Torque
write such a file too, with a host once per slot; Grid Engine's has lines of ``host slots queue processors``.
"""

from __future__ import annotations

import difflib
import ipaddress
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from hvd_kernel.jobs.readers.slurm import expand
from hvd_kernel.jobs.spec import JobError, JobSpec, Replica, Resources
from hvd_kernel.settings.lists import entries

_NAME = r"\w[\w.-]*(?:\[[0-9,-]+\][\w.-]*)*"
_HOST = re.compile(rf"\s*(?P<user>\w[\w.-]*@)?(?:\[(?P<address>[^\]\s]*)\]|(?P<name>{_NAME}))(?=[\s:]|$)")
_FILE_NAME = re.compile(r"hosts?|node|machine", re.IGNORECASE)
_COLON = re.compile(r"(?P<blank>\s*):(?P<after>\s*)(?P<count>\S*)")
_OPTION = re.compile(r"\s+(?P<key>[A-Za-z][\w-]*)\s*=\s*(?P<value>[^\s=]\S*)")
_USER = re.compile(r"\w[\w.-]*")
_COUNT = re.compile(r"0*[1-9][0-9]{0,5}", re.ASCII)
_SLOTS = ("slots", "count", "cpu", "cpus")  # Open MPI has all four
_USERS = ("user", "username", "user_name")
_ASIDE = ("max_slots", "port", "boards", "sockets", "cores", "binding", "ifname", "netmask")
_ALLOWED = (_SLOTS[0], _USERS[0], *_ASIDE)
_ALSO = {  # Open MPI's other spellings of those
    *("slots_max", "max_count", "count_max", "max_cpu", "cpu_max", "sockets_per_board", "cores_per_socket")
}
BYTE_ORDER_MARK = "\ufeff"
"""Start of a text file that some editors on Windows write."""
_WRITE = "write host slots=4, host:4 or host"
_LONGEST = 80


class HostfileLine(NamedTuple):
    """A host, its slots or None, the names of ignored options, and whether it has the form host:4 without blanks."""

    host: str
    slots: int | None
    ignored: tuple[str, ...] = ()
    tight: bool = True


class _WrongError(ValueError):
    """A line that cannot be read; ``ours``: it is still a line of a hostfile, with a typo in an option."""

    def __init__(self, at: int, message: str, *, ours: bool = False) -> None:
        super().__init__(message)
        self.at, self.ours = at, ours


def matches(text: str, name: str) -> bool:
    """Return whether all lines are lines of a hostfile, possibly with a typo such as ``slot=2`` or ``slots=two``.

    A command of a single word is not a hostfile, nor is YAML such as ``name: 4``.
    """
    lines = [line for _, line in _lines(text)]
    return name != "the command line" and bool(lines) and all(map(_is_host, lines))


def _is_host(text: str) -> bool:
    try:
        return _line(text).tight
    except _WrongError as wrong:
        return wrong.ours


def read(text: str, name: str, slots: int = 1) -> JobSpec:
    """Return the hosts of a hostfile as a job without steps; ``slots`` is the default number of slots of a host.

    Raises
    ------
    JobError
        A line is invalid, or there is no host; the message has the line and column.
    """
    hosts: dict[str, int] = {}
    ignored: dict[str, list[int]] = {}
    for number, text_of_line in _lines(text):
        try:
            line = _line(text_of_line)
        except _WrongError as wrong:
            raise JobError(f"{name}:{number}:{wrong.at + 1}: {wrong}.") from None
        for host in _hosts(line.host, f"{name}:{number}"):
            hosts[host] = hosts.get(host, 0) + (slots if line.slots is None else line.slots)
        for key in line.ignored:
            ignored.setdefault(key, []).append(number)
    if not hosts:
        raise JobError(f"{name}:1:1: the hostfile names no host: write lines like `host slots=4`.")
    return JobSpec(
        "hostfile", replicas(hosts), warnings=tuple(_ignored(name, key, numbers) for key, numbers in ignored.items())
    )


def host_list(text: str, name: str, slots: int = 1) -> list[tuple[str, int]]:
    """Return the hosts of ``h1:2,h2:4`` in order, with their slots; ``slots`` is the default.

    Raises
    ------
    JobError
        An entry is invalid.
    """
    hosts = []
    for entry in entries(text):
        try:
            line = _line(entry)
        except _WrongError:
            raise JobError(
                f"{name}: {entry!r} is not a host with its slots: write host:4 (in a file: host slots=4)."
            ) from None
        hosts += [(host, slots if line.slots is None else line.slots) for host in _hosts(line.host, name)]
    if not hosts:
        raise JobError(f"{name} names no host: write host:slots,other:slots.")
    return hosts


def resembles(text: str, name: str) -> bool:
    """Return whether a text that no reader matches is most likely a hostfile with a mistake: by its name and lines."""
    lines = [line for _, line in _lines(text)]
    counted = sum(map(_is_host, lines))
    return bool(_FILE_NAME.search(name.rpartition("/")[2])) and 2 * counted >= len(lines) > 0


def _hosts(host: str, where: str) -> list[str]:
    """Return the hosts of a name with ranges, ``n[1-3]``; any other name as it is."""
    user, at, names = host.rpartition("@")
    return [f"{user}{at}{name}" for name in expand(names, where)] if "[" in names else [host]


def spelled(host: str, slots: int) -> str:
    """Return a host in the format of ``host_list`` and hostfiles: ``spelled("joe@::1", 2) == "joe@[::1]:2"``."""
    user, at, name = host.rpartition("@")
    return f"{user}{at}[{name}]:{slots}" if _is_ipv6(name) else f"{host}:{slots}"


def replicas(hosts: Mapping[str, int]) -> tuple[Replica, ...]:
    """Return hosts with their slots as the replicas of a job."""
    return tuple(Replica("host", index, host, slots) for index, (host, slots) in enumerate(hosts.items()))


def _lines(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.removeprefix(BYTE_ORDER_MARK).splitlines(), 1):
        bare = line.partition("#")[0].rstrip()
        if bare:
            yield number, bare


def _line(text: str) -> HostfileLine:
    """Parse a line without a comment."""
    start, word = len(text) - len(text.lstrip()), (text.split(maxsplit=1) or [""])[0]
    if _is_ipv6(word):
        raise _WrongError(start, f"{_short(word)!r} is not a host: an IPv6 address has brackets, as in [fe80::1]:4")
    match = _HOST.match(text)
    if match is None or (match["address"] is not None and not _is_ipv6(match["address"])):
        raise _WrongError(start, f"{_short(text.strip())!r} is not a host: {_WRITE}")
    colon = _COLON.match(text, match.end())
    slots, user, ignored = _options(text, colon.end() if colon else match.end())
    if (colon and slots is not None) or (match["user"] and user):
        raise _WrongError(start, f"{_short(text.strip())!r} says its slots or its user twice: {_WRITE}")
    if colon:
        slots = _count(colon["count"], colon.start("count"))
    host = (match["user"] or user) + (match["address"] or match["name"])
    return HostfileLine(host, slots, ignored, not colon or not colon["blank"] + colon["after"])


def _options(text: str, position: int) -> tuple[int | None, str, tuple[str, ...]]:
    """Parse the options from a position in a line; return the slots, ``user@``, and the names of ignored options."""
    slots, user, ignored = None, "", []
    while option := _OPTION.match(text, position):
        key = option["key"].lower().replace("-", "_")
        if key in _SLOTS:
            slots = _count(option["value"], option.start("value"), ours=True)
        elif key in _USERS:
            user = _user(option["value"], option.start("value"))
        elif key in _ASIDE or key in _ALSO:
            ignored.append(option["key"])
        else:
            near = difflib.get_close_matches(key, _ALLOWED, 1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            message = f"{_short(option['key'])!r} is unknown here: {hint}allowed: {', '.join(_ALLOWED)}"
            raise _WrongError(option.start("key"), message, ours=bool(near))
        position = option.end()
    rest = text[position:].lstrip()
    if rest:
        raise _WrongError(len(text) - len(rest), f"{_short(rest)!r} is not understood: {_WRITE}")
    return slots, user, tuple(ignored)


def _count(text: str, position: int, *, ours: bool = False) -> int:
    if not _COUNT.fullmatch(text):
        message = (
            f"{_short(text)!r} is not a number of slots from 1 to 999999" if text else "the number of slots is missing"
        )
        raise _WrongError(position, f"{message}: {_WRITE}", ours=ours)
    return int(text)


def _user(text: str, position: int) -> str:
    if not _USER.fullmatch(text):  # ssh would parse some names as an option
        raise _WrongError(position, f"{_short(text)!r} is not a user's name: {_WRITE}")
    return text + "@"


def _is_ipv6(text: str) -> bool:
    try:
        return ipaddress.ip_address(text).version == 6  # noqa: PLR2004 - version number
    except ValueError:
        return False


def _ignored(name: str, key: str, lines: list[int]) -> str:
    where = f"line {lines[0]}" if len(lines) == 1 else f"lines {lines[0]} to {lines[-1]}"
    return f"{name}: {key} is ignored, in {where}: only a host, its user and its slots are used"


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


Env = Mapping[str, str]
File = Callable[[str], str | None]


def in_pbs_job(env: Env) -> bool:
    """Return whether this process is in a PBS job."""
    return bool(env.get("PBS_JOBID")) and bool(env.get("PBS_NODEFILE"))


def read_pbs_nodes(env: Env, file: File) -> JobSpec:
    """Return the job's hosts with their slots (mpiprocs, ppn), and with Torque also their GPUs.

    Raises
    ------
    JobError
        The file cannot be read.
    """
    path = env["PBS_NODEFILE"]
    text = file(path)
    if text is None:
        raise JobError(f"PBS_NODEFILE={path!r} cannot be read: it is on the job's first host; run this there.")
    spec = read(text, path)
    gpus = _torque_gpus(file(env["PBS_GPUFILE"]) if env.get("PBS_GPUFILE") else None)
    nodes = tuple(_with_gpus(replica, gpus) for replica in spec.replicas)
    return msgspec.structs.replace(spec, kind="pbs", replicas=nodes, name=env.get("PBS_JOBNAME", ""))


def _torque_gpus(text: str | None) -> Counter[str]:
    """Count the GPUs of each host in Torque's lines ``host-gpu0``."""
    return Counter(line.strip().rpartition("-gpu")[0] for line in (text or "").splitlines() if line.strip())


def _with_gpus(replica: Replica, gpus: Counter[str]) -> Replica:
    if not gpus:
        return replica
    return msgspec.structs.replace(replica, resources=Resources(gpus=gpus[replica.host]))


_SGE_LINE = re.compile(r"\s*(?P<host>[\w.-]+)\s+(?P<slots>0*[1-9][0-9]{0,5})\s+(?P<queue>\S+)(?:\s+\S+)*\s*", re.ASCII)


def in_sge_job(env: Env) -> bool:
    """Return whether this process is in a parallel environment of Grid Engine."""
    return bool(env.get("PE_HOSTFILE"))


def read_sge_hosts(env: Env, file: File) -> JobSpec:
    """Return the job's hosts with their slots.

    Raises
    ------
    JobError
        The file cannot be read, or a line is invalid.
    """
    path = env["PE_HOSTFILE"]
    text = file(path)
    if text is None:
        raise JobError(f"PE_HOSTFILE={path!r} cannot be read: it is on the job's first host; run this there.")
    return read_sge_text(text, path, env.get("JOB_NAME", ""))


def matches_sge(text: str, _name: str) -> bool:
    """Return whether all lines have a host, a number and a queue."""
    lines = [line for line in text.splitlines() if line.strip()]
    return bool(lines) and all(_SGE_LINE.fullmatch(line) for line in lines)


def read_sge_text(text: str, name: str, job: str = "") -> JobSpec:
    """Return the hosts of a PE_HOSTFILE; the slots of a host in several queues are added.

    Raises
    ------
    JobError
        A line is invalid, or there is no host; the message has the line.
    """
    hosts: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        match = _SGE_LINE.fullmatch(line)
        if not match:
            column = len(line) - len(line.lstrip()) + 1
            raise JobError(f"{name}:{number}:{column}: {line.strip()[:80]!r} is not `host slots queue processors`.")
        hosts[match["host"]] = hosts.get(match["host"], 0) + int(match["slots"])
    if not hosts:
        raise JobError(f"{name}:1:1: the file names no host: Grid Engine writes lines `host slots queue processors`.")
    return JobSpec("sge", replicas(hosts), name=job)
