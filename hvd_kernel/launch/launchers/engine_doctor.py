"""Checks of a cluster engine's processes before ranks are started in them: their Python, and whether they reach us."""

from __future__ import annotations

import importlib.util
import platform
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version

from hvd_kernel.diagnosis.machine import CheckResult
from hvd_kernel.formatting.install_command import install_command
from hvd_kernel.version import __version__

_CALL_S = 10.0
_NEEDED = ("ipykernel", "ipyparallel", "msgspec", "numpy")


@contextmanager
def reachable(address: str) -> Iterator[tuple[str, int]]:
    """Listen on an address of this host while the engine's processes are inspected; "": they are on this host."""
    with socket.socket() as listening:
        listening.bind((address or "127.0.0.1", 0))
        listening.listen(128)
        yield listening.getsockname()


def inspect_process(address: str, port: int) -> dict[str, str]:
    """Return the host, versions by package ("" if not installed) and the connection error of the calling process.

    Examples
    --------
    >>> with reachable("") as where:
    ...     inspect_process(*where)["unreached"]
    ''
    """
    facts = {"host": socket.gethostname(), "python": platform.python_version(), "hvd_kernel": __version__}
    facts["core"] = "there" if importlib.util.find_spec("hvd_kernel._native") else ""
    for name in _NEEDED:
        try:
            facts[name] = version(name)
        except PackageNotFoundError:
            facts[name] = ""
    try:
        socket.create_connection((address, port), _CALL_S).close()
        facts["unreached"] = ""
    except OSError as error:
        facts["unreached"] = f"{address}: {error}"
    return facts


def check_result(where: str, facts: Mapping[str, str]) -> CheckResult:
    """Return the verdict on the processes in one place, from what ``inspect_process`` has returned there."""
    missing = [name for name in ("core", *_NEEDED) if not facts[name]]
    has = f"Python {facts['python']}, hvd_kernel {facts['hvd_kernel']}"
    if facts["hvd_kernel"] != __version__:
        return CheckResult(where, False, has, f"this notebook has hvd_kernel {__version__}: install the same one there")
    if missing:
        return CheckResult(where, False, f"{has}, without {', '.join(missing)}", f"there: {install_command()}")
    if facts["unreached"]:
        fix = "open the way from there to this host, on any port: ranks call the notebook"
        return CheckResult(where, False, f"{has}; it does not reach this notebook at {facts['unreached']}", fix)
    return CheckResult(where, True, f"{has}; it reaches this notebook")
