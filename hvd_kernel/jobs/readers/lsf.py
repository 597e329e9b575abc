"""LSF allocation reader: LSB_MCPU_HOSTS, LSB_DJOB_HOSTFILE, or the answers of IBM's CSM.

On machines with CSM a job starts on a launch node, which LSF lists first, with one slot; no rank runs on it.
Tested with golden texts only, without an LSF installation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, NamedTuple

import msgspec

from hvd_kernel.jobs.documents import Document, parse
from hvd_kernel.jobs.readers import hostfile
from hvd_kernel.jobs.spec import Bounds, JobError, JobSpec, Replica, Resources

Env = Mapping[str, str]
File = Callable[[str], str | None]
Count = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]

_CSM = "/opt/ibm/csm/bin"
_ASK_CSM = "LSF counts cores, and the GPUs of a node are not known here: pass -np"


class Csm(NamedTuple):
    """Answers of IBM's Cluster System Manager to ``allocation_query`` and ``node_query``."""

    allocation: str
    node: str


class _Allocation(msgspec.Struct):
    compute_nodes: list[str]
    isolated_cores: Count = 0


class _Node(msgspec.Struct):
    discovered_cores: Count
    discovered_sockets: Count
    discovered_gpus: Count


class _Answer(msgspec.Struct):
    record: _Node = msgspec.field(name="Record_1")


def in_allocation(env: Env) -> bool:
    """Return whether this process is in an LSF job."""
    return bool(env.get("LSB_JOBID")) and any(env.get(name) for name in (*_LISTS, "CSM_ALLOCATION_ID"))


def allocation_query(env: Env) -> list[str]:
    """Return the command that queries CSM for the job's nodes, or an empty list without CSM."""
    number = env.get("CSM_ALLOCATION_ID", "").strip()
    return [f"{_CSM}/csm_allocation_query", "-a", number] if number else []


def node_query(allocation: str) -> list[str]:
    """Return the command that queries CSM for the resources of an allocation's first node."""
    _, nodes = _allocation(allocation)
    return [f"{_CSM}/csm_node_attributes_query", "-n", nodes.compute_nodes[0]]


def query(env: Env, run: Callable[[list[str]], str | None]) -> Csm | None:
    """Query CSM with ``run``, which returns the output of a command; return None without CSM."""
    command = allocation_query(env)
    allocation = run(command) if command else None
    node = None if allocation is None else run(node_query(allocation))
    return None if allocation is None or node is None else Csm(allocation, node)


def read(env: Env, file: File, csm: Csm | None = None) -> JobSpec:
    """Return the job's hosts, with one slot per GPU if CSM is available, otherwise with LSF's slots.

    Raises
    ------
    JobError
        A variable or an answer is invalid; the message names it.
    """
    name = env.get("LSB_JOBNAME", "")
    if csm is not None:
        return JobSpec("lsf", _compute_nodes(csm), name=name)
    hosts = next((hosts_of(env, file) for variable, hosts_of in _LISTS.items() if env.get(variable)), {})
    launched = bool(env.get("CSM_ALLOCATION_ID"))
    first = next(iter(hosts), "")
    if launched and len(hosts) > 1 and hosts[first] == 1:
        del hosts[first]
    if not hosts:
        raise JobError(
            f"LSF job {env.get('LSB_JOBID', '?')}: none of {', '.join(_LISTS)} is set: name the hosts with -H."
        )
    return JobSpec("lsf", hostfile.replicas(hosts), name=name, warnings=(_ASK_CSM,) if launched else ())


def _mcpu_hosts(env: Env, _file: File) -> dict[str, int]:
    """Return the hosts of ``h1 4 h2 4``."""
    words = env["LSB_MCPU_HOSTS"].split()
    names, numbers = words[::2], words[1::2]
    if len(names) != len(numbers) or not all(
        number.isascii() and number.isdecimal() and int(number) for number in numbers
    ):
        raise JobError(f"LSB_MCPU_HOSTS={env['LSB_MCPU_HOSTS']!r} is not a list of hosts with their slots: h1 4 h2 4.")
    return _summed(zip(names, map(int, numbers), strict=True))


def _djob_hostfile(env: Env, file: File) -> dict[str, int]:
    path = env["LSB_DJOB_HOSTFILE"]
    text = file(path)
    if text is None:
        raise JobError(f"LSB_DJOB_HOSTFILE={path!r} cannot be read: run this where LSF has started the job.")
    return {replica.host: replica.slots for replica in hostfile.read(text, path).replicas}


def _hosts(env: Env, _file: File) -> dict[str, int]:
    """Return the hosts of ``h1 h1 h2``."""
    return _summed((name, 1) for name in env["LSB_HOSTS"].split())


_LISTS: dict[str, Callable[[Env, File], dict[str, int]]] = {
    "LSB_MCPU_HOSTS": _mcpu_hosts,
    "LSB_DJOB_HOSTFILE": _djob_hostfile,
    "LSB_HOSTS": _hosts,
}


def _summed(pairs: Iterable[tuple[str, int]]) -> dict[str, int]:
    hosts: dict[str, int] = {}
    for name, slots in pairs:
        hosts[name] = hosts.get(name, 0) + slots
    return hosts


def _allocation(text: str) -> tuple[Document, _Allocation]:
    document = parse(text, "csm_allocation_query")
    nodes = document.convert(_Allocation)
    if not nodes.compute_nodes:
        raise document.error(("compute_nodes",), "the allocation has no node")
    return document, nodes


def _compute_nodes(csm: Csm) -> tuple[Replica, ...]:
    _, allocation = _allocation(csm.allocation)
    node = parse(csm.node, "csm_node_attributes_query").convert(_Answer).record
    cores = node.discovered_cores - node.discovered_sockets * allocation.isolated_cores
    resources = Resources(Bounds(max(cores, 0)), gpus=node.discovered_gpus)
    slots = node.discovered_gpus or 1
    return tuple(
        Replica("host", index, name, slots, resources) for index, name in enumerate(sorted(allocation.compute_nodes))
    )
