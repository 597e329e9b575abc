"""Check for PySpark before the estimators import it, with a helpful error message."""

from __future__ import annotations

import importlib.util

NEEDED = "needs PySpark: pip install 'hvd-kernel[spark]'"


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
