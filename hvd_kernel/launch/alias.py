"""``horovodrun`` beside ``hvdrun``, on request: a wheel that brought it would overwrite a real Horovod's."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from pathlib import Path

from hvd_kernel.errors import ConfigError

NAME = "horovodrun"


def install(folder: Path | None = None) -> Path:
    """Write the script; return where. One that we wrote before is written again.

    Raises
    ------
    ConfigError
        Somebody else's is there, or a real Horovod.
    """
    folder = Path(sys.executable).parent if folder is None else folder
    path, text = folder / NAME, _script()
    if path.exists() or path.is_symlink():
        if path.read_bytes() == text.encode():
            return path
        raise ConfigError(f"{path} is there already and is not ours: remove it first, or go on writing hvdrun.")
    if importlib.util.find_spec("horovod") is not None:
        raise ConfigError("a real Horovod is installed here, whose command horovodrun is: go on writing hvdrun.")
    other = shutil.which(NAME)
    if other is not None:
        raise ConfigError(f"{other} is on PATH: two commands of one name would be mixed up; go on writing hvdrun.")
    _write(path, text)
    return path


def _write(path: Path, text: str) -> None:
    try:
        with os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o755), "w") as file:
            file.write(text)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}.") from error


def _script() -> str:
    return f"#!{sys.executable}\nimport sys\n\nfrom hvd_kernel.launch.cli import main\n\nsys.exit(main())\n"
