"""PySpark's presence, looked at before the estimators import it: a sentence if it is missing."""

from __future__ import annotations

import importlib.util

NEEDED = "needs PySpark: pip install 'hvd-kernel[spark]'"


def check() -> None:
    """Refuse to go on without PySpark.

    Raises
    ------
    ModuleNotFoundError
        There is none.
    """
    if importlib.util.find_spec("pyspark") is None:
        raise ModuleNotFoundError(f"hvd_kernel.spark {NEEDED}", name="pyspark")


check()
