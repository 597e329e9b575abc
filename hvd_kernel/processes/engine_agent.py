"""Agent of one rank that a cluster engine (Spark, Ray) has started: ``python -P -m hvd_kernel.processes.engine_agent``.

    launcher <--socket-- agent --PDEATHSIG--> rank
                           ^--stdin, pidfd-- the engine's own process: an executor's Python worker, an actor

The engine's process calls ``hold``. The launcher's address and the secret of the run arrive on stdin: no command line
and no environment contains them. The agent exits, with everything that its rank has forked, when the launcher
disconnects, when the engine's process closes stdin, and when that process is gone.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from typing import Any

from hvd_kernel.errors import ClusterError
from hvd_kernel.processes.agent import Agent, card
from hvd_kernel.processes.channel.authentication import controller_key
from hvd_kernel.processes.channel.control_channel import ControlChannel, pack, read_packed, unpack
from hvd_kernel.processes.channel.messages import CallBack, Input, Introduce
from hvd_kernel.processes.lifetime import adopt_orphans
from hvd_kernel.processes.mpi_agent import connect
from hvd_kernel.processes.ports import bound

_END_S = 5.0  # for the agent to stop its rank
_TAIL = 2000  # characters of its stderr that an error contains


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
    command = [sys.executable, "-P", "-m", "hvd_kernel.processes.engine_agent"]
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


def main() -> None:
    """Serve one launcher."""
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


if __name__ == "__main__":
    main()
