"""Installation of other names on request: the commands ``horovodrun`` and ``mpirun``, and ``import horovod``.

A wheel that contained them would overwrite a real Horovod. Files that hvdrun did not write are neither overwritten nor
removed.
"""

from __future__ import annotations

import os
import shutil
import sys
from contextlib import suppress
from pathlib import Path

from hvd_kernel import compat
from hvd_kernel.errors import ConfigError

_HOROVODRUN, _MPIRUN = "horovodrun", "mpirun"
_SYSTEM = ("/bin", "/sbin", "/usr", "/lib", "/lib64")
_MPIRUN_SCRIPT = """#!{python} -P
# Horovod's lines of mpirun, run by hvdrun. Without this file mpirun is MPI's again.
import sys

from hvd_kernel.launch.cli.main import main

sys.exit(main(["--", "mpirun", *sys.argv[1:]]))
"""


def install(folder: Path | None = None) -> Path:
    """Write the script ``horovodrun``, or update one of ours; return its path.

    Raises
    ------
    ConfigError
        Another script of that name exists, or a real Horovod is installed.
    """
    path, text = _script_path(folder), _script()
    if _is_ours(path, text):
        _write(path, text, 0o755)
        return path
    if path.exists() or path.is_symlink():
        if _shim() is not None:
            return path
        raise ConfigError(f"{path} exists and was not installed by hvdrun: remove it first, or keep using hvdrun.")
    if compat.has_real():
        raise ConfigError("a real Horovod is installed here with its own command horovodrun: keep using hvdrun.")
    other = shutil.which(_HOROVODRUN)
    if other is not None:
        raise ConfigError(f"{other} is on PATH: two commands of the same name would be confused; keep using hvdrun.")
    _write(path, text, 0o755)
    return path


def uninstall(folder: Path | None = None) -> Path | None:
    """Remove the script ``horovodrun``; return its path, or None if there was none.

    Raises
    ------
    ConfigError
        hvdrun did not write it.
    """
    path = _script_path(folder)
    if not path.exists() and not path.is_symlink():
        return None
    if not _is_ours(path, _script()):
        raise ConfigError(f"{path} was not installed by hvdrun and is not removed. {_pip_hint()}")
    _remove(path)
    return path


def install_import(folders: list[Path] | None = None) -> Path:
    """Write the .pth file that enables ``import horovod`` in every Python of this environment; return its path.

    Raises
    ------
    ConfigError
        A real Horovod is installed, or the folder cannot be written to.
    """
    from hvd_kernel.compat import shim  # noqa: PLC0415 - hvdrun starts ranks, as a rule

    if compat.has_real():
        raise ConfigError(
            "a real Horovod is installed here, and `import horovod` would still find it: nothing was written. "
            "`python -m pip uninstall horovod` removes it; HVD_COMPAT=shadow takes precedence in the ranks of hvdrun."
        )
    shim_path = _shim()
    if shim_path is not None:
        return shim_path
    path = shim.writable(shim.folders() if folders is None else folders) / shim.PTH_FOR_ALL
    _write(path, shim.pth_text(), 0o644)
    return path


def uninstall_import(folders: list[Path] | None = None) -> Path | None:
    """Remove the .pth file; return its path, or None if there was none.

    Raises
    ------
    ConfigError
        pip has installed it.
    """
    from hvd_kernel.compat import shim  # noqa: PLC0415 - hvdrun starts ranks, as a rule

    paths = [folder / shim.PTH_FOR_ALL for folder in (shim.folders() if folders is None else folders)]
    path = next((path for path in paths if path.exists()), None)
    if path is not None:
        _remove(path)
    elif _shim() is not None:
        raise ConfigError(f"{_shim()} stays. {_pip_hint()}")
    return path


def build_shim(folder: str) -> Path:
    """Write the wheel of a distribution horovod that depends on hvd_kernel; return its path.

    Raises
    ------
    ConfigError
        The folder cannot be written to.
    """
    from hvd_kernel.compat import shim  # noqa: PLC0415 - hvdrun starts ranks, as a rule

    try:
        return shim.build(Path(folder))
    except OSError as error:
        raise ConfigError(f"the wheel cannot be written to {folder}: {error.strerror}.") from error


def _shim() -> Path | None:
    from hvd_kernel.compat import shim  # noqa: PLC0415 - hvdrun starts ranks, as a rule

    return shim.installed()


def _pip_hint() -> str:
    return f"What pip has brought `{sys.executable} -m pip uninstall horovod` takes away."


def _is_ours(path: Path, text: str) -> bool:
    """Return whether hvdrun wrote the script, for this Python or for another one."""
    return path.is_file() and path.read_bytes().partition(b"\n")[2] == text.encode().partition(b"\n")[2]


def _write(path: Path, text: str, mode: int) -> None:
    """Write a file atomically: a Python that starts meanwhile executes the .pth file."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with os.fdopen(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode), "w", encoding="utf-8") as file:
            file.write(text)
        part.replace(path)
    except OSError as error:
        with suppress(OSError):
            part.unlink()
        raise ConfigError(f"{path} cannot be written: {error.strerror}.") from error


def _remove(path: Path) -> None:
    try:
        path.unlink()
    except OSError as error:
        raise ConfigError(f"{path} cannot be removed: {error.strerror}.") from error


def _script_path(folder: Path | None) -> Path:
    return (Path(sys.executable).parent if folder is None else folder) / _HOROVODRUN


def _script() -> str:
    return f"#!{sys.executable}\nimport sys\n\nfrom hvd_kernel.launch.cli.main import main\n\nsys.exit(main())\n"


def install_mpirun(folder: str) -> Path:
    """Write a script ``mpirun`` that calls hvdrun to a folder, so that launch scripts run unchanged; return its path.

    Raises
    ------
    ConfigError
        The folder is the system's or this environment's, or has another mpirun.
    """
    path, text = Path(folder).resolve() / _MPIRUN, _MPIRUN_SCRIPT.format(python=sys.executable)
    _check_folder(path.parent)
    if (path.exists() or path.is_symlink()) and not _is_ours(path, text):
        raise ConfigError(f"{path} already exists and was not written by hvdrun: choose another folder.")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}.") from error
    _write(path, text, 0o755)
    return path


def _check_folder(folder: Path) -> None:
    prefix = Path(sys.prefix).resolve()
    if any(folder.is_relative_to(system) for system in (*_SYSTEM, prefix)):
        owner = "this environment's" if folder.is_relative_to(prefix) else "the system's"
        raise ConfigError(
            f"{folder} is {owner}, where mpirun is MPI's for all: choose a folder of your own and put it first in PATH."
        )
