"""Check for PySpark before the estimators import it, with a helpful error message."""

from __future__ import annotations

import importlib.util

from hvd_kernel.formatting.install_command import install_command

NEEDED = f"needs PySpark: {install_command('spark')}"


def check() -> None:
    """Raise an error if PySpark is not installed.

    Raises
    ------
    ModuleNotFoundError
        PySpark is not installed.
    """
    if importlib.util.find_spec("pyspark") is None:
        raise ModuleNotFoundError(f"hvd_kernel.spark {NEEDED}", name="pyspark")


check()
