"""Horovod's names in an environment, on request: the command ``horovodrun`` beside hvdrun, and ``import horovod``.

A wheel that brought them would overwrite a real Horovod's. Nothing of somebody else's is written over or taken away.
"""

from __future__ import annotations

import os
import shutil
import sys
from contextlib import suppress
from pathlib import Path

from hvd_kernel import compat
from hvd_kernel.errors import ConfigError

NAME = "horovodrun"


def install(folder: Path | None = None) -> Path:
    """Write the script; return where. One that we wrote before is written again.

    Raises
    ------
    ConfigError
        Somebody else's is there, or a real Horovod.
    """
    path, text = _script_path(folder), _script()
    if is_ours(path, text):
        write(path, text, 0o755)
        return path
    if path.exists() or path.is_symlink():
        if _shim() is not None:
            return path
        raise ConfigError(f"{path} exists and was not installed by hvdrun: remove it first, or keep using hvdrun.")
    if compat.has_real():
        raise ConfigError("a real Horovod is installed here with its own command horovodrun: keep using hvdrun.")
    other = shutil.which(NAME)
    if other is not None:
        raise ConfigError(f"{other} is on PATH: two commands of the same name would be confused; keep using hvdrun.")
    write(path, text, 0o755)
    return path


def uninstall(folder: Path | None = None) -> Path | None:
    """Take the script away; return where it was, None where there is none.

    Raises
    ------
    ConfigError
        It is somebody else's.
    """
    path = _script_path(folder)
    if not path.exists() and not path.is_symlink():
        return None
    if not is_ours(path, _script()):
        raise ConfigError(f"{path} was not installed by hvdrun and is not removed. {_how_it_goes()}")
    _remove(path)
    return path


def install_import(folders: list[Path] | None = None) -> Path:
    """Write the .pth file that gives every Python of this environment ``import horovod``; return where.

    Raises
    ------
    ConfigError
        A real Horovod is installed, or the folder cannot be written to.
    """
    from hvd_kernel.compat import pth  # noqa: PLC0415 - hvdrun starts ranks, as a rule

    if compat.has_real():
        raise ConfigError(
            "a real Horovod is installed here, and `import horovod` would still find it: nothing was written. "
            "`python -m pip uninstall horovod` removes it; HVD_COMPAT=shadow takes precedence in the ranks of hvdrun."
        )
    brought = _shim()
    if brought is not None:
        return brought
    path = pth.writable(pth.folders() if folders is None else folders) / pth.NAME
    write(path, pth.text(), 0o644)
    return path


def uninstall_import(folders: list[Path] | None = None) -> Path | None:
    """Take the .pth file away; return where it was, None where there is none.

    Raises
    ------
    ConfigError
        It is pip's.
    """
    from hvd_kernel.compat import pth  # noqa: PLC0415 - hvdrun starts ranks, as a rule

    paths = [folder / pth.NAME for folder in (pth.folders() if folders is None else folders)]
    path = next((path for path in paths if path.exists()), None)
    if path is not None:
        _remove(path)
    elif _shim() is not None:
        raise ConfigError(f"{_shim()} stays. {_how_it_goes()}")
    return path


def build_shim(folder: str) -> Path:
    """Write the wheel of the distribution horovod that needs us; return its path.

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


def _how_it_goes() -> str:
    return f"What pip has brought `{sys.executable} -m pip uninstall horovod` takes away."


def is_ours(path: Path, text: str) -> bool:
    """Tell whether we wrote the script, for this Python or for another one."""
    return path.is_file() and path.read_bytes().partition(b"\n")[2] == text.encode().partition(b"\n")[2]


def write(path: Path, text: str, mode: int) -> None:
    """Put it there whole: a Python that starts meanwhile runs the .pth file."""
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
    return (Path(sys.executable).parent if folder is None else folder) / NAME


def _script() -> str:
    return f"#!{sys.executable}\nimport sys\n\nfrom hvd_kernel.launch.cli.main import main\n\nsys.exit(main())\n"
