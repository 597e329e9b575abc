"""Horovod in a notebook.

Importing this package loads neither torch nor the native core. A rank uses ``hvd_kernel.torch``; a notebook runs
``%load_ext hvd_kernel`` (the kernel named ``hvd_kernel`` does it at its start). ``__version__`` is the version, a str.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from hvd_kernel.version import __version__

if TYPE_CHECKING:
    from hvd_kernel.launch.run.api import run
    from hvd_kernel.protocol.notebook import keep

if sys.platform != "linux":
    raise ImportError(
        f"hvd_kernel runs on Linux only, this is {sys.platform}: its ranks share memory and watch each other with "
        "calls of the Linux kernel (memfd, pidfd, futex). On Windows use WSL 2, on macOS a Linux container."
    )

__all__ = ["__version__", "client", "keep", "load_ipython_extension", "resize", "run", "unload_ipython_extension"]

_WHERE = {"keep": "hvd_kernel.protocol.notebook", "run": "hvd_kernel.launch.run.api"}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_WHERE[name]), name)


def client() -> Any:
    """Return an ordinary ``ipyparallel.Client`` of this notebook's ranks: engine ids are ranks.

    It can be used beside cells, as long as the ranks run, also by ``%px`` and ``%%px``.

    Raises
    ------
    hvd_kernel.errors.ClusterError
        No ranks are running.
    hvd_kernel.errors.UsageError
        This is not a notebook, or the magics are not loaded.

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
    """Change this notebook's ranks to n, also while a cell runs in ``elastic.run``: then at its next commit.

    While the cell runs, call it from another thread or a subshell. It returns when the resize is complete, as
    ``%hvd resize`` does.

    Parameters
    ----------
    n
        The number of ranks, 1 or more.

    Returns
    -------
    str
        Lines with the ranks that were kept, removed and added.

    Raises
    ------
    hvd_kernel.errors.ClusterError
        The resize has failed.
    hvd_kernel.errors.UsageError
        This is not a notebook with ranks, or variables would be lost; the message names them.

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
    """Register the ``%%hvdrun`` magics in an IPython shell; ``%load_ext hvd_kernel`` calls this.

    Parameters
    ----------
    ip
        The shell; loading twice has no further effect.

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
    """Undo ``%load_ext hvd_kernel``: stop the ranks, except detached ones, and remove the magics.

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
