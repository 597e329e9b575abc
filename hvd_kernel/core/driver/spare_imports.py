"""Imports of this process, as it tells its host's agent, which has spare processes import the same ahead.

Only modules that are installed: those of the program itself may do anything when they are imported, and are few. What
the program has set in the environment before it imported is told too: ``KERAS_BACKEND`` counts at the import.
"""

from __future__ import annotations

import os
import site
import sys
import sysconfig
from pathlib import Path

from hvd_kernel.core import agent_channel
from hvd_kernel.processes import rank_channel
from hvd_kernel.settings import lookup

_OURS = ("hvd_kernel", "horovod")
_START = ("mpi4py", "pycuda")
"""Packages that begin more than an import does: MPI, a context on a device."""
_NOT_THE_PROGRAMS = ("HVD_", "HOROVOD_")


def tell() -> None:
    """Tell the agent, where it keeps spares."""
    if int(lookup.value("HVD_SPARES", os.environ)):
        agent_channel.send_to_agent(rank_channel.imports({"modules": modules(), "variables": variables()}))


def modules() -> list[str]:
    """Return the names of modules that are installed, in the order in which their imports began."""
    folders = (*{os.path.join(folder, "") for folder in _folders()},)  # noqa: PTH118 - ends with a slash
    main = getattr(sys.modules["__main__"].__spec__, "name", None)
    return [name for name in [*sys.modules] if name != main and _is_installed(name, folders)]


def _folders() -> list[str]:
    paths = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    return [path for path in (*paths, *site.getsitepackages(), site.getusersitepackages()) if path]


def _is_installed(name: str, folders: tuple[str, ...]) -> bool:
    package = name.partition(".")[0]
    if package in _START or package == "__main__":
        return False
    spec = getattr(sys.modules.get(name), "__spec__", None)
    origin = getattr(spec, "origin", None)
    if getattr(spec, "name", None) != name or not isinstance(origin, str):
        return False
    return package in _OURS or origin.startswith(folders)


def variables() -> dict[str, str]:
    """Return what has been set in the environment since this process began, but for what says which rank it is."""
    try:
        words = Path("/proc/self/environ").read_bytes().split(b"\0")
    except OSError:
        return {}
    begun = dict(os.fsdecode(word).partition("=")[::2] for word in words if word)
    return {
        name: value
        for name, value in os.environ.items()
        if begun.get(name) != value and not name.startswith(_NOT_THE_PROGRAMS)
    }
