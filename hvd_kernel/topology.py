"""How a process finds out which rank it is and how it reaches the others before any link exists.

Words.
  rank, size  this process's number, and how many there are
  exchange    collective call: bytes of this rank in, bytes of every rank out, in rank order
  round       which ``init()`` of this process this is, from 1: ranks initialise equally often, so it names a meeting

Order in which the sources are asked. The first that speaks wins, also where a later one says something else:
  1. ``init(comm=...)``                      what the caller says
  2. ``HVD_BOOTSTRAP=mpi|tcp|none``          the cluster's (or the user's) decision; ``none`` is size 1
  3. ``HOROVOD_RANK``, ``HOROVOD_SIZE``      given to each process by a launcher that means Horovod
  4. torchrun (``TORCHELASTIC_RUN_ID``)      the inner launcher where MPI starts one torchrun per node
  5. an MPI launcher's variables             ``OMPI_COMM_WORLD_RANK``, ``PMI_RANK``
  6. ``RANK``, ``WORLD_SIZE``                torch's convention; may describe a whole pod, hence after MPI
  7. nothing                                 size 1
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hvd_kernel import config
from hvd_kernel.errors import ConfigError

Exchange = Callable[[bytes], list[bytes]]
Env = Mapping[str, str]

_MPI_LAUNCHERS = (("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE"))


@dataclass(frozen=True)
class Peers:
    """What ``init()`` needs: who this rank is, and how it talks to the others until the links are up."""

    rank: int
    size: int
    source: str  # who said so, for messages
    exchange: Exchange
    close: Callable[[], None] = lambda: None


def find(comm: Any = None, env: Env | None = None, round_number: int = 1) -> Peers:
    """Ask the sources in order.

    Raises
    ------
    ConfigError
        What was found cannot be used; the message names the variable and the remedy.
    """
    env = os.environ if env is None else env
    if comm is not None:
        return _from_comm(comm)
    forced = env.get("HVD_BOOTSTRAP", "")
    if forced not in {"", "mpi", "tcp", "none"}:
        raise ConfigError(f"HVD_BOOTSTRAP={forced!r} cannot be used: it must be mpi, tcp or none.")
    horovod = "HOROVOD_RANK" in env or "HOROVOD_SIZE" in env
    torch = "RANK" in env and "WORLD_SIZE" in env
    mpi = forced != "tcp" and any(rank in env for rank, _ in _MPI_LAUNCHERS)
    sources: tuple[tuple[bool, Callable[[], Peers]], ...] = (
        (forced == "none", alone),
        (forced == "mpi", lambda: _from_world(env)),
        (horovod, lambda: _from_horovod(env)),
        ("TORCHELASTIC_RUN_ID" in env, lambda: _from_torch(env, round_number)),
        (mpi, lambda: _from_world(env)),
        (torch, lambda: _from_torch(env, round_number)),
        (forced == "tcp", _no_tcp),
    )
    return next((ask for speaks, ask in sources if speaks), alone)()


def _no_tcp() -> Peers:
    raise ConfigError("HVD_BOOTSTRAP=tcp needs HOROVOD_RANK and HOROVOD_SIZE, or RANK and WORLD_SIZE: none is set.")


def alone() -> Peers:
    """Size 1: nobody to talk to."""
    return Peers(0, 1, "no launcher", lambda mine: [mine])


# MPI


def _from_comm(comm: Any) -> Peers:
    if isinstance(comm, (list, tuple)):
        return _from_ranks([int(r) for r in comm])
    if not hasattr(comm, "Allgather"):
        raise ConfigError(f"init(comm=...) takes an mpi4py communicator or a list of ranks, not {type(comm).__name__}.")
    return Peers(comm.Get_rank(), comm.Get_size(), "init(comm)", _mpi_exchange(comm))


def _from_ranks(ranks: list[int]) -> Peers:
    """Horovod's other form of ``comm``: some ranks of MPI_COMM_WORLD, which alone call this."""
    world = _mpi().COMM_WORLD
    if not ranks or len(set(ranks)) != len(ranks) or not set(ranks) <= set(range(world.Get_size())):
        raise ConfigError(f"init(comm={ranks}) must name different ranks between 0 and {world.Get_size() - 1}.")
    if world.Get_rank() not in ranks:
        raise ConfigError(f"init(comm={ranks}) was called by rank {world.Get_rank()}, which it does not name.")
    group = world.Get_group().Incl(ranks)
    comm = world.Create_group(group)
    group.Free()
    return Peers(comm.Get_rank(), comm.Get_size(), "init(comm)", _mpi_exchange(comm), comm.Free)


def _from_world(env: Env) -> Peers:
    world = _mpi().COMM_WORLD
    rank, size = world.Get_rank(), world.Get_size()
    for rank_name, size_name in _MPI_LAUNCHERS:
        if rank_name in env and env.get(size_name, str(size)) != str(size):
            raise ConfigError(
                f"the launcher says {size_name}={env[size_name]}, but mpi4py's MPI sees {size} rank(s): launcher and "
                f"library are different MPIs. Start with {sys.prefix}/bin/mpiexec, or set HVD_BOOTSTRAP=tcp."
            )
    return Peers(rank, size, "MPI", _mpi_exchange(world))


def _mpi() -> Any:
    try:
        from mpi4py import MPI  # noqa: PLC0415 - importing it starts MPI
    except ImportError as error:
        raise ConfigError(f"an MPI launcher started this process, but mpi4py cannot be loaded: {error}") from error
    return MPI


def _mpi_exchange(comm: Any) -> Exchange:
    """Plain bytes in buffers: nothing is pickled."""

    def exchange(mine: bytes) -> list[bytes]:
        lengths = memoryview(bytearray(8 * comm.Get_size())).cast("q")
        comm.Allgather(memoryview(len(mine).to_bytes(8, sys.byteorder)).cast("q"), lengths)
        counts = lengths.tolist()
        everything = bytearray(sum(counts))
        comm.Allgatherv(mine, [everything, counts, None, _mpi().BYTE])
        ends = [sum(counts[: i + 1]) for i in range(len(counts))]
        return [bytes(everything[end - count : end]) for end, count in zip(ends, counts, strict=True)]

    return exchange


# TCP


def _from_horovod(env: Env) -> Peers:
    rank, size = _rank_and_size(env, "HOROVOD_RANK", "HOROVOD_SIZE")
    if size == 1:
        return Peers(0, 1, "HOROVOD_SIZE", alone().exchange)
    if "HOROVOD_CONTROLLER_ADDR" in env or "HOROVOD_CONTROLLER_PORT" in env:
        address = _address(env, "HOROVOD_CONTROLLER_ADDR", "HOROVOD_CONTROLLER_PORT")
    elif "MASTER_ADDR" in env or "MASTER_PORT" in env:
        address = _address(env, "MASTER_ADDR", "MASTER_PORT")
    else:
        raise ConfigError(
            f"HOROVOD_SIZE={size} names several ranks, but not where they meet: set HOROVOD_CONTROLLER_ADDR and "
            "HOROVOD_CONTROLLER_PORT to a free port of rank 0's host, the same on every rank."
        )
    return _over_tcp(rank, size, address, "HOROVOD_RANK", env)


def _from_torch(env: Env, round_number: int) -> Peers:
    rank, size = _rank_and_size(env, "RANK", "WORLD_SIZE")
    if size == 1:
        return Peers(0, 1, "WORLD_SIZE", alone().exchange)
    address = _address(env, "MASTER_ADDR", "MASTER_PORT")
    if env.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return _over_tcp(rank, size, address, "RANK", env)
    meeting = f"hvd_kernel/{env.get('TORCHELASTIC_RESTART_COUNT', '0')}/{round_number}"
    return Peers(rank, size, "torchrun", _store_exchange(rank, size, address, meeting, env))


def _over_tcp(rank: int, size: int, address: tuple[str, int], source: str, env: Env) -> Peers:
    from hvd_kernel._native import TcpBootstrap  # noqa: PLC0415 - size 1 and tests of this file need no extension

    secret = config.engine_options(env).get("secret", "")
    bootstrap = TcpBootstrap(rank, size, *address, config.start_timeout(env), secret)
    return Peers(rank, size, source, bootstrap, bootstrap.close)


def _store_exchange(rank: int, size: int, address: tuple[str, int], meeting: str, env: Env) -> Exchange:
    """Through the store of torchrun's agent, which owns MASTER_PORT; every call has keys of its own."""
    from datetime import timedelta  # noqa: PLC0415 - as torch, only under torchrun

    import torch.distributed  # noqa: PLC0415 - only under torchrun

    patience = timedelta(seconds=config.start_timeout(env))
    distributed: Any = torch.distributed  # its stubs hide the store
    store = distributed.TCPStore(address[0], address[1], is_master=False, timeout=patience)
    calls = iter(range(sys.maxsize))

    def exchange(mine: bytes) -> list[bytes]:
        call = next(calls)
        store.set(f"{meeting}/{call}/{rank}", mine)
        return [store.get(f"{meeting}/{call}/{peer}") for peer in range(size)]

    return exchange


def _rank_and_size(env: Env, rank_name: str, size_name: str) -> tuple[int, int]:
    rank, size = _whole(env, rank_name, 0), _whole(env, size_name, 1)
    if rank >= size:
        raise ConfigError(f"{rank_name}={rank} must be below {size_name}={size}: ranks count from 0.")
    return rank, size


def _address(env: Env, host_name: str, port_name: str) -> tuple[str, int]:
    host = env.get(host_name, "")
    if not host:
        raise ConfigError(f"{host_name} is not set: it is the address of rank 0, where the ranks meet.")
    return host, _whole(env, port_name, 1, 65535)


def _whole(env: Env, name: str, low: int, high: int = 2**31 - 1) -> int:
    text = env.get(name, "").strip()
    if not text.isdecimal() or not low <= int(text) <= high:
        said = f"{name}={env[name]!r}" if name in env else f"{name}, which is not set,"
        raise ConfigError(f"{said} must be a whole number from {low} to {high}.")
    return int(text)
