"""Agent of one rank that another launcher has started: ``python -P -m hvd_kernel.processes.rank_agent mpi|engine``.

It connects to the launcher (launch/agents.py), and both prove that they hold the secret of the run. MPI passes address
and secret in the environment. A cluster engine (Spark, Ray) has a process of its own, which calls ``hold``:

    launcher <--socket-- agent --PDEATHSIG--> rank
                           ^--stdin, pidfd-- the engine's own process: an executor's Python worker, an actor

There address and secret arrive on stdin: no command line and no environment contains them. The agent exits, with
everything that its rank has forked, when the launcher disconnects, when the engine's process closes stdin, and when
that process is gone.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from typing import Any

from hvd_kernel.errors import ClusterError
from hvd_kernel.processes.agent import Agent, card
from hvd_kernel.processes.channel import authentication
from hvd_kernel.processes.channel.authentication import ADDRESS_VARIABLE, controller_key
from hvd_kernel.processes.channel.control_channel import ControlChannel, pack, read_packed, unpack
from hvd_kernel.processes.channel.messages import CallBack, Input, Introduce
from hvd_kernel.processes.lifetime import adopt_orphans
from hvd_kernel.processes.ports import bound

MPI, ENGINE = "mpi", "engine"
"""What has started the agent: the argument of the program."""

_END_S = 5.0  # for the agent to stop its rank
_TAIL = 2000  # characters of its stderr that an error contains
_CALL_S = 10.0
# Open MPI, MPICH and Intel MPI, jsrun.
_RANK = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "JSM_NAMESPACE_RANK")
_BESIDE = ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "JSM_NAMESPACE_LOCAL_SIZE")


def connect(address: str, secret: str) -> socket.socket:
    """Connect to the launcher, at the first of its addresses where it proves that it knows the secret.

    Raises
    ------
    ConnectionError
        If it does at none.
    """
    names, _, port = address.rpartition(":")
    reason: object = "it has no address"
    for where in [(name, int(port)) for name in names.split(",")] if port.isdecimal() else [f"\0{address[1:]}"]:
        connection = socket.socket(socket.AF_INET if isinstance(where, tuple) else socket.AF_UNIX)
        connection.settimeout(_CALL_S)
        try:
            connection.connect(where)
            if authentication.prove(connection, secret):
                connection.settimeout(None)
                return connection
            reason = "the process that answers there does not have the secret of this run"
        except OSError as error:
            reason = error
        connection.close()
    raise ConnectionError(
        f"the launcher of this rank cannot be reached at {address}: {reason}. --network-interfaces chooses its address."
    )


# MPI


def number(names: tuple[str, ...], env: Mapping[str, str]) -> int | None:
    """Return the value of the first of these variables that is set."""
    return next((int(env[name]) for name in names if name in env), None)


def _serve_mpi() -> None:
    """Serve the launcher of a rank that MPI has started."""
    adopt_orphans()
    rank, secret = number(_RANK, os.environ), os.environ["HVD_SECRET_KEY"]
    connection = connect(os.environ.pop(ADDRESS_VARIABLE), secret)
    port = bound() if rank == 0 else None  # for the ranks' rendezvous, if MPI itself provides none
    place = {"rank": rank, "beside": number(_BESIDE, os.environ) or 1}
    channel = ControlChannel(connection, connection, is_agent=True)
    agent = Agent(channel, card(0 if port is None else port.getsockname()[1]) | place, stays=True)
    agent.dismiss_on_signals()
    agent.serve()


# A cluster engine


def hold(address: str, secret: str, extra: Mapping[str, Any], env: Mapping[str, str]) -> None:
    """Start an agent and wait until it has exited. An exception during the wait stops the agent.

    Parameters
    ----------
    address, secret
        The launcher's address, and the secret that both prove to know.
    extra
        Additional fields of the agent's hello: ``rank``, the number of this process of the engine.
    env
        The environment of the agent and of its rank.

    Raises
    ------
    ClusterError
        If the agent fails; contains its stderr.
    """
    command = [sys.executable, "-P", "-m", "hvd_kernel.processes.rank_agent", ENGINE]
    agent = subprocess.Popen(  # noqa: S603 - our own module
        command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, env=env, start_new_session=True
    )
    assert agent.stdin is not None
    assert agent.stderr is not None
    try:
        agent.stdin.write(pack(CallBack(address, secret, dict(extra))))
        agent.stdin.flush()
        errors = agent.stderr.read().decode(errors="replace")  # until the agent exits: ranks have their own pipes
        status = agent.wait()
    finally:
        agent.stdin.close()
        try:
            agent.wait(_END_S)
        except subprocess.TimeoutExpired:
            agent.kill()
            agent.wait()
        agent.stderr.close()
    if status:
        raise ClusterError(f"the agent of this rank has ended with status {status}: {errors[-_TAIL:].strip()}")


def _serve_engine() -> None:
    """Serve the launcher of a rank that an engine has started."""
    signal.pthread_sigmask(signal.SIG_SETMASK, [])  # engines block signals that ranks need
    adopt_orphans()
    data = read_packed(sys.stdin.buffer)
    if not data:
        return  # the engine's process is gone already
    request = unpack(data, CallBack)
    connection = connect(request.address, request.secret)
    with bound() as port:
        channel = ControlChannel(connection, connection, is_agent=True)
        here = {"python": sys.executable, "cwd": os.getcwd()}  # noqa: PTH109 - a string for the wire
        agent = Agent(channel, card(port.getsockname()[1]) | here | request.card, stays=True)
        agent.handlers[Introduce] = partial(_introduce, agent, controller_key(request.secret))
        agent.loop.add_reader(sys.stdin.fileno(), agent.loop.stop)
        agent.dismiss_on_signals()
        agent.serve()


def _introduce(agent: Agent, key: str, message: Introduce) -> None:
    """Forward the number of a notebook's rank to its stdin, with the key."""
    with_key = Introduce(message.rank, message.size, message.connection | {"key": key})
    agent.handlers[Input](Input(message.rank, pack(with_key)))


def main(starter: str) -> None:
    """Serve one launcher."""
    (_serve_mpi if starter == MPI else _serve_engine)()


if __name__ == "__main__":
    main(sys.argv[1])
