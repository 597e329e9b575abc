"""Adapters for training libraries: Lightning and Hugging Face's Trainer on our ranks. Each library is optional."""

from __future__ import annotations

import importlib
from types import ModuleType

from hvd_kernel.formatting.install_command import install_command


def needed(module: str, extra: str) -> ModuleType:
    """Import a module of an optional library.

    Raises
    ------
    ModuleNotFoundError
        The library is not installed; the message has the line that installs it.
    """
    library = module.split(".", maxsplit=1)[0]
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != library:
            raise
        raise ModuleNotFoundError(
            f"hvd_kernel.integrations.{library} needs {library}: {install_command(extra)}", name=library
        ) from error
