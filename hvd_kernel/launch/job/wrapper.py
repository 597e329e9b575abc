"""Wrapper script ``mpirun`` in a folder of the user's choice: an unchanged launch script then calls hvdrun."""

from __future__ import annotations

import sys
from pathlib import Path

from hvd_kernel.errors import ConfigError
from hvd_kernel.launch.cli.horovodrun import is_ours, write

NAME = "mpirun"
_SYSTEM = ("/bin", "/sbin", "/usr", "/lib", "/lib64")
_SCRIPT = """#!{python} -P
# Horovod's lines of mpirun, run by hvdrun. Without this file mpirun is MPI's again.
import sys

from hvd_kernel.launch.cli.main import main

sys.exit(main(["--", "mpirun", *sys.argv[1:]]))
"""


def install(folder: str) -> Path:
    """Write the script into a folder, which is made where there is none; return its path.

    Raises
    ------
    ConfigError
        The folder is the system's or this environment's, or has another mpirun.
    """
    path, text = Path(folder).resolve() / NAME, _SCRIPT.format(python=sys.executable)
    _check_folder(path.parent)
    if (path.exists() or path.is_symlink()) and not is_ours(path, text):
        raise ConfigError(f"{path} already exists and was not written by hvdrun: choose another folder.")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}.") from error
    write(path, text, 0o755)
    return path


def _check_folder(folder: Path) -> None:
    own = Path(sys.prefix).resolve()
    if any(folder.is_relative_to(system) for system in (*_SYSTEM, own)):
        whose = "this environment's" if folder.is_relative_to(own) else "the system's"
        raise ConfigError(
            f"{folder} is {whose}, where mpirun is MPI's for all: choose a folder of your own and put it first in PATH."
        )
