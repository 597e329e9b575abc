"""%hvd client: an ordinary ipyparallel.Client of the notebook's ranks."""

from __future__ import annotations

from typing import Any

from hvd_kernel.errors import UsageError
from hvd_kernel.magics.context import Context
from hvd_kernel.magics.options import Options

_NAME = "rc"


def act(context: Context, options: Options) -> None:
    """Give the notebook a client under a name.

    Example: ``%hvd client rc``.

    Raises
    ------
    UsageError
        The name is none of Python's.
    ClusterError
        No ranks are running.
    """
    name = (*options.arguments[1:], _NAME)[0]
    if not name.isidentifier():
        raise UsageError(f"%hvd client: {name!r} is not a name of a variable: write %hvd client, or %hvd client NAME")
    context.shell.user_ns[name] = client = connected(context)
    context.writer().say(f"{name} is an ipyparallel.Client of ranks {client.ids}; %px and %%px use it\n")


def connected(context: Context) -> Any:
    """Return a client that %px and %%px use too; those of an earlier one would speak to ranks that are gone."""
    client = context.manager.current().client()
    client.activate()
    return client
