"""%hvd client and ``hvd_kernel.client()``: an ordinary ipyparallel.Client of the notebook's ranks."""

from __future__ import annotations

from typing import Any

from IPython.core.getipython import get_ipython

from hvd_kernel.errors import UsageError
from hvd_kernel.magics.context import Desk, DeskMagics
from hvd_kernel.magics.options import Options

_NAME = "rc"


def act(desk: Desk, options: Options) -> None:
    """Give the notebook a client under a name.

    Raises
    ------
    UsageError
        The name is none of Python's.
    """
    name = (*options.words[1:], _NAME)[0]
    if not name.isidentifier():
        raise UsageError(f"%hvd client: {name!r} is no name of a variable: write %hvd client, or %hvd client NAME")
    desk.shell.user_ns[name] = client = _open(desk)
    desk.screen().say(f"{name} is an ipyparallel.Client of ranks {client.ids}; %px and %%px use it\n")


def of_shell() -> Any:
    """Return a client of the ranks of the IPython that runs here.

    Raises
    ------
    UsageError
        None runs here, or the magics are not loaded there.
    """
    shell = get_ipython()
    desks = (
        (each.desk for each in shell.magics_manager.registry.values() if isinstance(each, DeskMagics)) if shell else ()
    )
    desk = next(iter(desks), None)
    if desk is None:
        raise UsageError(
            "hvd_kernel.client() is for a notebook whose ranks are running: %load_ext hvd_kernel, then %hvd start -np 4"
        )
    return _open(desk)


def _open(desk: Desk) -> Any:
    client = desk.holder.current().client()
    client.activate()  # %px and %%px; those of an earlier client would speak to ranks that are gone
    return client
