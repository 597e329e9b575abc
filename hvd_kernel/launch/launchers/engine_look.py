"""Look at the processes of a cluster's engine before ranks are asked of it: what their Python has, whom they reach."""

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
    """Listen on an address of this host while the engine's processes look; "": they are on this host."""
    with socket.socket() as listening:
        listening.bind((address or "127.0.0.1", 0))
        listening.listen(128)
        yield listening.getsockname()


def look(address: str, port: int) -> dict[str, str]:
    """Say what a process of the engine's has: its host, versions by package ("" where there is none), what it lacks.

    Examples
    --------
    >>> with reachable("") as where:
    ...     look(*where)["unreached"]
    ''
    """
    found = {"host": socket.gethostname(), "python": platform.python_version(), "hvd_kernel": __version__}
    found["core"] = "there" if importlib.util.find_spec("hvd_kernel._native") else ""
    for name in _NEEDED:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = ""
    try:
        socket.create_connection((address, port), _CALL_S).close()
        found["unreached"] = ""
    except OSError as error:
        found["unreached"] = f"{address}: {error}"
    return found


def finding(where: str, told: Mapping[str, str]) -> CheckResult:
    """Judge what the processes of one place have told."""
    missing = [name for name in ("core", *_NEEDED) if not told[name]]
    has = f"Python {told['python']}, hvd_kernel {told['hvd_kernel']}"
    if told["hvd_kernel"] != __version__:
        return CheckResult(where, False, has, f"this notebook has hvd_kernel {__version__}: install the same one there")
    if missing:
        return CheckResult(where, False, f"{has}, without {', '.join(missing)}", f"there: {install_command()}")
    if told["unreached"]:
        fix = "open the way from there to this host, on any port: ranks call the notebook"
        return CheckResult(where, False, f"{has}; it does not reach this notebook at {told['unreached']}", fix)
    return CheckResult(where, True, f"{has}; it reaches this notebook")
