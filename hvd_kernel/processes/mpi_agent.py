"""Agent of one rank that MPI has started (launch/agents.py): ``python -P -m hvd_kernel.processes.mpi_agent``."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

from hvd_kernel.processes.agent import Agent, card
from hvd_kernel.processes.channel import authentication
from hvd_kernel.processes.channel.authentication import ADDRESS_VARIABLE
from hvd_kernel.processes.channel.control_channel import ControlChannel
from hvd_kernel.processes.lifetime import adopt_orphans
from hvd_kernel.processes.ports import bound

_CALL_S = 10.0
# Open MPI, MPICH and Intel MPI, jsrun.
_RANK = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "JSM_NAMESPACE_RANK")
_BESIDE = ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "JSM_NAMESPACE_LOCAL_SIZE")


def number(names: tuple[str, ...], env: Mapping[str, str]) -> int | None:
    """Return the value of the first of these variables that is set."""
    return next((int(env[name]) for name in names if name in env), None)


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


def main() -> None:
    """Serve one launcher."""
    adopt_orphans()
    rank, secret = number(_RANK, os.environ), os.environ["HVD_SECRET_KEY"]
    connection = connect(os.environ.pop(ADDRESS_VARIABLE), secret)
    port = bound() if rank == 0 else None  # for the ranks' rendezvous, if MPI itself provides none
    place = {"rank": rank, "beside": number(_BESIDE, os.environ) or 1}
    channel = ControlChannel(connection, connection, is_agent=True)
    agent = Agent(channel, card(0 if port is None else port.getsockname()[1]) | place, stays=True)
    agent.dismiss_on_signals()
    agent.serve()


if __name__ == "__main__":
    main()
