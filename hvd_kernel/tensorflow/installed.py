"""TensorFlow's presence and age, looked at before anything here imports it: a sentence if it is missing or old."""

from __future__ import annotations

import importlib
import importlib.util

from hvd_kernel.formatting.install_command import install_command

FLOOR = (2, 13)
_PIP = install_command("tensorflow")
_UPGRADE = install_command("tensorflow", "--upgrade")


def check() -> None:
    """Refuse to go on without a TensorFlow that can be used.

    Raises
    ------
    ModuleNotFoundError
        There is none.
    ImportError
        It is older than ``FLOOR``.
    """
    if importlib.util.find_spec("tensorflow") is None:
        raise ModuleNotFoundError(
            f"hvd_kernel.tensorflow needs TensorFlow, which is not installed in this Python: {_PIP}", name="tensorflow"
        )
    version = str(importlib.import_module("tensorflow").__version__)
    if tuple(int(part) for part in version.split(".")[:2]) < FLOOR:
        raise ImportError(
            f"hvd_kernel.tensorflow needs TensorFlow {FLOOR[0]}.{FLOOR[1]} or newer, and this Python has {version}, "
            f"whose operations cannot wait for other ranks without blocking a thread: {_UPGRADE}"
        )


check()
