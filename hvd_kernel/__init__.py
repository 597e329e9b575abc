"""Horovod, alive in a notebook.

Importing this package costs nothing: neither torch nor the native core is loaded. A rank uses ``hvd_kernel.torch``;
a notebook says ``%load_ext hvd_kernel`` (the kernel named ``hvd_kernel`` has done so already). ``__version__`` is the
version, a str.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from hvd_kernel.version import __version__

if TYPE_CHECKING:
    from hvd_kernel.launch.run.api import run
    from hvd_kernel.protocol.replicated import keep

if sys.platform != "linux":
    raise ImportError(
        f"hvd_kernel runs on Linux only, this is {sys.platform}: its ranks share memory and watch each other by "
        "calls of the Linux kernel (memfd, pidfd, futex). On Windows use WSL 2, on macOS a Linux container."
    )

__all__ = ["__version__", "client", "keep", "load_ipython_extension", "resize", "run", "unload_ipython_extension"]

_WHERE = {"keep": "hvd_kernel.protocol.replicated", "run": "hvd_kernel.launch.run.api"}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_WHERE[name]), name)


def client() -> Any:
    """Return an ordinary ``ipyparallel.Client`` of this notebook's ranks: engine ids are ranks.

    It lives as long as the ranks do, beside the cells. ``%px`` and ``%%px`` are its too.

    Raises
    ------
    hvd_kernel.errors.ClusterError
        No ranks are running.
    hvd_kernel.errors.UsageError
        This is not a notebook, or the magics are not loaded there.

    Examples
    --------
    In a notebook with 4 ranks::

        rc = hvd_kernel.client()
        rc[:].apply_sync(lambda: rank)                             # [0, 1, 2, 3]
        rc.load_balanced_view().map_sync(abs, range(-8, 0))

    Elsewhere:

    >>> import hvd_kernel.errors
    >>> try:
    ...     hvd_kernel.client()
    ... except hvd_kernel.errors.UsageError:
    ...     print("no notebook")
    no notebook
    """
    from hvd_kernel import magics  # noqa: PLC0415 - only a notebook pays for the magics

    return magics.client()


def resize(n: int) -> str:
    """Have n ranks in this notebook, also while a cell runs on them: at its next commit, if it is in ``elastic.run``.

    From another thread, or a subshell, while the cell runs; ``%hvd resize`` is the same. It returns when it is done.

    Parameters
    ----------
    n
        The number of ranks, 1 or more.

    Returns
    -------
    str
        Who stays, has left and is fresh, as lines.

    Raises
    ------
    hvd_kernel.errors.ClusterError
        It could not be done.
    hvd_kernel.errors.UsageError
        This is not a notebook with ranks, or variables would be lost, which are named.

    Examples
    --------
    In a notebook, before a cell with ``hvd.elastic.run``::

        more = threading.Timer(60, hvd_kernel.resize, [6])
        more.start()

    Elsewhere:

    >>> import hvd_kernel.errors
    >>> try:
    ...     hvd_kernel.resize(6)
    ... except hvd_kernel.errors.UsageError:
    ...     print("no notebook")
    no notebook
    """
    from hvd_kernel import magics  # noqa: PLC0415 - only a notebook pays for the magics

    return magics.resize(n)


def load_ipython_extension(ip: Any) -> None:
    """Give an IPython shell the ``%%hvdrun`` magics: what ``%load_ext hvd_kernel`` calls.

    Parameters
    ----------
    ip
        The shell; loading twice changes nothing.

    Raises
    ------
    ImportError
        IPython or ipyparallel is missing.

    Examples
    --------
    >>> from IPython.core.interactiveshell import InteractiveShell
    >>> shell = InteractiveShell()
    >>> hvd_kernel.load_ipython_extension(shell)
    >>> "hvdrun" in shell.magics_manager.magics["cell"]
    True
    >>> hvd_kernel.unload_ipython_extension(shell)
    """
    from hvd_kernel import magics  # noqa: PLC0415 - only a notebook pays for the magics

    magics.load_ipython_extension(ip)


def unload_ipython_extension(ip: Any) -> None:
    """Undo ``%load_ext hvd_kernel``: end the ranks, but for detached ones, and take the magics away.

    Parameters and errors as in ``load_ipython_extension``.

    Examples
    --------
    >>> from IPython.core.interactiveshell import InteractiveShell
    >>> shell = InteractiveShell()
    >>> hvd_kernel.load_ipython_extension(shell)
    >>> hvd_kernel.unload_ipython_extension(shell)
    >>> "hvdrun" in shell.magics_manager.magics["cell"]
    False
    """
    from hvd_kernel import magics  # noqa: PLC0415 - only a notebook pays for the magics

    magics.unload_ipython_extension(ip)
