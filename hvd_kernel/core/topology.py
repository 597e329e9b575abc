"""Topology: how a process finds its rank, and reaches the other ranks before any link exists.

Terms.
  rank, size  this process's number, and the number of processes
  exchange    collective call: bytes of this rank in, bytes of every rank out, in rank order
  round       number of this ``init()`` in the process, from 1: ranks initialise equally often, so it names a rendezvous
  only        the ranks that the caller has named, in the order of their new numbers; None: all
  step        one srun of Slurm; its tasks are the ranks
  placement   rank of this process, and the address of rank 0's host, where the ranks rendezvous

Order in which the sources are tried. The first one that is set wins, even if a later one differs:
  1. ``init(comm=...)``                      the caller's choice
  2. ``HVD_BOOTSTRAP=mpi|tcp|none``          the cluster's (or the user's) decision; ``none`` is size 1
  3. ``HOROVOD_RANK``, ``HOROVOD_SIZE``      set for each process by a launcher of Horovod programs
  4. torchrun (``TORCHELASTIC_RUN_ID``)      the inner launcher if MPI starts one torchrun per node
  5. an MPI launcher's variables             ``OMPI_COMM_WORLD_RANK``, ``PMI_RANK``
  6. ``RANK``, ``WORLD_SIZE``                torch's convention; may describe a whole pod, hence after MPI
  7. a Slurm step's variables                ``SLURM_PROCID``, ...: srun without MPI; a script may set others
  8. nothing                                 size 1

With source 3 the ranks rendezvous at ``HOROVOD_CONTROLLER_ADDR``; without it, at the address of rank 0 in the HTTP
store of Horovod's launcher (``HOROVOD_GLOO_RENDEZVOUS_ADDR``); without that, at ``MASTER_ADDR``.

With ``HVD_BOOTSTRAP=tcp`` an MPI launcher's variables name the rank, but MPI is not used.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import re
import socket
import sys
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import hvd_kernel
from hvd_kernel.errors import ConfigError, HvdTimeout
from hvd_kernel.formatting.rank_labels import rank_list
from hvd_kernel.formatting.units import plural
from hvd_kernel.frameworks import registry
from hvd_kernel.processes import ports
from hvd_kernel.settings import lookup, network, torchrun

Exchange = Callable[[bytes], list[bytes]]
Env = Mapping[str, str]

_MPI_PATIENCE_S = 600.0  # default, long: with Horovod, MPI waits without limit for a rank that loads data first
_MPI_POLL_S = 0.0005
_unfinished: list[Any] = []  # requests that keep the memory alive to which MPI may still write
_pidfds: ContextVar[Mapping[int, int]] = ContextVar("pidfds")  # during ``find``

_MPI_LAUNCHERS = (("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE"))
_SIZES = ("HOROVOD_SIZE", "WORLD_SIZE", "SLURM_STEP_NUM_TASKS")
_STORE = ("HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT")
_STORE_POLL_S = 0.02  # the store has no blocking get
_LONGEST_ADDRESS = 100

_CARD = b"hvd_kernel "
_MOST_CHARS = 80
_SLURM_TASK = ("SLURM_PROCID", "SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_NODELIST")
_SLURM_PORTS = range(61440, 65536)  # above Linux's range of ephemeral ports
_FAILED = 1
LATE_OVER_MPI = (
    "not all {size} ranks joined over MPI within {seconds:g} s; this is rank {rank}, on host {host}. Check whether all "
    "of them call init(). If they do, MPI does not connect their hosts: each needs a name of its own, and an address "
    "that only it has (Open MPI: --mca btl_tcp_if_include NETWORK, as in 10.0.0.0/24). HVD_START_TIMEOUT sets the time."
)
NO_ADDRESS = (
    "{size_name}={size} names several ranks, but there is no address for their rendezvous: set HOROVOD_CONTROLLER_ADDR "
    "and HOROVOD_CONTROLLER_PORT to a free port of rank 0's host, the same on every rank."
)
NO_RANK_0 = (
    "init(comm={only}) must name rank 0, which hosts the rendezvous of ranks that MPI has not started. Start them with "
    "mpirun, or let all ranks call init(process_sets=[...])."
)
_WITHOUT_MPI = (
    "set HVD_BOOTSTRAP=tcp, and HOROVOD_CONTROLLER_ADDR and HOROVOD_CONTROLLER_PORT to a free port of rank 0's host."
)


@dataclass(frozen=True)
class Peers:
    """Rank and size of this process, and its exchange with the other ranks until the links are up."""

    rank: int
    size: int
    source: str  # of rank and size, for messages
    exchange: Exchange
    close: Callable[[], None] = lambda: None
    by_mpi: bool = False  # MPI connects the ranks, and carries the exchange


@dataclass(frozen=True)
class Placement:
    """Rank of a process, and where the ranks rendezvous."""

    rank: int
    size: int
    host: str
    port: int


NO_LAUNCHER = "no launcher"
"""Source of the peers of a process that is not one of several ranks."""


def find(
    comm: Any = None, env: Env | None = None, round_number: int = 1, pidfds: Mapping[int, int] | None = None
) -> Peers:
    """Return the peers from the first source that is set.

    ``pidfds``: process handles of ranks known from an earlier rendezvous, so that no rank waits for one that has ended.

    Raises
    ------
    ConfigError
        A value cannot be used; the message names the variable and the remedy.
    """
    env = torchrun.without_ours(os.environ if env is None else env)
    _pidfds.set({} if pidfds is None else pidfds)
    if comm is not None and not isinstance(comm, (list, tuple)):
        return _from_comm(comm, env)
    only = [int(rank) for rank in comm] if comm else None
    forced = env.get("HVD_BOOTSTRAP", "")
    if forced not in {"", "mpi", "tcp", "none"}:
        raise ConfigError(f"HVD_BOOTSTRAP={forced!r} cannot be used: it must be mpi, tcp or none.")
    horovod = "HOROVOD_RANK" in env or "HOROVOD_SIZE" in env
    torch = "RANK" in env and "WORLD_SIZE" in env
    launcher = next((names for names in _MPI_LAUNCHERS if names[0] in env), None)
    by_slurm = is_slurm_task(env) and (launcher is None or launcher[0] == "PMI_RANK")
    mpi = launcher is not None and forced != "tcp" and not by_slurm
    sources: tuple[tuple[bool, Callable[[], Peers]], ...] = (
        (forced == "none", lambda: alone(only)),
        (forced == "mpi", lambda: _from_world(env, only)),
        (horovod, lambda: _from_horovod(env, round_number, only)),
        ("TORCHELASTIC_RUN_ID" in env, lambda: _from_torch(env, round_number, only)),
        (mpi, lambda: _from_world(env, only)),
        (torch, lambda: _from_torch(env, round_number, only)),
        (by_slurm, lambda: _from_slurm(env, only)),
        (launcher is not None, lambda: _from_variables(env, *(launcher or ("", "")), only)),
        (forced == "tcp", _no_tcp),
    )
    return next((find_peers for is_set, find_peers in sources if is_set), lambda: alone(only))()


def is_launched(env: Env) -> bool:
    """Return whether Horovod's variables or MPI assign this process a rank; torch's variables do not count."""
    return "HOROVOD_RANK" in env or any(rank_name in env for rank_name, _ in _MPI_LAUNCHERS)


def _no_tcp() -> Peers:
    raise ConfigError("HVD_BOOTSTRAP=tcp needs HOROVOD_RANK and HOROVOD_SIZE, or RANK and WORLD_SIZE: none is set.")


def alone(only: list[int] | None = None, source: str = NO_LAUNCHER) -> Peers:
    """Return the peers of a job of size 1."""
    _check_group(only, 0, 1)
    return Peers(0, 1, source, lambda payload: [payload])


def _check_group(only: list[int] | None, rank: int, size: int) -> None:
    if only is None:
        return
    if len(set(only)) != len(only) or not set(only) <= set(range(size)):
        raise ConfigError(f"init(comm={only}) must name different ranks between 0 and {size - 1}.")
    if rank not in only:
        raise ConfigError(f"init(comm={only}) was called by rank {rank}, which it does not name.")


# MPI


def _from_comm(comm: Any, env: Env) -> Peers:
    if not hasattr(comm, "Allgather"):
        raise ConfigError(f"init(comm=...) takes an mpi4py communicator or a list of ranks, not {type(comm).__name__}.")
    size_name = next((name for name in _SIZES if env.get(name, "1") != "1"), None)
    if size_name is not None and _mpi().COMM_WORLD.Get_size() == 1:
        raise ConfigError(
            f"init(comm=...) was given a communicator of an MPI that knows 1 rank, but {size_name}={env[size_name]}: "
            "MPI did not start these ranks. Start them with mpirun (hvdrun --mpi), or leave comm out."
        )
    return Peers(comm.Get_rank(), comm.Get_size(), "init(comm)", _mpi_exchange(comm, env), by_mpi=True)


def _from_world(env: Env, only: list[int] | None) -> Peers:
    world = _mpi().COMM_WORLD
    rank, size = world.Get_rank(), world.Get_size()
    for rank_name, size_name in _MPI_LAUNCHERS:
        if rank_name in env and env.get(size_name, str(size)) != str(size):
            raise ConfigError(
                f"the launcher says {size_name}={env[size_name]}, but mpi4py's MPI sees {plural(size, 'rank')}: "
                f"launcher and library are different MPIs. Start with {sys.prefix}/bin/mpiexec, or {_WITHOUT_MPI}"
            )
    _check_group(only, rank, size)
    if only is not None:
        return _from_group(world, only, env)
    return Peers(rank, size, "MPI", _mpi_exchange(world, env), by_mpi=True)


def _from_group(world: Any, ranks: list[int], env: Env) -> Peers:
    """Return the peers of Horovod's other form of ``comm``: some ranks of MPI_COMM_WORLD, which alone call this."""
    group = world.Get_group().Incl(ranks)
    comm = world.Create_group(group)
    group.Free()
    return Peers(comm.Get_rank(), comm.Get_size(), "init(comm)", _mpi_exchange(comm, env), comm.Free, by_mpi=True)


def _mpi() -> Any:
    try:
        from mpi4py import MPI  # noqa: PLC0415 - importing it starts MPI, as a rule
    except ImportError as error:
        raise ConfigError(
            f"an MPI launcher started this process, but mpi4py cannot be loaded: {error}. Install it, or {_WITHOUT_MPI}"
        ) from error
    if MPI.Is_finalized():
        raise ConfigError(f"this process has finalised MPI already: call init() before that, or {_WITHOUT_MPI}")
    if not MPI.Is_initialized():  # mpi4py.rc.initialize is False: we start MPI, so we finalise it
        MPI.Init_thread(MPI.THREAD_MULTIPLE)
        atexit.register(_finalize, MPI)
    _watch_for_uncaught()
    return MPI


def _finalize(MPI: Any) -> None:  # noqa: N803 - mpi4py's name for its module
    if not MPI.Is_finalized():
        MPI.Finalize()


_watching = False
_uncaught = False


def _watch_for_uncaught() -> None:
    """End this rank without MPI_Finalize if an exception ends its program. Call it when MPI has started; idempotent.

    mpi4py calls MPI_Finalize at the end of the process, and that waits for all ranks: those that continue, or wait for
    this one, would delay its exit, which tells the launcher to stop them.
    """
    global _watching
    if _watching or hasattr(sys, "ps1"):  # at a prompt an exception ends nothing
        return
    _watching, before = True, sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        global _uncaught  # noqa: PLW0603 - of the process, as the hook
        _uncaught = isinstance(error, Exception)  # the interrupt key ends all ranks anyway
        before(kind, error, trace)

    sys.excepthook = hook
    atexit.register(_exit_if_uncaught)


def _exit_if_uncaught() -> None:
    if not _uncaught:
        return
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    os._exit(_FAILED)


def _mpi_exchange(comm: Any, env: Env) -> Exchange:
    """Return an exchange of plain bytes in buffers: nothing is pickled."""
    patience = lookup.start_timeout(env, _MPI_PATIENCE_S)

    def exchange(payload: bytes) -> list[bytes]:
        lengths = memoryview(bytearray(8 * comm.Get_size())).cast("q")
        length = memoryview(len(payload).to_bytes(8, sys.byteorder)).cast("q")
        _complete(comm, comm.Iallgather(length, lengths), patience)
        counts = lengths.tolist()
        everything = bytearray(sum(counts))
        _complete(comm, comm.Iallgatherv(payload, [everything, counts, None, _mpi().BYTE]), patience)
        ends = [sum(counts[: i + 1]) for i in range(len(counts))]
        return [bytes(everything[end - count : end]) for end, count in zip(ends, counts, strict=True)]

    return exchange


def _complete(comm: Any, request: Any, seconds: float) -> None:
    """Poll a request until a deadline: MPI's own wait has none, and returns only after the last rank's call."""
    deadline = time.monotonic() + seconds
    _unfinished.append(request)
    while not request.Test():
        if time.monotonic() > deadline:
            host = socket.gethostname()
            message = LATE_OVER_MPI.format(size=comm.Get_size(), seconds=seconds, rank=comm.Get_rank(), host=host)
            raise HvdTimeout(message)
        time.sleep(_MPI_POLL_S)
    _unfinished.remove(request)


# TCP


def _from_horovod(env: Env, round_number: int, only: list[int] | None) -> Peers:
    has_controller = "HOROVOD_CONTROLLER_ADDR" in env or "HOROVOD_CONTROLLER_PORT" in env
    if not has_controller:
        _refuse_elastic_launcher(env)
    rank, size = _rank_and_size(env, "HOROVOD_RANK", "HOROVOD_SIZE")
    if has_controller or size == 1 or not env.get(_STORE[0]):
        return _from_variables(env, "HOROVOD_RANK", "HOROVOD_SIZE", only)
    _check_members(only, rank, size)
    store = _HttpStore(*_address(env, *_STORE), lookup.start_timeout(env))
    key = "-".join(map(str, (round_number, *(only or ()))))
    with contextlib.ExitStack() as until_joined:
        if rank == 0:
            reserved = until_joined.enter_context(ports.bound(_own_address(store, env, size)))
            store.put(key, "{} {}".format(*reserved.getsockname()))
        host, port = store.get(key)
        return _rendezvous(Placement(rank, size, host, port), "HOROVOD_RANK", env, only)


def _refuse_elastic_launcher(env: Env) -> None:
    """Raise ConfigError if the launcher will add and remove ranks, which only its own elastic workers can follow."""
    if env.get(_STORE[0]) and lookup.value("HOROVOD_ELASTIC", env) == "1":
        place = f"{env[_STORE[0]]}:{env.get(_STORE[1], '')}"
        raise ConfigError(
            f"Horovod's elastic launcher started this rank (HOROVOD_ELASTIC=1, and its store at {place}): it changes "
            "the number of ranks while they run, and ranks of hvd_kernel keep theirs. Start the ranks with "
            "`hvdrun -np N python ...`, or by horovodrun without its elastic flags."
        )


def _own_address(store: _HttpStore, env: Env, size: int) -> str:
    """Return the address at which the other ranks reach this one: the loopback address if all are on this host."""
    return "127.0.0.1" if env.get("HOROVOD_LOCAL_SIZE") == str(size) else store.seen_from()


@dataclass(frozen=True)
class _HttpStore:
    """Key-value store of Horovod's launcher: PUT and GET of /scope/key; 404 until the key is set."""

    host: str
    port: int
    patience_s: float

    def seen_from(self) -> str:
        """Return the address of this host from which the store is reached.

        Raises
        ------
        ConfigError
            The store cannot be reached.
        """
        try:
            with socket.create_connection((self.host, self.port), self.patience_s) as connection:
                return str(connection.getsockname()[0])
        except OSError as error:
            raise ConfigError(f"{self} cannot be reached: {error}. Is the launcher of these ranks alive?") from None

    def put(self, key: str, text: str) -> None:
        """Store a text under a key."""
        self._insist("PUT", key, text)

    def get(self, key: str) -> tuple[str, int]:
        """Wait for an address and return it.

        Raises
        ------
        ConfigError
            The value is not an address.
        """
        host, _, port = (text := self._insist("GET", key)).partition(" ")
        if not host or len(text) > _LONGEST_ADDRESS or not port.isdecimal():
            raise ConfigError(f"{self} has {text[:_LONGEST_ADDRESS]!r} where rank 0's address is wanted.")
        return host, int(port)

    def _insist(self, method: str, key: str, text: str = "") -> str:
        deadline = time.monotonic() + self.patience_s
        while True:
            status, answer = self._request(method, key, text)
            if status == 200:  # noqa: PLR2004 - HTTP's OK
                return answer
            if time.monotonic() > deadline:
                raise HvdTimeout(
                    f"{self} had no address of rank 0 within {self.patience_s:g} s; its last answer was {answer}. "
                    "Check whether rank 0 calls init(). HOROVOD_GLOO_TIMEOUT_SECONDS sets the time."
                )
            time.sleep(_STORE_POLL_S)

    def _request(self, method: str, key: str, text: str) -> tuple[int, str]:
        from http.client import HTTPConnection, HTTPException  # noqa: PLC0415 - only under such a launcher

        connection = HTTPConnection(self.host, self.port, timeout=self.patience_s)
        try:
            connection.request(method, f"/hvd_kernel/{key}", text or None)
            answer = connection.getresponse()
            body = answer.read(_LONGEST_ADDRESS + 1).decode(errors="replace")
        except (OSError, HTTPException) as error:
            return 0, str(error)
        finally:
            connection.close()
        return answer.status, body if answer.status == 200 else f"{answer.status} {answer.reason}"  # noqa: PLR2004

    def __str__(self) -> str:
        return f"the store at {self.host}:{self.port} ({' and '.join(_STORE)})"


def _from_variables(env: Env, rank_name: str, size_name: str, only: list[int] | None) -> Peers:
    rank, size = _rank_and_size(env, rank_name, size_name)
    if size == 1:
        return alone(only, size_name)
    address = _rendezvous_address(env)
    if address is None:
        raise ConfigError(NO_ADDRESS.format(size_name=size_name, size=size))
    return _rendezvous(Placement(rank, size, *address), rank_name, env, only)


def _from_slurm(env: Env, only: list[int] | None) -> Peers:
    placement = slurm_placement(env)
    if placement.size == 1:
        return alone(only, "SLURM_STEP_NUM_TASKS")
    host, port = _rendezvous_address(env) or (placement.host, placement.port)
    return _rendezvous(Placement(placement.rank, placement.size, host, port), "SLURM_PROCID", env, only)


def is_slurm_task(env: Env) -> bool:
    """Return whether srun itself started this process.

    A batch script has no step. A process that another launcher starts inside a step inherits the step's variables, but
    its PMI variables differ.
    """
    if not all(env.get(name) for name in _SLURM_TASK):
        return False
    rank_and_size = (env["SLURM_PROCID"], env["SLURM_STEP_NUM_TASKS"])
    return "PMI_RANK" not in env or (env["PMI_RANK"], env.get("PMI_SIZE")) == rank_and_size


def slurm_placement(env: Env) -> Placement:
    """Return the placement of this task of a Slurm step. Task 0 is on the step's first node.

    The port is derived from job and step, so that all tasks know it and two concurrent steps use different ones.
    """
    on_one_node = env.get("SLURM_STEP_NUM_NODES") == "1"
    number = int(env.get("SLURM_JOB_ID", "0")) + 61 * int(env["SLURM_STEP_ID"])
    return Placement(
        rank=int(env["SLURM_PROCID"]),
        size=int(env["SLURM_STEP_NUM_TASKS"]),
        host="127.0.0.1" if on_one_node else first_node(env["SLURM_STEP_NODELIST"]),
        port=_SLURM_PORTS[number % len(_SLURM_PORTS)],
    )


def first_node(names: str) -> str:
    """Return the first of ``a[01-03,7],b2``: a01."""
    first = re.split(r",(?![^\[]*\])", names)[0]
    return re.sub(r"\[(\w+)[^\]]*\]", r"\1", first)


def _from_torch(env: Env, round_number: int, only: list[int] | None) -> Peers:
    rank, size = _rank_and_size(env, "RANK", "WORLD_SIZE")
    if size == 1:
        return alone(only, "WORLD_SIZE")
    address = _address(env, "MASTER_ADDR", "MASTER_PORT")
    if env.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return _rendezvous(Placement(rank, size, *address), "RANK", env, only)
    _check_group(only, rank, size)
    rendezvous = f"hvd_kernel/{env.get('TORCHELASTIC_RESTART_COUNT', '0')}/{round_number}"
    if only is not None:
        rank, size, rendezvous = only.index(rank), len(only), f"{rendezvous}/{only}"
    return Peers(rank, size, "torchrun", _store_exchange(rank, size, address, rendezvous, env))


def _rendezvous(placement: Placement, source: str, env: Env, only: list[int] | None) -> Peers:
    """Rendezvous at rank 0 with all ranks, or with those in ``only``, whose order numbers them."""
    if only is None:
        return _over_tcp(placement.rank, placement.size, (placement.host, placement.port), source, env)
    _check_members(only, placement.rank, placement.size)
    _pidfds.set({})  # keyed by ranks of the whole job, which have other numbers here
    members = sorted(only)
    joined = _over_tcp(members.index(placement.rank), len(members), (placement.host, placement.port), source, env)
    order = [members.index(rank) for rank in only]

    def exchange(payload: bytes) -> list[bytes]:
        payloads = joined.exchange(payload)
        return [payloads[index] for index in order]

    return Peers(only.index(placement.rank), len(only), "init(comm)", exchange, joined.close)


def _check_members(only: list[int] | None, rank: int, size: int) -> None:
    _check_group(only, rank, size)
    if only is not None and 0 not in only:
        raise ConfigError(NO_RANK_0.format(only=only))


def _rendezvous_address(env: Env) -> tuple[str, int] | None:
    """Return the rendezvous address in the environment."""
    for prefix in ("HOROVOD_CONTROLLER", "MASTER"):
        if f"{prefix}_ADDR" in env or f"{prefix}_PORT" in env:
            return _address(env, f"{prefix}_ADDR", f"{prefix}_PORT")
    return None


def _over_tcp(rank: int, size: int, address: tuple[str, int], source: str, env: Env) -> Peers:
    from hvd_kernel._native import TcpBootstrap  # noqa: PLC0415 - size 1 and tests of this file need no extension

    secret = lookup.engine_options(env).get("secret", "")
    bootstrap = TcpBootstrap(rank, size, *address, lookup.start_timeout(env), secret, _pidfds.get())
    return Peers(rank, size, source, bootstrap, bootstrap.close)


def _store_exchange(rank: int, size: int, address: tuple[str, int], rendezvous: str, env: Env) -> Exchange:
    """Return an exchange through the store of torchrun's agent, which owns MASTER_PORT; each call has its own keys."""
    store = registry.adapter("torch").store(*address, lookup.start_timeout(env))
    calls = iter(range(sys.maxsize))

    def exchange(payload: bytes) -> list[bytes]:
        call = next(calls)
        store.set(f"{rendezvous}/{call}/{rank}", payload)
        return [store.get(f"{rendezvous}/{call}/{peer}") for peer in range(size)]

    return exchange


def _rank_and_size(env: Env, rank_name: str, size_name: str) -> tuple[int, int]:
    rank, size = _whole(env, rank_name, 0), _whole(env, size_name, 1)
    if rank >= size:
        raise ConfigError(f"{rank_name}={rank} must be below {size_name}={size}: ranks count from 0.")
    return rank, size


def _address(env: Env, host_name: str, port_name: str) -> tuple[str, int]:
    host = env.get(host_name, "")
    if not host:
        raise ConfigError(f"{host_name} is not set: it is the address of rank 0, for the rendezvous of the ranks.")
    return host, _whole(env, port_name, 1, 65535)


def _whole(env: Env, name: str, low: int, high: int = 2**31 - 1) -> int:
    text = env.get(name, "").strip()
    if not text.isdecimal() or not low <= int(text) <= high:
        setting = f"{name}={env[name]!r}" if name in env else f"{name}, which is not set,"
        raise ConfigError(f"{setting} must be a whole number from {low} to {high}.")
    return int(text)


# The first messages of ranks; the core compares settings right afterwards.


def check_versions(peers: Peers) -> None:
    """Exchange versions with the other ranks, and check that all are the same.

    The form of this message may never change, or ranks of different versions could not detect the difference.

    Raises
    ------
    ConfigError
        The versions differ. Every rank raises the same message, with each version and its ranks.
    """
    version_cards = peers.exchange(_CARD + hvd_kernel.__version__.encode())
    ranks_of: dict[str, list[int]] = {}
    for rank, card in enumerate(version_cards):
        ranks_of.setdefault(_version(card), []).append(rank)
    if len(ranks_of) > 1:
        versions = ", ".join(f"{version} on {rank_list(ranks)}" for version, ranks in ranks_of.items())
        raise ConfigError(f"the ranks run different versions of hvd_kernel: {versions}; install the same one for all.")


def _version(card: bytes) -> str:
    if not card.startswith(_CARD):
        return "an unknown one"
    return card.removeprefix(_CARD).decode(errors="replace")[:_MOST_CHARS]


def exchange_cards(peers: Peers, also: network.Card | None = None) -> list[network.Card]:
    """Exchange cards that describe each rank's host, with the entries of ``also``; return the cards of all ranks."""
    here = {"machine": network.machine(), "name": socket.gethostname(), "networks": network.networks()}
    return [json.loads(data) for data in peers.exchange(json.dumps({**here, **(also or {})}).encode())]
