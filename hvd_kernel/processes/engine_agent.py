"""Agent of one rank that a cluster engine (Spark, Ray) has started: ``python -P -m hvd_kernel.processes.engine_agent``.

    launcher <--socket-- agent --PDEATHSIG--> rank
                           ^--stdin, pidfd-- the engine's own process: an executor's Python worker, an actor

That process calls ``hold``. Where the launcher is, and the secret of the run, come on stdin: no command line and no
environment holds them. The agent ends, and with it all that its rank has forked, when the launcher hangs up, when the
engine's process lets go of stdin, and when that process is gone.
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

_END_S = 5.0  # that it may take to end what it holds
_SAID = 2000  # characters of its own words that are kept


def hold(address: str, secret: str, told: Mapping[str, Any], env: Mapping[str, str]) -> None:
    """Start an agent and wait for its end. Whatever ends this wait ends the agent.

    Parameters
    ----------
    address, secret
        Where the launcher is, and what both prove to have.
    told
        What the agent's hello says besides the usual: ``rank``, the number that the engine has given this process.
    env
        The environment of the agent and of its rank.

    Raises
    ------
    ClusterError
        It could not serve; the text is what it has said.
    """
    command = [sys.executable, "-P", "-m", "hvd_kernel.processes.engine_agent"]
    agent = subprocess.Popen(  # noqa: S603 - our own module
        command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, env=env, start_new_session=True
    )
    assert agent.stdin is not None
    assert agent.stderr is not None
    try:
        agent.stdin.write(pack(CallBack(address, secret, dict(told))))
        agent.stdin.flush()
        said = agent.stderr.read().decode(errors="replace")  # to its end: ranks have pipes of their own
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
        raise ClusterError(f"the agent of this rank has ended with status {status}: {said[-_SAID:].strip()}")


def main() -> None:
    """Serve one launcher."""
    signal.pthread_sigmask(signal.SIG_SETMASK, [])  # engines block signals that ranks want
    adopt_orphans()
    asked = read_packed(sys.stdin.buffer)
    if not asked:
        return  # the engine's process is gone already
    wanted = unpack(asked, CallBack)
    connection = connect(wanted.address, wanted.secret)
    with bound() as port:
        channel = ControlChannel(connection, connection, is_agent=True)
        here = {"python": sys.executable, "cwd": os.getcwd()}  # noqa: PTH109 - a string for the wire
        agent = Agent(channel, card(port.getsockname()[1]) | here | wanted.card, stays=True)
        agent.handlers[Introduce] = partial(_introduce, agent, controller_key(wanted.secret))
        agent.loop.add_reader(sys.stdin.fileno(), agent.loop.stop)
        agent.dismiss_on_signals()
        agent.serve()


def _introduce(agent: Agent, key: str, told: Introduce) -> None:
    """Tell a notebook's rank who it is, on its stdin."""
    who = Introduce(told.rank, told.size, told.connection | {"key": key})
    agent.handlers[Input](Input(told.rank, pack(who)))


if __name__ == "__main__":
    main()
